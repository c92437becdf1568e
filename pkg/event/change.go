package event

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Type is the kind of a change or control record.
type Type string

// The types of the native format. Consumers switch on these strings, so they are stable.
const (
	Added      Type = "added"      // the object was created, or entered the selection
	Updated    Type = "updated"    // the object has a new resourceVersion
	Deleted    Type = "deleted"    // the object was deleted, or left the selection
	Snapshot   Type = "snapshot"   // the object exists, as seen in the first list of its resource; claims no change
	Sync       Type = "sync"       // the object exists in this version, which was emitted before: emitted for a resync
	Attributed Type = "attributed" // no change: names the authenticated user that made one, see [Attribution]
	Replayed   Type = "replayed"   // no change: a record of the past, emitted again for one sink, see [ReplayInfo]
	Gap        Type = "gap"        // a control record: history of a whole resource was lost, see [GapInfo]

	// Control records around the first list of a resource, see [SnapshotInfo]. Between them, the journal holds the snapshot
	// and any other changes that happened meanwhile.
	SnapshotBegin Type = "snapshot.begin"
	SnapshotEnd   Type = "snapshot.end"

	// Control records around a snapshot of single objects, see [SnapshotRequest]. PartialEnd also ends a snapshot that was
	// canceled. What lies between them is valid; what it lacks may exist, so consumers remove nothing.
	PartialBegin Type = "partial.begin"
	PartialEnd   Type = "partial.end"

	// AttributionGap is a control record: audit events were lost, so changes of that interval may have no [Attributed]
	// record. From and To of its Gap are times in RFC 3339 instead of positions.
	AttributionGap Type = "attribution.gap"

	// Watermark is a control record that stands in every lane of its scope: every change up to a position stands before it
	// there, see [WatermarkInfo].
	Watermark Type = "watermark"

	// ReplayEnd is a control record: a replay has ended, see [ReplayInfo].
	ReplayEnd Type = "replay.end"
)

// IsControl reports whether the type is a control record, which concerns a whole resource instead of one object.
func (t Type) IsControl() bool {
	return t == Gap || t.FramesSnapshot() || t == AttributionGap || t == Watermark || t == ReplayEnd
}

// IsBeside reports whether the type is about an object and not its state: a table of objects has no place for it.
func (t Type) IsBeside() bool { return t == Attributed || t == Replayed }

// FramesSnapshot reports whether the type is the begin or the end of a snapshot, whole or not.
func (t Type) FramesSnapshot() bool {
	return t == SnapshotBegin || t == SnapshotEnd || t == PartialBegin || t == PartialEnd
}

// Class is the part of an object that an update touched. If it touched several parts, the first of these constants applies.
type Class string

// The classes of the native format.
const (
	ClassDeleting Class = "deleting" // metadata.deletionTimestamp was set: the object waits for its finalizers
	ClassSpec     Class = "spec"     // anything outside metadata and status: spec, data, rules, …
	ClassStatus   Class = "status"   // status
	ClassMetadata Class = "metadata" // labels, annotations, owners, finalizers and the rest of metadata, except bookkeeping
)

// Delta is the DeltaFIFO delta type that a change came from, as client-go spells it (k8s.io/client-go/tools/cache).
type Delta string

// The delta types a change can come from.
const (
	DeltaAdded    Delta = "Added"
	DeltaUpdated  Delta = "Updated"
	DeltaDeleted  Delta = "Deleted"
	DeltaReplaced Delta = "Replaced"
	DeltaSync     Delta = "Sync"
)

// Resource identifies a served API resource and the kind of its objects.
type Resource struct {
	Group    string // "" is the core group
	Version  string
	Resource string // plural, lower case: "deployments"
	Kind     string // "Deployment"
}

// String returns the name that kubectl uses: "pods", "deployments.apps".
func (r Resource) String() string {
	if r.Group == "" {
		return r.Resource
	}
	return r.Resource + "." + r.Group
}

