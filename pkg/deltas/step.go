package deltas

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

// Scope is one resource as selected by one rule. It is the unit of listing and watching, and has its own position.
type Scope struct {
	ID       string // stable across restarts and version changes of the resource
	Cluster  string // cluster name carried by every change
	Resource event.Resource
	// Namespace is the namespace that the scope covers; "" for all namespaces or a cluster-scoped resource. Control records
	// carry it.
	Namespace string
	// Selected is set if the API server evaluates a label or field selector. An object can then enter the selection long
	// after its creation, so the writer of an ADDED event is not necessarily the creator.
	Selected   bool
	Identified bool // its objects have UIDs; some aggregated APIs provide none
	Filtered   bool // a filter decides which changes are emitted
}

// newControlRecord returns a record about the whole scope.
func (s Scope) newControlRecord(t event.Type, resourceVersion string, at time.Time) *event.Change {
	return &event.Change{
		Type: t, Cluster: s.Cluster, Resource: s.Resource, Namespace: s.Namespace,
		ResourceVersion: resourceVersion, ObservedAt: at,
	}
}

// List describes how the objects of a list are to be interpreted.
type List struct {
	// Snapshot is set for the first list of a scope, also after a lost journal; nil otherwise. Its records claim no change.
	Snapshot *event.SnapshotInfo
	// OnlySink is the only sink that gets the records; "" for all.
	OnlySink string
	// Pass is the ID of a comparison with edited rules; "" for any other list. Objects that the list lacks are then no
	// longer selected, and one version of an object may be emitted more than once. If rules are edited during a snapshot,
	// both Snapshot and Pass are set.
	Pass string
	// Again is set for a snapshot that begins although objects of its scope are known: they are emitted again, so that every
	// object of the scope carries the snapshot before it ends.
	Again bool
	// Compared is set if a filter decides, or decided, which objects are emitted: known objects in the known version are
	// emitted too, as Added with the same version before, for the filter to compare them with what was emitted.
	Compared bool
	// Position is the resourceVersion that the list is consistent at; "" if there is no list.
	Position string
	// Beside is set for objects that are read beside the watch: those that are not visited have not vanished.
	Beside bool
	// Name is unique to the list. It becomes part of the ID of a delete that only this list reveals: such a delete carries
	// the last known version, and the same version may have left before and been selected again by an edited rule.
	Name string
}

// Step decides what the deltas of one object mean, given what is known of the object. All emit decisions of the program are
// made here. It is pure: no clock, no I/O, and the same input always gives the same output.
//
// known.Key must be set; an empty known.UID means that the object is not known. deltas are those of one DeltaFIFO Pop,
// oldest first; list is the list they were read from, nil for a watch. Step returns the known state afterwards (again with
// an empty UID if the object is not known) and the changes to emit, oldest first.
//
// Versions that only some sinks received (known.EmittedElsewhere) count as not known when they are read, because the other
// sinks still need them, and as known when a list lacks them. A watch emits them, and their delete, again.
//
// A list shows the current state, so its objects are compared for equality only; this stays correct if the cluster was
// restored from an older backup. A watch event is emitted unless it is not newer than the known version of the object:
// another API server behind the same address may replay older events, and a change must not be followed by an older one
// (I3).
func Step(s Scope, list *List, known event.Known, deltas cache.Deltas) (event.Known, []*event.Change) {
	st := objectStep{scope: s, list: list, known: known}
	for _, d := range deltas {
		switch d.Type {
		case cache.Added, cache.Updated:
			if o := d.Object.(*Object); list != nil {
				st.handleListed(o)
			} else {
				st.handleWatchEvent(d.Type, o)
			}
		case cache.Sync:
			st.handleSynced(d.Object.(*Object))
		case cache.Deleted:
			if t, ok := d.Object.(cache.DeletedFinalStateUnknown); ok {
				st.handleVanished(t.Obj.(*Object))
			} else {
				st.handleDeleted(d.Object.(*Object))
			}
		}
	}
	return st.known, st.changes
}

// objectStep is the state of one call of Step.
type objectStep struct {
	scope   Scope
	list    *List
	known   event.Known
	changes []*event.Change
}

func (s *objectStep) isKnown() bool { return s.known.UID != "" }

// isKnownObject reports whether o is the known object, in any version.
func (s *objectStep) isKnownObject(o *Object) bool { return s.isKnown() && s.known.UID == o.UID }

