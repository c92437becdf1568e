package consumer

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

// Object is an existing object.
type Object struct {
	Key
	UID, ResourceVersion string
	Body                 json.RawMessage
}

// Table holds the existing objects according to the stream. The zero value is empty. It also keeps the newest version of
// deleted objects, some 200 bytes each, because records can be repeated: see [Table.RemoveDeleted].
type Table struct {
	resources map[Resource]*resourceState
	gaps      []ResourceGap
}

// ResourceGap is a gap of a resource: objects may have been created and deleted within it, and others may have been in
// versions that are lost. The remaining differences follow, so the table is correct again once they have been applied.
type ResourceGap struct {
	Resource
	Gap
}

type resourceState struct {
	rows      map[Key]*row
	existing  int                        // rows that are not deleted
	snapshots map[string]*snapshotState  // by ID
	newest    map[string]*snapshotState  // the newest that has ended, by namespace; "" for all
	scopes    map[string]*watermarkScope // by namespace; "" for all; only those that have watermarks
}

// row is the newest record of one key. It is kept after the object is deleted, because a repeated older record must not
// restore the object.
type row struct {
	version
	body        json.RawMessage
	id          string // of the record
	readVersion string // of the record
	observedAt  time.Time
	snapshotID  string  // the last snapshot that contained this key
	uncertain   bool    // deleted, but the version may be of another state: history was lost
	peak        string  // the newest version of the cluster that a record of the key was read at
	emitted     version // as it was emitted; a gap may lower that of the row
	behind      bool    // the row is older than peak: records are being repeated
}

// version is one state of a key.
type version struct {
	uid, resourceVersion string
	deleted              bool
}

// Apply applies the next record. Unknown types are ignored, because new types may be added, and dead letters, which were not
// delivered.
func (t *Table) Apply(r Record) error {
	if r.DeadLetter != nil { // 9
		return nil
	}
	switch r.Type {
	case "added", "updated", "deleted", "snapshot", "sync":
		return t.resourceFor(r.resourceName()).applyObject(r)
	case "snapshot.begin":
		t.resourceFor(r.resourceName()).snapshotFor(r.Snapshot.ID).namespace = r.Namespace
	case "snapshot.end":
		t.resourceFor(r.resourceName()).applySnapshotEnd(r)
	case "gap":
		t.gaps = append(t.gaps, ResourceGap{r.resourceName(), *r.Gap})
		t.resourceFor(r.resourceName()).applyGap(*r.Gap)
	case "watermark":
		t.resourceFor(r.resourceName()).applyWatermark(r)
	}
	return nil
}

func (t *Table) resourceFor(name Resource) *resourceState {
	if t.resources == nil {
		t.resources = map[Resource]*resourceState{}
	}
	s := t.resources[name]
	if s == nil {
		s = &resourceState{rows: map[Key]*row{}, snapshots: map[string]*snapshotState{}, newest: map[string]*snapshotState{}, scopes: map[string]*watermarkScope{}}
		t.resources[name] = s
	}
	return s
}

// Get returns an object and reports whether it exists.
func (t *Table) Get(name Resource, key Key) (Object, bool) {
	row := t.resourceFor(name).rows[key]
	if row == nil || row.deleted {
		return Object{}, false
	}
	return Object{key, row.uid, row.resourceVersion, row.body}, true
}

// Len returns the number of existing objects of a resource.
func (t *Table) Len(name Resource) int { return t.resourceFor(name).existing }

// Objects returns all existing objects of a resource, in no particular order.
func (t *Table) Objects(name Resource) []Object {
	var all []Object
	for key := range t.resourceFor(name).rows {
		if o, exists := t.Get(name, key); exists {
			all = append(all, o)
		}
	}
	return all
}

// RemoveDeleted drops the state kept for deleted objects, to bound the memory of a long-lived table. Call it when the
// records read so far can no longer be repeated, for example a day after a restart of the exporter. If one is repeated
// nevertheless, the object reappears until the records that follow have been repeated too.
func (t *Table) RemoveDeleted() {
	for _, s := range t.resources {
		maps.DeleteFunc(s.rows, func(_ Key, row *row) bool { return row.deleted })
	}
}

// Gaps returns all gaps in the order received.
func (t *Table) Gaps() []ResourceGap { return t.gaps }

