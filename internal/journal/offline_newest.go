package journal

import (
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// LastWord reports whether c is the last that was observed of its object, so that to send it now is no step back (I3). Of a
// deleted object it is unless another one lives under its name. A control record, which has its place in the stream, never is.
func (o *Offline) LastWord(c *event.Change) (bool, error) {
	if c.Type.Control() {
		return false, nil
	}
	var names []string // of the resource; in older versions, of its scopes
	err := forEachName(o.db, prefixKnown, func(name string) {
		if resourceOf(name) == c.Resource.String() {
			names = append(names, name)
		}
	})
	if err != nil {
		return false, o.checked("known objects", err)
	}
	object := strings.TrimPrefix(c.Namespace+"/"+c.Name, "/")
	living, newest := false, false
	for _, name := range names {
		value, err := readValue(o.db, keyOf(prefixKnown, name, object))
		if err != nil || value == nil {
			if err != nil {
				return false, o.checked("known object "+object, err)
			}
			continue
		}
		k, err := decodeKnown([]byte(object), value)
		if err != nil {
			return false, o.checked("known object "+object, err)
		}
		living = living || !k.Gone
		newest = newest || !k.Gone && k.UID == c.UID && k.ResourceVersion == c.ResourceVersion
	}
	if c.Type == event.Deleted {
		return !living, nil
	}
	return newest, nil
}