// isOutdated reports whether a watch event is not newer than what is known under its name. It may be of an earlier object
// with that name: the known objects can be ahead of the position that is watched from, as after a list whose later pages
// are newer than the first.
func (s *objectStep) isOutdated(o *Object) bool {
	return s.isKnown() && !isNewer(o.ResourceVersion, s.known.ResourceVersion)
}

// handleWatchEvent handles an ADDED or MODIFIED watch event.
func (s *objectStep) handleWatchEvent(t cache.DeltaType, o *Object) {
	if s.isOutdated(o) {
		return
	}
	switch {
	case s.isKnownObject(o):
		c := s.emitChange(event.Updated, t, o)
		c.Class, c.Actor = classOf(s.known.Summary, o.Summary), actorOfUpdate(s.known.Summary, o.Summary, o.Names)
		c.Stamp = o.Stamp
		c.ChangedAt = claimOfUpdate(c, o)
	case s.isKnown():
		s.emitReplacedByNamesake(t, o)
		s.emitAdded(t, o)
	case t == cache.Updated:
		s.emitChange(event.Updated, t, o) // not known, but the API server reports it as modified, so it existed before
	default:
		s.emitAdded(t, o)
	}
	s.setKnown(o)
}

// setKnown records o as known. Versions emitted elsewhere stay recorded if they are newer or of another object: the watch
// will still bring them.
func (s *objectStep) setKnown(o *Object) {
	elsewhere := s.filterEmittedElsewhere(func(t event.EmittedVersion) bool {
		return t.UID != o.UID || isNewer(t.ResourceVersion, o.ResourceVersion)
	})
	s.known = o.toKnown()
	s.known.EmittedElsewhere = elsewhere
}

// removeKnown records that o is deleted.
func (s *objectStep) removeKnown(o *Object) {
	elsewhere := s.filterEmittedElsewhere(func(t event.EmittedVersion) bool { return t.UID != o.UID })
	s.known = event.Known{Key: s.known.Key, EmittedElsewhere: elsewhere}
}

// filterEmittedElsewhere returns the recorded versions for which keep is true, encoded as in Known.EmittedElsewhere.
func (s *objectStep) filterEmittedElsewhere(keep func(event.EmittedVersion) bool) (kept string) {
	s.known.EachEmittedElsewhere(func(t event.EmittedVersion) {
		if keep(t) {
			kept = event.AppendEmittedVersion(kept, t)
		}
	})
	return kept
}

func (s *objectStep) emitAdded(t cache.DeltaType, o *Object) {
	c := s.emitChange(event.Added, t, o)
	if !s.scope.Selected {
		c.Actor = actorOfCreate(o.Summary, o.Names)
		if t == cache.Added { // the version that the create made
			c.Stamp = o.Stamp
			c.ChangedAt = claimOf(o.CreatedAt, event.TimeFromManagedFields)
		}
	}
}

// handleListed handles an object in a list. Differences are emitted without an actor, because several writers may have
// contributed.
func (s *objectStep) handleListed(o *Object) {
	others := s.clearEmittedElsewhere(o.UID)
	namesake := s.isKnown() && !s.isKnownObject(o)
	if namesake {
		s.emitReplacedByNamesake(cache.Replaced, o)
	}
	s.emitMissingDeletes(others, o)
	switch {
	case o.matchesKnown(s.known):
		switch {
		case s.list.Again:
			s.emitChange(event.Snapshot, cache.Replaced, o)
		case s.list.Compared:
			s.emitChange(event.Added, cache.Replaced, o).Coalesced = true
		}
		if o.Summary != "" {
			s.known.Summary = o.Summary // it may be lost with its key or at a failover, or be that of another form
		}
		return
	case s.isKnownObject(o):
		c := s.emitChange(event.Updated, cache.Replaced, o)
		c.Coalesced, c.Class = true, classOf(s.known.Summary, o.Summary)
		c.ChangedAt = claimOfListed(cmp.Or(s.known.Summary, noSummary), o)
	case s.list.Snapshot != nil && !namesake:
		s.emitChange(event.Snapshot, cache.Replaced, o)
	default:
		c := s.emitChange(event.Added, cache.Replaced, o)
		if c.Coalesced = true; s.list.Pass == "" {
			c.ChangedAt = claimOfListed("", o)
		}
	}
	s.known = o.toKnown()
}