// applyObject applies a record about an object.
func (s *resourceState) applyObject(r Record) error {
	key := Key{r.Namespace, r.Name}
	old := s.rows[key]
	switch {
	case old == nil:
	case r.ID == old.id: // 4
		return nil
	case old.wasReadAfter(r): // 10
		s.recordDropped(key, old, r)
		s.skipChecksAt(key, old, r)
		return nil
	case old.shouldDrop(r):
		s.skipChecksAt(key, old, r)
		return nil
	}
	if r.Type != "deleted" && len(r.After) == 0 {
		return fmt.Errorf("record %s of type %s has no object", r.ID, r.Type)
	}
	now := &row{
		version: version{r.UID, r.ResourceVersion, r.Type == "deleted"}, body: r.After, id: r.ID,
		readVersion: r.readVersion(), observedAt: r.ObservedAt,
	}
	now.emitted = now.version
	if old != nil {
		now.snapshotID = old.snapshotID
	}
	now.uncertain = r.Coalesced && now.deleted
	if r.Snapshot != nil {
		now.snapshotID = r.Snapshot.ID
		s.snapshotFor(now.snapshotID).recordListed(key, listedVersion{now.version, now.observedAt})
	}
	if s.isSuperseded(key, now) {
		s.setRow(key, nil)
		return nil
	}
	now.trackPeak(old, r)
	s.updateScopes(key, old, now, r)
	s.setRow(key, now)
	return nil
}

// wasReadAfter reports whether the row was read after r by both clocks, that of the cluster and that of the exporters, and
// is newer: r comes from a partition that is read later, because the topic has grown and the object has moved (10).
func (old *row) wasReadAfter(r Record) bool {
	if !r.ObservedAt.Before(old.observedAt) {
		return false
	}
	byVersion := resourceversion.Order(r.ResourceVersion, old.resourceVersion)
	byRead, ordered := resourceversion.Compare(r.readVersion(), old.readVersion)
	switch {
	case !ordered:
		return byVersion < 0
	case byRead == 0:
		return old.deleted || byVersion < 0
	}
	return byRead < 0 && (old.deleted || byVersion <= 0)
}

// recordDropped records for its snapshot a record that is dropped because the row was read after it.
func (s *resourceState) recordDropped(key Key, old *row, r Record) {
	if r.Snapshot == nil {
		return
	}
	if old.snapshotID == "" {
		old.snapshotID = r.Snapshot.ID
	}
	f := s.snapshotFor(r.Snapshot.ID)
	if known, has := f.listed[key]; !has || !r.ObservedAt.Before(known.observedAt) {
		f.recordListed(key, listedVersion{version{r.UID, r.ResourceVersion, r.Type == "deleted"}, r.ObservedAt})
	}
}

// isSuperseded reports whether a row is older than a snapshot that has ended and lacks it. Such a record comes from a
// partition that is read later, or is repeated.
func (s *resourceState) isSuperseded(key Key, now *row) bool {
	for _, namespace := range []string{"", key.Namespace} {
		if f := s.newest[namespace]; f != nil && !now.deleted && f.supersedes(key, now) {
			return true
		}
	}
	return false
}

// setRow sets the newest row of a key; nil removes it.
func (s *resourceState) setRow(key Key, now *row) {
	if old := s.rows[key]; old != nil && !old.deleted {
		s.existing--
	}
	if now == nil {
		if old := s.rows[key]; old != nil {
			gone := &row{version: old.version, emitted: old.emitted}
			gone.deleted, gone.emitted.deleted = true, true
			s.updateScopes(key, old, gone, Record{Coalesced: true})
		}
		delete(s.rows, key)
		return
	}
	if !now.deleted {
		s.existing++
	}
	s.rows[key] = now
}

// shouldDrop reports whether r, which is another record than that of the row, must be dropped as an older one. Comments give
// the numbers of the rules in docs/consuming.md.
func (old *row) shouldDrop(r Record) bool {
	switch {
	case r.Coalesced || r.Snapshot != nil && r.Snapshot.ID != old.snapshotID: // 5, 6
		return false
	case old.deleted && r.UID == old.uid && r.ResourceVersion == old.resourceVersion && r.Snapshot == nil: // 4
		return true
	}
	return !old.uncertain && resourceversion.Order(r.ResourceVersion, old.resourceVersion) < 0 // 4, 5
}

// applyGap applies a gap. If it ends before it starts, the cluster was restored from a backup: higher versions are lowered
// to the end of the gap, so that reused versions are not dropped as old. What was read at them loses its time: it comes
// before whatever is read at that version, by any clock.
func (s *resourceState) applyGap(g Gap) {
	if resourceversion.Order(g.To, g.From) >= 0 {
		return
	}
	lower := func(version *string) {
		if resourceversion.Order(*version, g.To) > 0 {
			*version = g.To
		}
	}
	lowerRead := func(version *string, at *time.Time) {
		if *version == g.To || resourceversion.Order(*version, g.To) > 0 {
			*version, *at = g.To, time.Time{}
		}
	}
	for _, row := range s.rows {
		lower(&row.resourceVersion)
		lowerRead(&row.readVersion, &row.observedAt)
		lower(&row.peak)
		row.behind = false
	}
	for _, f := range s.snapshots {
		lowerRead(&f.position, &f.endedAt)
	}
	s.resetSums()
}

