// Package selection resolves the rules: which resources they select, which objects of those, and with how many watches they
// are read. It compares the rules with a [Catalog] of what an API server serves, or only with their own text, and opens no
// connection.
//
// A [Rule] names resources. [Resolve] looks them up in a catalog and returns an [Explanation]: for each name the [Scope]
// values that it selects, or the reason why it selects nothing. If several rules select a resource, the first one owns it.
//
// Values are immutable and may be used concurrently.
package selection