// handleSynced handles an object that is emitted again, for a resync or for one sink. Only the version emitted last
// qualifies: an older one must not follow it (I3), and a newer one arrives with the watch.
func (s *objectStep) handleSynced(o *Object) {
	switch {
	case !o.matchesKnown(s.known):
	case s.list != nil && s.list.Snapshot != nil:
		s.emitChange(event.Snapshot, cache.Sync, o)
	default:
		s.emitChange(event.Sync, cache.Sync, o)
	}
}

// stepChangedBeside returns the record of a snapshot for one sink of an object that a watch event has just changed, and that
// the snapshot does not have yet: the change itself may be filtered. after is the known state; nil if it is no state of the
// object in these deltas.
func stepChangedBeside(s Scope, snapshot *sinkSnapshot, after event.Known, deltas cache.Deltas) *event.Change {
	for _, d := range slices.Backward(deltas) {
		o, ok := d.Object.(*Object)
		if !ok || d.Type == cache.Deleted || !o.matchesKnown(after) {
			continue
		}
		list := snapshot.listAt(o.ResourceVersion)
		st := objectStep{scope: s, known: after, list: &list}
		st.handleSynced(o)
		return st.changes[0]
	}
	return nil
}

// handleDeleted handles a DELETED watch event, which carries the final state. In a list it deletes an object that the list
// had returned or that was known before. Some servers send the object's last version instead of that of the delete
// (kubernetes#58545), or the name alone, and more than once: that deletes the known object.
func (s *objectStep) handleDeleted(o *Object) {
	ofKnown := o.ResourceVersion == s.known.ResourceVersion && (o.UID == s.known.UID || o.UID == "")
	if s.list == nil && s.isOutdated(o) && !ofKnown {
		return
	}
	if nameAlone := o.UID == "" && (s.scope.Identified || o.ResourceVersion == ""); nameAlone && !s.isKnown() {
		return
	} else if nameAlone {
		named := o
		o = stubFromKnown(s.known, named.ObservedAt)
		o.ResourceVersion = cmp.Or(named.ResourceVersion, o.ResourceVersion)
		defer func() { s.changes[len(s.changes)-1].FinalStateUnknown = true }()
	}
	var others []event.EmittedVersion
	if s.list != nil {
		if !s.isKnown() && s.filterEmittedElsewhere(func(t event.EmittedVersion) bool { return t.UID == o.UID }) == "" {
			return
		}
		others = s.clearEmittedElsewhere(o.UID)
	}
	if s.isKnown() && !s.isKnownObject(o) {
		s.emitReplacedByNamesake(cache.Deleted, o)
	}
	s.emitMissingDeletes(others, o)
	s.emitChange(event.Deleted, cache.Deleted, o).ChangedAt = claimSince(o.DeletingAt, event.TimeFromDeletion)
	s.removeKnown(o)
}

// handleVanished handles a known object that a list lacks: it was deleted while no watch was open (I8), or the rules no
// longer select it. o is built from the known identity.
func (s *objectStep) handleVanished(o *Object) {
	others := s.clearEmittedElsewhere("")
	if s.isKnown() {
		s.emitGone(stubFromKnown(s.known, o.ObservedAt))
	}
	s.emitMissingDeletes(others, o)
	s.known = event.Known{Key: s.known.Key}
}

// emitGone emits a delete that was inferred from a list: o was deleted, or is no longer selected.
func (s *objectStep) emitGone(o *Object) {
	c := s.emitChange(event.Deleted, cache.Deleted, o)
	c.FinalStateUnknown, c.Coalesced, c.Left, c.Pass = true, true, s.list.Pass != "", cmp.Or(s.list.Pass, s.list.Name)
}

// clearEmittedElsewhere clears the versions emitted elsewhere when a list is read. The list is the current state, so all
// recorded objects except the one with this UID are deleted; those other than the known object are returned. If the known
// object was emitted elsewhere in a newer version, its delete will carry that version.
func (s *objectStep) clearEmittedElsewhere(uid string) (others []event.EmittedVersion) {
	s.known.EachEmittedElsewhere(func(t event.EmittedVersion) {
		switch {
		case t.UID == uid:
		case t.UID != s.known.UID:
			others = append(others, t)
		case isNewer(t.ResourceVersion, s.known.ResourceVersion):
			s.known.ResourceVersion = t.ResourceVersion
		}
	})
	s.known.EmittedElsewhere = ""
	return others
}

