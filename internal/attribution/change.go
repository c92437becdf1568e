package attribution

import (
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Change is what a [Matcher] needs of one change of the stream. It shares no memory with the record that it was made from.
type Change struct {
	Offset          uint64
	ID              string
	Cluster         string
	Resource        event.Resource
	Namespace, Name string
	Type            event.Type // Added, Updated or Deleted
	UID             string
	Version         string // resourceVersion
	Previous        string // the version before; "" if not known
	Marks           bool   // sets the deletionTimestamp
	Observed        time.Time
	Stamp           *event.Stamp // of the write, if it is one of the version before; nil otherwise

	objectState      // after the change
	hasState    bool // objectState is known
}

// objectName returns the object name key, which objects that had the name one after the other share.
func (c *Change) objectName() string {
	return objectNameKey(c.Resource.Group, c.Resource.Resource, c.Namespace, c.Name)
}

// objectNameKey returns a key for the name of an object. It never equals a UID.
func objectNameKey(group, resource, namespace, name string) string {
	return group + "/" + resource + "/" + namespace + "/" + name
}

// ChangeOf returns the change in a record of the journal. eligible is false for a record that is not the result of a single
// write: control records, changes that a list revealed, versions that are emitted again, and attributions.
func ChangeOf(r event.Record) (c Change, eligible bool) {
	of := r.Change
	if of.UID == "" || of.OnlySink != "" || of.Type == event.Attributed || of.Type.IsControl() {
		return Change{}, false
	}
	switch of.Type {
	case event.Added, event.Updated, event.Deleted:
		eligible = !of.Coalesced && !of.FinalStateUnknown && !of.Left
	default: // no request makes the others
	}
	c = Change{
		Offset: r.Offset, ID: of.ID(), Cluster: strings.Clone(of.Cluster), Resource: cloneResource(of.Resource),
		Namespace: strings.Clone(of.Namespace), Name: strings.Clone(of.Name),
		Type: of.Type, UID: strings.Clone(of.UID), Version: strings.Clone(of.ResourceVersion), Previous: strings.Clone(of.Previous),
		Marks: of.Class == event.ClassDeleting, Observed: of.ObservedAt,
	}
	if eligible && isStampOf(of) {
		c.Stamp = &event.Stamp{User: strings.Clone(of.Stamp.User), Replaced: c.Previous}
	}
	c.objectState, c.hasState = readState(of)
	return c, eligible
}

// isStampOf reports whether the stamp names the version before of this object as the one that was replaced. Otherwise an
// earlier write left it, or it is a copy of another object's.
func isStampOf(c *event.Change) bool {
	switch {
	case c.Stamp == nil:
		return false
	case c.Type == event.Added:
		return c.Previous == "" && c.Stamp.IsOf("", c.Resource, c.Namespace, c.Name)
	}
	return c.Type == event.Updated && c.Previous != "" && c.Stamp.IsOf(c.Previous, c.Resource, c.Namespace, c.Name)
}

func cloneResource(r event.Resource) event.Resource {
	return event.Resource{
		Group: strings.Clone(r.Group), Version: strings.Clone(r.Version),
		Resource: strings.Clone(r.Resource), Kind: strings.Clone(r.Kind),
	}
}

// changeSize estimates the memory that a change takes in a [Matcher], in bytes.
const changeSize = 900