// ParseResourceName parses the result of [Resource.String]; version and kind stay empty.
func ParseResourceName(name string) Resource {
	resource, group, _ := strings.Cut(name, ".")
	return Resource{Group: group, Resource: resource}
}

// Actor is the field manager of a write, from the entry of metadata.managedFields that the write changed (KEP-555). The
// client chooses the name, so it does not prove the identity of a user.
type Actor struct {
	Manager     string
	Operation   string // "Apply" or "Update"
	Subresource string // "" for the object itself, otherwise for example "status"
	Time        string // RFC 3339, second resolution, as the API server wrote it
}

// ChangeTime is the interval in which a change was made, as narrow as the exporter can know it.
type ChangeTime struct {
	At        time.Time // the change was made at this time or before; zero if nothing is said
	NotBefore time.Time // and not before this one; zero if unknown
	Source    TimeSource
}

// TimeSource is what a [ChangeTime] was learnt from, apart from the versions of other objects.
type TimeSource string

// The sources of a time. Only TimeFromWatch is by the clock of the exporter, all others by that of the API server.
const (
	TimeFromAudit         TimeSource = "audit"         // the request and its response
	TimeFromManagedFields TimeSource = "managedFields" // the entry that the change renewed, or the creation
	TimeFromDeletion      TimeSource = "deletion"      // when the deletion was requested
	TimeFromWatch         TimeSource = "watch"         // no more than that the exporter read it
)

// GapInfo is the body of a [Gap] record: the history between From and To is lost. The remaining differences follow as
// coalesced changes; objects that were created and deleted in between are not known.
type GapInfo struct {
	From   string // last complete position; "" if nothing was known before
	To     string // position at which the stream is complete again
	Reason string // one sentence, for display

	// Sink is the only sink that gets the record, because only that one missed something; "" for all. Not written by formats.
	Sink string
}

// SnapshotInfo is the snapshot that a record belongs to. A snapshot is the first list of a resource, or of one namespace if
// the selection is watched per namespace; Change.Namespace of the control records is then set. If the exporter restarts
// during a snapshot, it continues the same one. A snapshot for one sink has the objects of a scope that do not change
// meanwhile, between live changes.
type SnapshotInfo struct {
	ID string // unique among the snapshots of a resource; the same on begin, on the listed objects and on end

	// Only on [SnapshotEnd] and [PartialEnd].
	Position string // resourceVersion up to which the records of the snapshot are all that exists
	Count    int    // objects in the snapshot
	Digest   string // over those objects, see [Digest]
}

// EpochSeparator separates the random part of the name of an epoch from the fingerprint of what is selected in it.
const EpochSeparator = "."

// WatermarkInfo is the body of a [Watermark] record: every change of the scope up to Change.ResourceVersion stands before
// the record in its lane. Each lane gets a copy, which names the lane.
type WatermarkInfo struct {
	// Epoch names the period in which positions and sequences grow: one process and one selection, without lost history. Its
	// part after [EpochSeparator] is the fingerprint of the selection.
	Epoch    string
	Sequence uint64 // within the epoch, from 1, without a hole

	// Algorithm is that of Digest, see [DigestAlgorithm]. It is "" if the stream does not have all of the objects, or not all
	// of their versions, because of filters or routes: then Count and Digest are not known.
	Algorithm string
	Count     int    // selected objects that exist at the position
	Digest    string // over those objects, see [Digest]

	// Lane and Lanes are the number of the copy, from 0, and of all copies; both are 0 in the journal. A consumer that has
	// read all copies has everything up to the position.
	Lane, Lanes int

	Sinks []string // that get the record. Not written by formats
}

// ReplayInfo is the body of a [Replayed] record and of the [ReplayEnd] that each resource has. A replay emits again what the
// journal keeps. What it emits is the past: newer records of the same objects may stand before it.
type ReplayInfo struct {
	ID string // of the signal that asked for it

	// Only on [Replayed].
	Of   string // ID of the record
	Type Type   // its type

	// Only on [ReplayEnd].
	State  string // of the signal, as it ended
	Count  int    // records of the resource that were emitted again
	Reason string // why it ended early, for display; "" if it did not
}

