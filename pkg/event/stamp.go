package event

import "strings"

// StampAnnotation is the annotation in which the admission policy of package stamp records the author of a write. It is
// removed from each object when it is read, and is no part of the object for anything behind that.
const StampAnnotation = "kubecdc.io/stamp"

// Stamp is what an object says about the write that made its version. A write that is not stamped leaves the stamp of an
// earlier one, or copies that of another object, and a client may have written it where the policy was not in force: it
// proves nothing by itself.
type Stamp struct {
	User     string // the effective user of the request
	Replaced string // the version that the write replaced; StampCreated and the object if it created one, see IsCreateOf
}

// StampCreated begins the replaced version in the stamp of a create. The group, resource, namespace and name of the object
// follow, each but the first after a slash, so that the stamp means nothing in a copy of the object. In the place of a name
// that the API server generates there is generateName and a slash.
const StampCreated = "new:"

// ParseStamp parses the value of [StampAnnotation]: the replaced version, a space, the user. It returns false for anything
// else.
func ParseStamp(value string) (s Stamp, ok bool) {
	replaced, user, ok := strings.Cut(value, " ")
	if !ok || replaced == "" || user == "" {
		return Stamp{}, false
	}
	return Stamp{User: user, Replaced: replaced}, true
}

// Kubernetes appends so many random characters to generateName, which is cut for that.
const (
	generatedLength  = 5
	generatedNameMax = 63
)

// IsCreateOf reports whether the stamp is of the write that created the object of this name.
func (s Stamp) IsCreateOf(r Resource, namespace, name string) bool {
	object := StampCreated + r.Group + "/" + r.Resource + "/" + namespace + "/"
	of, found := strings.CutPrefix(s.Replaced, object)
	if !found || name == "" {
		return false
	}
	if base, generated := strings.CutSuffix(of, "/"); generated {
		base = base[:min(len(base), generatedNameMax-generatedLength)]
		return len(name) == len(base)+generatedLength && strings.HasPrefix(name, base)
	}
	return of == name
}
