package event

import (
	"strings"
	"time"
)

// Type says what a change claims about its object.
type Type string

// The types of the native format. Consumers switch on these strings; they do not change.
const (
	Added      Type = "added"      // the object came into being, or entered the selection
	Updated    Type = "updated"    // the object has a new resourceVersion
	Deleted    Type = "deleted"    // the object is gone, or left the selection
	Snapshot   Type = "snapshot"   // the object exists, as seen in the first list of its resource; claims no change
	Sync       Type = "sync"       // the object exists in this version, which was emitted before: a rule asks for resync
	Attributed Type = "attributed" // no change: says which authenticated user made one, see [Attribution]
	Gap        Type = "gap"        // a control record: history of a whole resource was lost, see [GapInfo]

	// Control records around the first list of a resource, see [SnapshotInfo]. What lies between them in the journal is
	// the snapshot and whatever else happened meanwhile.
	SnapshotBegin Type = "snapshot.begin"
	SnapshotEnd   Type = "snapshot.end"

	// AttributionGap is a control record: audit events of a time were lost, so changes of that time stay without an
	// [Attributed] record. Its Gap names times, in RFC 3339, in place of positions.
	AttributionGap Type = "attribution.gap"
)

// IsControl says that a record speaks of a whole resource and of no single object.
func (t Type) IsControl() bool {
	return t == Gap || t == SnapshotBegin || t == SnapshotEnd || t == AttributionGap
}

// Class says which part of an object an update touched. Where it touched several, the first of this list that applies.
type Class string

// The classes of the native format.
const (
	ClassDeleting Class = "deleting" // metadata.deletionTimestamp was set: the object waits for its finalizers
	ClassSpec     Class = "spec"     // anything outside metadata and status: spec, data, rules, …
	ClassStatus   Class = "status"   // status
	ClassMetadata Class = "metadata" // labels, annotations, owners, finalizers; of metadata, what is not bookkeeping
)

// Delta names the DeltaFIFO delta type a change came from, as client-go spells it (k8s.io/client-go/tools/cache).
type Delta string