// Identity is a user of a request, as recorded in the audit log of an API server.
type Identity struct {
	User   string   // the effective user of the request: the impersonated one, if any
	UID    string   // of User; "" if the authenticator provides none
	Groups []string // of User
	// Impersonator is the authenticated user that acted as User; "" without impersonation.
	Impersonator string
	// ImpersonationConstraint is the verb of the constrained impersonation that allowed it; "" for any other.
	ImpersonationConstraint string

	Verb        string // of the request: create, update, patch, delete or deletecollection
	Subresource string // "" for the object itself
	Received    time.Time

	// The client chooses the following values.
	UserAgent string
	SourceIPs []string
	AuditID   string
}

// Attribution is the body of an [Attributed] record.
type Attribution struct {
	Of          string // ID of the change; "" on the change itself
	By          Identity
	RequestedBy *Identity // on a delete that was requested by another user and completed by By; otherwise nil
	Certainty   string    // [Exact]
}

// Exact is the certainty of every attribution: no other user can have made the change, see docs/audit-trail.md.
const Exact = "exact"

// HeldInfo is on a record that some sinks get only with the author of the change, see docs/configuration.md on awaitAuthor.
// The record goes to all other sinks. A copy that is released goes to these, behind it in the journal.
type HeldInfo struct {
	Sinks    []string
	Wait     time.Duration // the longest time from ObservedAt to the release; 0 on the copy
	Released bool          // this is the copy
	Unknown  string        // on the copy of a change: why its author is not known; "" if Change.Attribution has it
}

// Skips reports whether the record does not go to the sink that has, or had, these names. h may be nil.
func (h *HeldInfo) Skips(names ...string) bool {
	return h != nil && h.Released != slices.ContainsFunc(names, func(name string) bool { return slices.Contains(h.Sinks, name) })
}

// DeadLetterInfo is set on the copy of a change that is published as a dead letter.
type DeadLetterInfo struct {
	Sink   string // the sink that could not deliver it
	Reason string // for display, as the destination reported it
}

// Change is one change of one object, or a control record about a resource.
//
// A Change is immutable once made: Before and After may be shared between sinks and may alias a larger buffer. Code that
// keeps a change beyond the life of that buffer calls [Change.Clone], so that the buffer is not pinned.
type Change struct {
	Type     Type
	Delta    Delta
	Cluster  string // configured name, otherwise the UID of the kube-system namespace
	Resource Resource

	Namespace       string // "" for cluster-scoped objects, and for control records of all namespaces
	Name            string // "" for control records
	UID             string
	ResourceVersion string
	Previous        string // the ResourceVersion emitted or filtered before this one; "" if unknown. Not written by formats
	ListVersion     string // resourceVersion of the list that the object was read from; "" if a watch delivered the change
	Stamp           *Stamp // only where it may be of the write that made this version; else nil. Not written by formats
	Generation      int64  // 0 if the object has none

	ObservedAt        time.Time  // when the exporter read it; UTC
	ChangedAt         ChangeTime // only on Added, Updated, Deleted unless Left, and Attributed of a request
	Coalesced         bool       // history between the last change of this object and this one was lost
	FinalStateUnknown bool       // deleted while no watch was open: the identity, and Before if set, are the last known ones
	Left              bool       // only on Deleted: edited rules no longer select the object; it may still exist
	Actor             *Actor     // nil if managedFields do not identify the writer, and on Deleted
	Class             Class      // only on Updated; "" if the previous state is not known

	Changed []byte // only if configured: JSON array of where before and after differ, see [Change.HasValues]

	Before []byte // JSON object; on Deleted the last state, if known; on Updated only if configured
	After  []byte // JSON object; nil on Deleted and on control records

	// RedactionChanged is set if the object was last emitted under another redaction: a difference between the two records
	// may be no change of the object. It is set only on types that consumers compare with an earlier state: Updated,
	// Deleted, Sync.
	RedactionChanged bool

	Omitted  []string // members omitted because the destination rejected the change as too large: "before", "status", …
	Withheld string   // the reason if the bodies were removed; the change is not delivered but becomes a dead letter

	// OnlySink is the only sink that gets the change, because only that one lacks it: a dead letter that is retried, or
	// a record of a snapshot for it, see [SnapshotRequest]; "" for all. A Gap has its own member for that. Not written by
	// formats.
	OnlySink string

	Gap      *GapInfo      // only on Gap and AttributionGap
	Snapshot *SnapshotInfo // on objects of a snapshot's list, and on the records that frame a snapshot

	Watermark *WatermarkInfo // only on Watermark

	Attribution *Attribution // only on Attributed, on a change that has waited for it, and if such a record is Replayed
	Held        *HeldInfo    // nil unless a route holds the record back. Only Unknown is written by formats

	Replay *ReplayInfo // only on Replayed and ReplayEnd

	// Pass is set if one version of an object can be emitted more than once. It is the ID of the comparison with edited
	// rules or of the resync that emitted the change, and part of the change's ID. If a list revealed that the object was
	// deleted, Pass is the ID of that list, or the UID of the object that has its name now. A Gap has a Pass if positions
	// did not grow: a cluster that is restored twice from one backup can reach the same two positions again. That of a Replayed
	// record is the ID of the replay and the offset of the record in the journal.
	Pass string

	DeadLetter *DeadLetterInfo // only on copies that are published as dead letters; never journaled
}

