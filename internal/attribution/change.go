package attribution

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// Change is what the join knows of one change of the stream. It shares no memory with the record that it was made from.
type Change struct {
	Offset          uint64
	ID              string
	Cluster         string
	Resource        event.Resource
	Namespace, Name string
	Type            event.Type // Added, Updated or Deleted
	UID             string
	Version         string // resourceVersion
	Previous        string // the version before; "" where it is not known
	Marks           bool   // sets the deletionTimestamp
	Observed        time.Time

	objectState      // that it leaves behind
	hasState    bool // state is known
}

// objectName is what an object shares with those that had its name before it.
func (c *Change) objectName() string {
	return objectNameKey(c.Resource.Group, c.Resource.Resource, c.Namespace, c.Name)
}

// objectNameKey is no UID of an object.
func objectNameKey(group, resource, namespace, name string) string {
	return group + "/" + resource + "/" + namespace + "/" + name
}

// ChangeOf returns what the join needs of a record of the journal. eligible is false for what is nobody's single write: control
// records, what a list told, what is emitted again, and what an attribution itself emitted.
func ChangeOf(r event.Record) (c Change, eligible bool) {
	of := r.Change
	if of.UID == "" || of.Type == event.Attributed || of.Type.IsControl() {
		return Change{}, false
	}
	switch of.Type {
	case event.Added, event.Updated, event.Deleted:
		eligible = !of.Coalesced && !of.FinalStateUnknown && !of.Left
	}
	c = Change{
		Offset: r.Offset, ID: of.ID(), Cluster: strings.Clone(of.Cluster), Resource: cloneResource(of.Resource),
		Namespace: strings.Clone(of.Namespace), Name: strings.Clone(of.Name),
		Type: of.Type, UID: strings.Clone(of.UID), Version: strings.Clone(of.ResourceVersion), Previous: strings.Clone(of.Previous),
		Marks: of.Class == event.ClassDeleting, Observed: of.ObservedAt,
	}
	c.objectState, c.hasState = readState(of)
	return c, eligible
}

func cloneResource(r event.Resource) event.Resource {
	return event.Resource{
		Group: strings.Clone(r.Group), Version: strings.Clone(r.Version), Resource: strings.Clone(r.Resource), Kind: strings.Clone(r.Kind),
	}
}

// changeSize estimates the memory that a change and its place in a [Matcher] take, in bytes.
const changeSize = 900

// Request is one audited request that may have made changes.
type Request struct {
	audit.Event
	// Origin names the API server; "" where that is not known. Clocks of one origin are compared with each other.
	Origin string `json:"origin,omitempty"`
	// Number is its own, among all requests of a [Matcher].
	Number uint64 `json:"-"`
	// Arrived is when the event was taken. What an earlier process took waits anew.
	Arrived time.Time `json:"-"`

	encoded []byte // encoded, as evidence and where it waits packed; nil: not yet
}

// encodeEvidence fills kept.
func (r *Request) encodeEvidence() (err error) {
	if r.encoded == nil {
		r.encoded, err = json.Marshal(r)
	}
	return err
}

// size estimates the memory a request takes that is not packed, in bytes.
func (r *Request) size() int {
	n := 1050 + 24*len(r.Groups) + 16*len(r.SourceIPs) + 160*len(r.Items)
	for _, s := range r.Groups {
		n += len(s)
	}
	return n + len(r.UserAgent) + len(r.User) + len(r.Name) + len(r.Namespace)
}
