package event

import (
	"strings"
	"time"
)

// Type says what a change claims about its object.
type Type string

// The types of the native format. Consumers switch on these strings; they do not change.
const (
	Added    Type = "added"    // the object came into being, or entered the selection
	Updated  Type = "updated"  // the object has a new resourceVersion
	Deleted  Type = "deleted"  // the object is gone, or left the selection
	Snapshot Type = "snapshot" // the object exists, as seen in the first list of its resource; claims no change
	Gap      Type = "gap"      // a control record: history of a whole resource was lost, see [GapInfo]
)

// Delta names the DeltaFIFO delta type a change came from, as client-go spells it (k8s.io/client-go/tools/cache).
type Delta string

// The delta types a change can come from.
const (
	DeltaAdded    Delta = "Added"
	DeltaUpdated  Delta = "Updated"
	DeltaDeleted  Delta = "Deleted"
	DeltaReplaced Delta = "Replaced"
)

// Resource names a served API resource and the kind of its objects.
type Resource struct {
	Group    string // "" is the core group
	Version  string
	Resource string // plural, lower case: "deployments"
	Kind     string // "Deployment"
}

// String writes the resource as kubectl does: "pods", "deployments.apps".
func (r Resource) String() string {
	if r.Group == "" {
		return r.Resource
	}
	return r.Resource + "." + r.Group
}

// Actor says who made the newest write, taken from the newest entry of metadata.managedFields.
type Actor struct {
	Manager     string
	Operation   string // "Apply" or "Update"
	Subresource string // "" for the object itself, else for example "status"
	Time        string // RFC 3339, second resolution, as the API server wrote it
}

// GapInfo is the body of a [Gap] record: between From and To the API server could no longer tell what happened. What
// still differed was sent after the gap as coalesced changes; what came and went in between is not known.
type GapInfo struct {
	From   string // last position that was complete; empty when nothing was known before
	To     string // position at which the stream is complete again
	Reason string // one sentence for people
}

// Change is one change of one object, or a control record about a resource.
//
// A Change is immutable once made: Before and After may be shared between sinks and may alias a larger buffer. Who keeps
// a change longer than its surroundings calls [Change.Clone] so as not to pin that buffer.
type Change struct {
	Type     Type
	Delta    Delta
	Cluster  string // configured name, else the UID of the kube-system namespace
	Resource Resource

	Namespace       string // "" for cluster-scoped objects and control records
	Name            string // "" for control records
	UID             string
	ResourceVersion string
	Generation      int64 // 0 when the object has none

	ObservedAt        time.Time // when the exporter read it; UTC
	Coalesced         bool      // history between the last change of this object and this one was lost
	FinalStateUnknown bool      // deleted while nobody watched: identity, and Before where kept, are the last known ones
	Actor             *Actor    // nil when the object carried no managedFields

	Before []byte // JSON object; on Deleted the last state, where known
	After  []byte // JSON object; nil on Deleted and on control records

	Gap *GapInfo // only on Gap
}

// ID identifies the change for ever: a pure function of cluster, UID, resourceVersion and type (I4). It is the same on
// every redelivery, after every restart and on every sink, so that consumers and brokers can drop duplicates.
func (c *Change) ID() string {
	uid := c.UID
	if c.Type == Gap {
		// A gap belongs to a resource, which has no UID, and happened at most once between two positions.
		uid = c.Resource.String() + "@" + c.Gap.From
	}
	return strings.Join([]string{c.Cluster, uid, c.ResourceVersion, string(c.Type)}, "/")
}

// Key orders changes: all changes of one object have the same key and no other object has it. The form is
// "group/resource/namespace/name", where the group of core resources is "core" and an absent namespace is empty.
func (c *Change) Key() string {
	return string(c.AppendKey(nil))
}

// AppendKey appends [Change.Key] to b and returns the extended slice.
func (c *Change) AppendKey(b []byte) []byte {
	group := c.Resource.Group
	if group == "" {
		group = "core"
	}
	b = append(append(b, group...), '/')
	b = append(append(b, c.Resource.Resource...), '/')
	b = append(append(b, c.Namespace...), '/')
	return append(b, c.Name...)
}

// Size estimates the memory a change holds, in bytes. Windows and queues are bounded by it (I6).
func (c *Change) Size() int {
	const overhead = 512 // the struct, its strings and its place in a queue
	return overhead + len(c.Before) + len(c.After)
}

// Clone returns a copy whose bodies are its own, so that keeping it pins no larger buffer.
func (c *Change) Clone() *Change {
	d := *c
	d.Before, d.After = clone(c.Before), clone(c.After)
	d.Namespace, d.Name = strings.Clone(c.Namespace), strings.Clone(c.Name)
	d.UID, d.ResourceVersion = strings.Clone(c.UID), strings.Clone(c.ResourceVersion)
	return &d
}

func clone(b []byte) []byte {
	if b == nil {
		return nil
	}
	return append(make([]byte, 0, len(b)), b...)
}