// ID returns the permanent identity of the change (I4). It is a pure function of cluster, UID, resourceVersion and type; if
// one version can be emitted more than once, it includes the snapshot (on [Snapshot] records) or the [Change.Pass]. It is
// the same on every redelivery, after every restart and in every sink, so that consumers and brokers can drop duplicates.
// Two changes that a consumer must both apply never share an ID.
func (c *Change) ID() string {
	var scratch [256]byte
	return string(c.AppendID(scratch[:0]))
}

// AppendID appends [Change.ID] to b and returns the extended slice.
func (c *Change) AppendID(b []byte) []byte {
	uid := c.UID
	switch c.Type {
	case Gap, AttributionGap:
		// A gap belongs to a resource, which has no UID. While positions grow there is at most one gap between two of them;
		// otherwise the gap has a Pass.
		uid = c.Resource.String() + "@" + c.Gap.From
		if c.Namespace != "" { // a namespace that is watched separately has its own gaps
			uid = c.Namespace + "/" + uid
		}
	case SnapshotBegin, SnapshotEnd, PartialBegin, PartialEnd:
		uid = c.Resource.String() + "@" + c.Snapshot.ID
	case ReplayEnd:
		uid = c.Resource.String() + "@" + c.Replay.ID
	case Watermark:
		return append(b, c.watermarkID()...)
	default: // of an object
	}
	b = append(append(b, c.Cluster...), '/')
	b = append(append(b, uid...), '/')
	b = append(append(b, c.ResourceVersion...), '/')
	b = append(b, c.Type...)
	if c.Type == Snapshot && c.Snapshot != nil { // after a lost journal the same versions are emitted again
		b = append(append(b, '/'), c.Snapshot.ID...)
	}
	if c.Pass != "" {
		b = append(append(b, '/'), c.Pass...)
	}
	return b
}

// watermarkID returns the ID of a watermark. The copies for several lanes are different records.
func (c *Change) watermarkID() string {
	w := c.Watermark
	scope := c.Resource.String() + "@" + w.Epoch
	if c.Namespace != "" {
		scope = c.Namespace + "/" + scope
	}
	id := strings.Join([]string{c.Cluster, scope, c.ResourceVersion, string(c.Type), strconv.FormatUint(w.Sequence, 10)}, "/")
	if w.Lanes > 1 {
		id += "/" + strconv.Itoa(w.Lane) + "/" + strconv.Itoa(w.Lanes)
	}
	return id
}

