// Package selection says what rules select: which resources, which objects of them, and by how many watches that is read.
// It compares the rules with a [Catalog] of what an API server serves, or with nothing but their own text, and opens no
// connection.
//
// A [Rule] names resources. [Resolve] finds them in a catalog and returns an [Explanation]: of each name what it selects, as
// [Scope] values, or why it selects nothing. Of several rules the first that selects a resource has it alone.
//
// Values are not changed once made and may be used concurrently.
package selection