// snapshotState is one snapshot. It keeps the listed versions until count and digest are verified.
type snapshotState struct {
	id        string
	namespace string // "" for all namespaces
	ended     *Snapshot
	endedAt   time.Time
	position  string // of ended, unless a gap has lowered it
	verified  bool

	listed   map[Key]listedVersion // newest of each object; nil once verified
	existing int                   // of listed: those that are not deleted
	digest   digest                // of these
}

// listedVersion is a version of an object in a snapshot.
type listedVersion struct {
	version
	observedAt time.Time
}

// SnapshotStatus describes a snapshot.
type SnapshotStatus struct {
	Resource
	Namespace, ID string
	Ended         bool // the end was received
	Verified      bool // count and digest match the end; false while other partitions lag behind
}

// Snapshots returns all snapshots received, in no particular order.
func (t *Table) Snapshots() []SnapshotStatus {
	var all []SnapshotStatus
	for name, s := range t.resources {
		for id, f := range s.snapshots {
			all = append(all, SnapshotStatus{name, f.namespace, id, f.ended != nil, f.verified})
		}
	}
	return all
}

func (s *resourceState) snapshotFor(id string) *snapshotState {
	f := s.snapshots[id]
	if f == nil {
		f = &snapshotState{id: id, listed: map[Key]listedVersion{}}
		s.snapshots[id] = f
	}
	return f
}

// applySnapshotEnd removes the objects that the snapshot lacks and that were read before it: they were deleted while the
// exporter had no journal.
func (s *resourceState) applySnapshotEnd(r Record) {
	f := s.snapshotFor(r.Snapshot.ID)
	if f.ended != nil {
		return
	}
	f.namespace, f.ended, f.endedAt, f.position = r.Namespace, r.Snapshot, r.ObservedAt, r.Snapshot.Position
	if last := s.newest[r.Namespace]; last == nil || isReadBefore(last.position, f.position, last.endedAt, f.endedAt) {
		s.newest[r.Namespace] = f
	}
	for key, row := range s.rows {
		if !row.deleted && f.supersedes(key, row) {
			s.setRow(key, nil)
		}
	}
	s.skipChecks()
	f.verifyDigest()
}

// supersedes reports whether the snapshot would contain the object, in this or a later version, if it still existed.
func (f *snapshotState) supersedes(key Key, row *row) bool {
	return row.snapshotID != f.id && (f.namespace == "" || f.namespace == key.Namespace) &&
		resourceversion.Order(row.resourceVersion, f.position) <= 0 &&
		isReadBefore(row.readVersion, f.position, row.observedAt, f.endedAt)
}

// recordListed records the newest version of an object in the snapshot.
func (f *snapshotState) recordListed(key Key, v listedVersion) {
	if f.verified {
		return
	}
	if old, has := f.listed[key]; has && !old.deleted {
		f.digest.addObject(key, old.version, -1)
		f.existing--
	}
	if f.listed[key] = v; !v.deleted {
		f.digest.addObject(key, v.version, 1)
		f.existing++
	}
	f.verifyDigest()
}

// verifyDigest compares count and digest with the end record. A mismatch may be temporary, because other partitions can lag
// behind.
func (f *snapshotState) verifyDigest() {
	if f.ended != nil && f.existing == f.ended.Count && f.digest.String() == f.ended.Digest {
		f.verified, f.listed = true, nil
	}
}

// digest is the sum, word by word and modulo 2⁶⁴, of the SHA-256 of "namespace/name/uid/resourceVersion" of each object.
type digest [4]uint64

// addObject adds an object (sign 1) or removes it (sign -1).
func (d *digest) addObject(key Key, v version, sign int64) {
	sum := sha256.Sum256([]byte(key.Namespace + "/" + key.Name + "/" + v.uid + "/" + v.resourceVersion))
	for i := range d {
		d[i] += uint64(sign) * binary.BigEndian.Uint64(sum[8*i:])
	}
}

func (d *digest) String() string {
	var b [32]byte
	for i, word := range d {
		binary.BigEndian.PutUint64(b[8*i:], word)
	}
	return hex.EncodeToString(b[:])
}