// WithLane returns a copy of a watermark for one of several lanes. It shares everything else with c.
func (c *Change) WithLane(lane, lanes int) *Change {
	copied, info := *c, *c.Watermark
	info.Lane, info.Lanes = lane, lanes
	copied.Watermark = &info
	return &copied
}

// OriginalType returns the type that a replayed record had, and that of any other record.
func (c *Change) OriginalType() Type {
	if c.Type == Replayed && c.Replay != nil {
		return c.Replay.Type
	}
	return c.Type
}

// OmitDigest removes the digest, because the stream does not have everything that it covers.
func (w *WatermarkInfo) OmitDigest() { w.Algorithm, w.Count, w.Digest = "", 0, "" }

// Key returns the ordering key: all changes of one object share it, and no other object of any cluster has it. The form is
// "cluster/group/resource/namespace/name"; the core group is "core", and an absent namespace is empty. Watermarks and the
// frames of partial snapshots have keys of their own, "cluster/group/resource/namespace//watermark" and "…//partial", so
// that a compacted topic keeps the newest one beside other control records. So do replays: "…//replay", and
// "…/name/replayed" beside the state of the object.
func (c *Change) Key() string {
	return string(c.AppendKey(nil))
}

// AppendKey appends [Change.Key] to b and returns the extended slice.
func (c *Change) AppendKey(b []byte) []byte {
	group := c.Resource.Group
	if group == "" {
		group = "core"
	}
	b = append(append(b, c.Cluster...), '/')
	b = append(append(b, group...), '/')
	b = append(append(b, c.Resource.Resource...), '/')
	b = append(append(b, c.Namespace...), '/')
	switch c.Type {
	case Watermark:
		return append(b, "/watermark"...)
	case PartialBegin, PartialEnd:
		return append(b, "/partial"...)
	case ReplayEnd:
		return append(b, "/replay"...)
	case Replayed: // the key of an object belongs to its state
		return append(append(b, c.Name...), "/replayed"...)
	default:
		return append(b, c.Name...)
	}
}

// HasValues reports whether Changed lists differences as objects of path, from and to, and not as pointers alone (RFC 6901).
func (c *Change) HasValues() bool {
	return c.Changed != nil && !bytes.HasPrefix(c.Changed, []byte(`["`))
}

// Size estimates the memory that a change holds, in bytes. It is the unit of window and queue bounds (I6).
func (c *Change) Size() int {
	const overhead = 512 // the struct, its strings and its entry in a queue
	size := overhead + len(c.Before) + len(c.After) + len(c.Changed)
	if c.Attribution != nil {
		size += overhead
	}
	return size
}

// EmittedRecord identifies a record in a destination. Equal values are copies of one record.
type EmittedRecord struct {
	ID              string // of the change, see [Change.ID]
	Type            Type
	Resource        Resource // only Group and Resource: not all formats carry more
	Key             string   // of the object within its resource, as in [Known]; "" for a control record
	UID             string   // "" for a control record
	ResourceVersion string   // "" for a control record
	ListVersion     string   // of the list that revealed a deletion; "" of everything else
}

// EmittedRecord returns the identity of c's record in a destination.
func (c *Change) EmittedRecord() EmittedRecord {
	e := EmittedRecord{ID: c.ID(), Type: c.Type, Resource: Resource{Group: c.Resource.Group, Resource: c.Resource.Resource}}
	if c.Type.IsControl() {
		return e
	}
	e.Key, e.UID, e.ResourceVersion = c.Name, c.UID, c.ResourceVersion
	if c.Type == Deleted {
		e.ListVersion = c.ListVersion
	}
	if c.Namespace != "" {
		e.Key = c.Namespace + "/" + c.Name
	}
	return e
}