// emitMissingDeletes emits the deletes of these versions, after all older changes and before by.
func (s *objectStep) emitMissingDeletes(others []event.EmittedVersion, by *Object) {
	for _, t := range others {
		known := event.Known{Key: s.known.Key, UID: t.UID, ResourceVersion: t.ResourceVersion}
		s.emitGone(stubFromKnown(known, by.ObservedAt))
	}
}

// emitReplacedByNamesake emits the delete of the known object when another object now has its name. The UID of the new
// object becomes part of the ID, because the deleted version may have left before.
func (s *objectStep) emitReplacedByNamesake(t cache.DeltaType, by *Object) {
	c := s.emitChange(event.Deleted, t, by)
	c.UID, c.ResourceVersion, c.Previous, c.Generation, c.Before = s.known.UID, s.known.ResourceVersion, "", 0, nil
	c.Coalesced, c.FinalStateUnknown, c.Pass = true, true, cmp.Or(c.Pass, by.UID)
	s.known.EmittedElsewhere = s.filterEmittedElsewhere(func(t event.EmittedVersion) bool { return t.UID != s.known.UID })
}

func (s *objectStep) emitChange(t event.Type, d cache.DeltaType, o *Object) *event.Change {
	c := &event.Change{
		Type: t, Delta: event.Delta(d), Cluster: s.scope.Cluster, Resource: s.scope.Resource,
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
		Generation: o.Generation, ObservedAt: o.ObservedAt,
	}
	if s.isKnownObject(o) {
		c.Previous = s.known.ResourceVersion
	}
	if s.list != nil {
		c.Snapshot, c.Pass, c.ListVersion, c.OnlySink = s.list.Snapshot, s.list.Pass, s.list.Position, s.list.OnlySink
	}
	if t == event.Deleted {
		c.Before = o.Raw
	} else {
		c.After = o.Raw
	}
	s.changes = append(s.changes, c)
	return c
}

// isNewer reports whether a was written after b. resourceVersions of one resource are ordered integers (KEP-5504). An
// aggregated API may not comply; its versions are compared for equality only, so replayed history is emitted twice.
func isNewer(a, b string) bool {
	order, ordered := resourceversion.Compare(a, b)
	if !ordered {
		return a != b
	}
	return order > 0
}

// sinkSnapshot is a snapshot for one sink, which is emitted between live changes. It has each object once that is known when
// it starts: as it is read, or, if a watch event comes first, as that leaves it. So it does not depend on what the reading
// finds, nor on what filters make of the live changes, and it is complete once every known object was seen in its pass.
type sinkSnapshot struct {
	request  event.SnapshotRequest
	id       string
	position string // of the scope at the start
	sum      sum    // of its records
	absent   int    // objects that were chosen and do not exist
}

// isPartial reports whether the snapshot has only chosen objects, so that what it lacks may exist.
func (s *sinkSnapshot) isPartial() bool { return s.request.Objects != "" }

// StartSnapshot starts the snapshot that is requested for one sink, under an ID, and returns the observation with its begin
// record. position is that of the scope. It replaces one that is in progress, and a list ends it.
//
// If objects are chosen, those that do not exist at the position are deleted right after the begin: the sink may have
// records of them that the exporter has not written. One that is created later has a higher version, and its change comes
// behind.
func (t *Tracker) StartSnapshot(r event.SnapshotRequest, id, position string) event.Observation {
	t.beside = &sinkSnapshot{request: r, id: id, position: position}
	chosen, absent := t.chooseObjects(r)
	t.known.startCountedPass(r.Namespace, chosen)
	begin := t.NewSnapshotBegin(id)
	if t.beside.isPartial() {
		begin.Type = event.PartialBegin
	}
	t.beside.addressRecord(begin)
	changes := []*event.Change{begin}
	for _, key := range absent {
		changes = append(changes, t.newAbsent(key))
	}
	t.beside.absent = len(absent)
	return t.NewObservation(changes...)
}

// chooseObjects returns the objects of a request that the scope can have, nil for all, and those of them that do not exist.
// An object that only some sinks have is neither: the watch is about to bring it to all of them.
func (t *Tracker) chooseObjects(r event.SnapshotRequest) (chosen map[string]bool, absent []string) {
	if r.Objects == "" {
		return nil, nil
	}
	chosen = map[string]bool{}
	for _, key := range r.ObjectKeys() {
		if namespace, _ := splitKey(key); t.scope.Namespace != "" && namespace != t.scope.Namespace {
			continue
		}
		if known := t.known.lookupKey(key); known.UID != "" {
			chosen[key] = true
		} else if !known.Exists() {
			absent = append(absent, key)
		}
	}
	return chosen, absent
}