// The delta types a change can come from.
const (
	DeltaAdded    Delta = "Added"
	DeltaUpdated  Delta = "Updated"
	DeltaDeleted  Delta = "Deleted"
	DeltaReplaced Delta = "Replaced"
	DeltaSync     Delta = "Sync"
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

// ParseResourceName reads the resource, without version and kind, off its name, see [Resource.String].
func ParseResourceName(name string) Resource {
	resource, group, _ := strings.Cut(name, ".")
	return Resource{Group: group, Resource: resource}
}

// Actor is self-declared and no evidence of a user: what the writer called itself in the entry of metadata.managedFields
// that the write left behind (the API server's record of field managers, KEP-555).
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

// SnapshotInfo says which snapshot a record belongs to. A snapshot is the first list of a resource, or of one namespace
// of it where the selection is watched by namespace: then Change.Namespace of the control records names it. An exporter
// that is restarted within a snapshot goes on with the same one.
type SnapshotInfo struct {
	ID string // unique among the snapshots of a resource; the same on begin, on what the list tells and on end

	// Only on [SnapshotEnd].
	Position string // resourceVersion of the list: the objects named below existed then
	Count    int    // objects that existed at Position
	Digest   string // over those objects, see [Digest]
}

// Identity is who acted, as an API server's audit log names them.
type Identity struct {
	User   string   // the name that the request acted under: the impersonated one where there is one
	UID    string   // of User; "" where the authenticator gives none
	Groups []string // of User
	// Impersonator is the authenticated user who acted as User; "" where nobody was impersonated.
	Impersonator string

	Verb        string // of the request: create, update, patch, delete or deletecollection
	Subresource string // "" for the object itself
	Received    time.Time

	// The client chooses these.
	UserAgent string
	SourceIPs []string
	AuditID   string
}

// Attribution is the body of an [Attributed] record.
type Attribution struct {
	Of          string // ID of the change
	By          Identity
	RequestedBy *Identity // on a delete that somebody else had asked for, and By only ended; nil else
	Certainty   string    // [Exact] or [Likely]
}

// The certainties of an attribution, see docs/audit-trail.md.
const (
	Exact  = "exact"  // nobody else can have made the change
	Likely = "likely" // By was at the object when it changed: a guess
)

// DeadLetterInfo says on a copy of a change why it is not where it should be.
type DeadLetterInfo struct {
	Sink   string // that could not deliver it
	Reason string // for people, in the words of the destination
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

	Namespace       string // "" for cluster-scoped objects, and for control records unless they speak of one namespace only
	Name            string // "" for control records
	UID             string
	ResourceVersion string
	Previous        string // the ResourceVersion emitted or filtered before this one; "" where unknown. Not written by formats
	Generation      int64  // 0 when the object has none

	ObservedAt        time.Time // when the exporter read it; UTC
	Coalesced         bool      // history between the last change of this object and this one was lost
	FinalStateUnknown bool      // deleted while nobody watched: identity, and Before where kept, are the last known ones
	Left              bool      // only on Deleted: edited rules do not select the object any more; it may still exist
	Actor             *Actor    // nil when the API server's record does not tell, and on Deleted
	Class             Class     // only on Updated; "" when what was there before is not known

	Changed []string // JSON Pointers (RFC 6901) of what differs between before and after, sorted; only where asked
	Patch   []byte   // makes after of before: an object is RFC 7396, an array RFC 6902; nil where not asked

	Before []byte // JSON object; on Deleted the last state, where known; on Updated only where asked
	After  []byte // JSON object; nil on Deleted and on control records

	// RedactionChanged says that the object was last emitted under another redaction: what differs between that and this may
	// be no change of the object. Only on what is compared with what a consumer has: Updated, Deleted, Sync.
	RedactionChanged bool

	Omitted  []string // members left out so that the destination takes the change: "before", "status", …
	Withheld string   // why the bodies are missing and the change must not be delivered; it becomes a dead letter

	Gap      *GapInfo      // only on Gap and AttributionGap
	Snapshot *SnapshotInfo // only on what the list of a snapshot holds, on SnapshotBegin and on SnapshotEnd

	Attribution *Attribution // only on Attributed

	// Pass is set where one version of an object can be told more than once: it names the pass over all objects, a
	// comparison with an edited rule or a resync, that the change came from, and is a part of the ID. Of an object that was
	// found to be gone it names the list that found it, or is the UID of the one that has its name now. A Gap has one also
	// where positions did not grow: a cluster that is restored twice from one backup can come to the same two positions
	// again.
	Pass string

	DeadLetter *DeadLetterInfo // only on copies that are published because the change could not be; never journaled
}

// ID identifies the change for ever (I4): a pure function of cluster, UID, resourceVersion and type, and where one version
// can be emitted more than once, of what emits it again: the snapshot of a [Snapshot] record, the [Change.Pass] of others.
// It is the same on every redelivery, after every restart and on every sink, so that consumers and brokers can drop
// duplicates, and two changes that a consumer has to take both never share it.
func (c *Change) ID() string {
	uid := c.UID
	switch c.Type {
	case Gap, AttributionGap:
		// A gap belongs to a resource, which has no UID. Between two positions there is at most one, as long as positions
		// grow; where they do not, the gap has a Pass.
		uid = c.Resource.String() + "@" + c.Gap.From
		if c.Namespace != "" { // each namespace has gaps of its own where it is watched by itself
			uid = c.Namespace + "/" + uid
		}
	case SnapshotBegin, SnapshotEnd:
		uid = c.Resource.String() + "@" + c.Snapshot.ID
	}
	id := strings.Join([]string{c.Cluster, uid, c.ResourceVersion, string(c.Type)}, "/")
	if c.Type == Snapshot && c.Snapshot != nil { // after a lost journal, what was emitted before is emitted again
		id += "/" + c.Snapshot.ID
	}
	if c.Pass != "" {
		id += "/" + c.Pass
	}
	return id
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
	size := overhead + len(c.Before) + len(c.After) + len(c.Patch)
	for _, path := range c.Changed {
		size += len(path) + 16
	}
	if c.Attribution != nil {
		size += overhead
	}
	return size
}