// Clone returns a copy that shares no memory with c. The bodies and strings of a change that was read from the journal are
// parts of larger buffers, which any reference would keep alive.
func (c *Change) Clone() *Change {
	d := *c
	bodies := make([]byte, 0, len(c.Before)+len(c.After)+len(c.Changed))
	for _, b := range [...]*[]byte{&d.Before, &d.After, &d.Changed} {
		bodies = copyBody(b, bodies)
	}
	var t stringCopies
	t.Grow(typicalStringBytes)
	t.copyStrings((*string)(&d.Type), (*string)(&d.Delta), (*string)(&d.Class), (*string)(&d.ChangedAt.Source), &d.Cluster,
		&d.Resource.Group, &d.Resource.Version, &d.Resource.Resource, &d.Resource.Kind,
		&d.Namespace, &d.Name, &d.UID, &d.ResourceVersion, &d.Previous, &d.ListVersion, &d.Withheld, &d.Pass, &d.OnlySink)
	t.copyLists(&d.Omitted)
	if own := ownCopy(&d.Actor); own != nil {
		t.copyStrings(&own.Manager, &own.Operation, &own.Subresource, &own.Time)
	}
	if own := ownCopy(&d.Stamp); own != nil {
		t.copyStrings(&own.User, &own.Replaced)
	}
	if own := ownCopy(&d.Gap); own != nil {
		t.copyStrings(&own.From, &own.To, &own.Reason, &own.Sink)
	}
	if own := ownCopy(&d.Snapshot); own != nil {
		t.copyStrings(&own.ID, &own.Position, &own.Digest)
	}
	if own := ownCopy(&d.Watermark); own != nil {
		t.copyStrings(&own.Epoch, &own.Algorithm, &own.Digest)
		t.copyLists(&own.Sinks)
	}
	if own := ownCopy(&d.Replay); own != nil {
		t.copyStrings(&own.ID, &own.Of, (*string)(&own.Type), &own.State, &own.Reason)
	}
	if own := ownCopy(&d.Held); own != nil {
		t.copyStrings(&own.Unknown)
		t.copyLists(&own.Sinks)
	}
	if own := ownCopy(&d.DeadLetter); own != nil {
		t.copyStrings(&own.Sink, &own.Reason)
	}
	if own := ownCopy(&d.Attribution); own != nil {
		t.copyStrings(&own.Of, &own.Certainty)
		t.copyIdentity(&own.By)
		if by := ownCopy(&own.RequestedBy); by != nil {
			t.copyIdentity(by)
		}
	}
	return &d
}

// ownCopy makes *p refer to a copy of what it refers to, and returns that; nil if it is nil.
func ownCopy[T any](p **T) *T {
	if *p != nil {
		own := **p
		*p = &own
	}
	return *p
}

// typicalStringBytes suffices for the strings of most changes.
const typicalStringBytes = 256

// copyBody appends *b to bodies, which has capacity for it, and makes *b refer to the copy.
func copyBody(b *[]byte, bodies []byte) []byte {
	if *b == nil {
		return bodies
	}
	start := len(bodies)
	bodies = append(bodies, *b...)
	*b = bodies[start:len(bodies):len(bodies)]
	return bodies
}

// stringCopies holds copies of strings in as few allocations as possible.
type stringCopies struct{ strings.Builder }

func (t *stringCopies) copyStrings(all ...*string) {
	for _, s := range all {
		if t.Cap()-t.Len() < len(*s) {
			t.Reset() // earlier copies keep the old buffer
			t.Grow(max(typicalStringBytes, len(*s)))
		}
		start := t.Len()
		t.WriteString(*s)
		*s = t.String()[start:]
	}
}

func (t *stringCopies) copyLists(lists ...*[]string) {
	for _, list := range lists {
		*list = append([]string(nil), *list...)
		for i := range *list {
			t.copyStrings(&(*list)[i])
		}
	}
}

func (t *stringCopies) copyIdentity(i *Identity) {
	t.copyStrings(&i.User, &i.UID, &i.Impersonator, &i.ImpersonationConstraint, &i.Verb, &i.Subresource, &i.UserAgent, &i.AuditID)
	t.copyLists(&i.Groups, &i.SourceIPs)
}