// newAbsent returns the delete of an object that does not exist at the position of the snapshot. Its UID is not known.
func (t *Tracker) newAbsent(key string) *event.Change {
	s := t.beside
	c := t.scope.newControlRecord(event.Deleted, s.position, t.now())
	c.Namespace, c.Name = splitKey(key)
	c.Delta, c.ListVersion = event.DeltaDeleted, s.position
	c.Coalesced, c.FinalStateUnknown, c.Pass = true, true, s.id+"/"+key
	c.Snapshot, c.OnlySink = &event.SnapshotInfo{ID: s.id}, s.request.Sink
	return c
}

// ObserveExisting processes objects that were read for the snapshot, by a list at this resourceVersion. Objects that the
// snapshot has are left out, and so are those that are not in the known version: for them the watch brings a change.
func (t *Tracker) ObserveExisting(objects []*Object, listVersion string) (event.Observation, error) {
	var missing []*Object
	for _, o := range objects {
		if t.known.isUnseen(o.Key()) {
			missing = append(missing, o)
		}
	}
	return t.observeBeside(missing, t.beside.listAt(listVersion))
}

// addToSnapshot counts the changes of an object that are records of the snapshot, and returns another one if a watch event
// has changed an object that the snapshot does not have yet. before and after are what is known of it.
func (t *Tracker) addToSnapshot(before, after event.Known, changes []*event.Change, ds cache.Deltas) []*event.Change {
	s := t.beside
	if s == nil || len(changes) == 0 {
		return changes
	}
	switch {
	case t.list != nil && t.list.Snapshot == nil: // a resync
	case t.list != nil:
		s.addRecords(changes)
	case before.UID == after.UID && t.known.isUnseen(before.Key):
		if c := stepChangedBeside(t.scope, s, after, ds); c != nil {
			s.addRecords([]*event.Change{c})
			return append(changes, c)
		}
	}
	return changes
}

// listAt returns how objects are interpreted that are read for the snapshot at a resourceVersion.
func (s *sinkSnapshot) listAt(position string) List {
	return List{Snapshot: &event.SnapshotInfo{ID: s.id}, OnlySink: s.request.Sink, Position: position, Beside: true}
}

func (s *sinkSnapshot) addRecords(changes []*event.Change) {
	for _, c := range changes {
		s.sum.digest.Add(c.Namespace, c.Name, c.UID, c.ResourceVersion)
		s.sum.count++
	}
}

// MissingInSnapshot returns how many of the known objects the snapshot still lacks, and false if none is in progress.
func (t *Tracker) MissingInSnapshot() (missing int, inProgress bool) {
	return t.known.unseen, t.beside != nil
}

// FinishSnapshot ends the snapshot and returns the observation with its end record, which ends the request. It is complete
// up to the position at which it has started: what has changed since carries a higher version.
func (t *Tracker) FinishSnapshot() event.Observation {
	s := t.beside
	kind := event.SnapshotEnd
	if s.isPartial() {
		kind = event.PartialEnd
	}
	o := t.endSnapshot(kind)
	o.EndedRequest, o.EndedCount, o.EndedAbsent = s.request.ID, s.sum.count, s.absent
	return o
}

// CancelSnapshot ends the snapshot, if one is in progress, without being whole.
func (t *Tracker) CancelSnapshot() event.Observation {
	if t.beside == nil {
		return t.NewObservation()
	}
	return t.endSnapshot(event.PartialEnd)
}

func (t *Tracker) endSnapshot(kind event.Type) event.Observation {
	s := t.beside
	t.beside = nil
	end := t.scope.newControlRecord(kind, s.position, t.now())
	s.addressRecord(end)
	end.Snapshot = &event.SnapshotInfo{ID: s.id, Position: s.position, Count: s.sum.count, Digest: s.sum.digest.String()}
	return t.NewObservation(end)
}

// addressRecord addresses a control record to the sink, and to the namespace if the snapshot has only that.
func (s *sinkSnapshot) addressRecord(c *event.Change) {
	c.OnlySink = s.request.Sink
	if s.request.Namespace != "" {
		c.Namespace = s.request.Namespace
	}
}
