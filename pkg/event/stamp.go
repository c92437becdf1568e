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
	Replaced string // which version of which object the write replaced, see IsOf
}

// StampCreated stands for the replaced version in the stamp of a create.
const StampCreated = "new"

// ParseStamp parses the value of [StampAnnotation]: what was replaced, a space, the user. It returns false for anything
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

// IsOf reports whether the stamp is of the write that replaced a version of the object of this name; "" if it created the
// object. A stamp has the version and the object, VERSION:GROUP/RESOURCE/NAMESPACE/NAME, so that a copy in another object
// means nothing. In the place of a name that the API server generates there is generateName and a slash.
func (s Stamp) IsOf(version string, r Resource, namespace, name string) bool {
	created := version == ""
	if created {
		version = StampCreated
	}
	of, found := strings.CutPrefix(s.Replaced, version+":"+r.Group+"/"+r.Resource+"/"+namespace+"/")
	if !found || name == "" {
		return false
	}
	if base, generated := strings.CutSuffix(of, "/"); generated && created {
		base = base[:min(len(base), generatedNameMax-generatedLength)]
		return len(name) == len(base)+generatedLength && strings.HasPrefix(name, base)
	}
	return of == name
}
