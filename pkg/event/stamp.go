package event

import "strings"

// StampAnnotation is the annotation in which the admission policy of package stamp records the author of a write. It is
// removed from each object when it is read, and is no part of the object for anything behind that.
const StampAnnotation = "kubecdc.io/stamp"

// Stamp is what an object says about the write that made its version. A write that is not stamped leaves the stamp of an
// earlier one, and a client may have written it where the policy was not in force: it proves nothing by itself.
type Stamp struct {
	User     string // the effective user of the request
	Replaced string // the version that the write replaced; "" if it created the object
}

// StampCreated stands for the replaced version in the stamp of a create.
const StampCreated = "new"

// ParseStamp parses the value of [StampAnnotation]: the replaced version, a space, the user. It returns false for anything
// else.
func ParseStamp(value string) (s Stamp, ok bool) {
	replaced, user, ok := strings.Cut(value, " ")
	if !ok || replaced == "" || user == "" {
		return Stamp{}, false
	}
	if replaced == StampCreated {
		replaced = ""
	}
	return Stamp{User: user, Replaced: replaced}, true
}
