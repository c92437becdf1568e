package journal

import (
	"fmt"
	"strings"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// IsLatest reports whether c is the last that was observed of its object, so that to send it now is no step back (I3). Of a
// deleted object it is unless another one lives under its name. A control record, which has its place in the stream, never is.
func (o *Offline) IsLatest(c *event.Change) (bool, error) {
	if c.Type.Control() {
		return false, nil
	}
	if c.Type == event.Attributed { // it speaks of one version, and of no state
		return true, nil
	}
	if o.version < scopesBelongToResources {
		return false, fmt.Errorf("journal: %s was written by an earlier version of the exporter: start this one on it once", o.dir)
	}
	object := strings.TrimPrefix(c.Namespace+"/"+c.Name, "/")
	value, err := o.get(codec.KeyOf(codec.PrefixKnown, c.Resource.String(), object))
	if err != nil || value == nil {
		return c.Type == event.Deleted, o.checked("known object "+object, err)
	}
	k, err := codec.DecodeKnown([]byte(object), value)
	living := c.Type != event.Deleted && k.UID == c.UID && k.ResourceVersion == c.ResourceVersion
	return living, o.checked("known object "+object, err)
}
