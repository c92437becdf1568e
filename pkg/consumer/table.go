package consumer

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"
)

// Object is an object that exists.
type Object struct {
	Key
	UID, ResourceVersion string
	Body                 json.RawMessage
}

// Table is what exists, as far as the stream has said. The zero value is empty. It remembers the newest version of objects
// that do not exist any more, too, some 200 bytes each, because records may come again: see [Table.RemoveDeleted].
type Table struct {
	resources map[Resource]*resourceState
	gaps      []ResourceGap
}

// ResourceGap is a gap: within it, objects may have come and gone, and others may have been versions that nobody will know. What
// still differs afterwards is told behind it, so the table is right again once that has come.
type ResourceGap struct {
	Resource
	Gap
}

type resourceState struct {
	rows      map[Key]*row
	existing  int                       // rows that are not gone
	snapshots map[string]*snapshotState // by ID
	newest    map[string]*snapshotState // that has ended, by namespace; "" for all
}

// row is the newest record of one key. It outlives its object: an older record that comes once more must not bring the
// object back.
type row struct {
	version
	body       json.RawMessage
	id         string // of the record
	observedAt time.Time
	snapshotID string // ID of the snapshot that had this key last
	uncertain  bool   // gone, with the version of something else: history was lost
}

// version is one state of one key.
type version struct {
	uid, resourceVersion string
	deleted              bool
}

// Apply takes the next record. Types that it does not know change nothing, as they may be added.
func (t *Table) Apply(r Record) error {
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
	}
	return nil
}

func (t *Table) resourceFor(name Resource) *resourceState {
	if t.resources == nil {
		t.resources = map[Resource]*resourceState{}
	}
	s := t.resources[name]
	if s == nil {
		s = &resourceState{rows: map[Key]*row{}, snapshots: map[string]*snapshotState{}, newest: map[string]*snapshotState{}}
		t.resources[name] = s
	}
	return s
}

// Get returns an object, if it exists.
func (t *Table) Get(name Resource, key Key) (Object, bool) {
	row := t.resourceFor(name).rows[key]
	if row == nil || row.deleted {
		return Object{}, false
	}
	return Object{key, row.uid, row.resourceVersion, row.body}, true
}

// Len returns how many objects of a resource exist.
func (t *Table) Len(name Resource) int { return t.resourceFor(name).existing }

// Objects returns everything of a resource that exists, in no order.
func (t *Table) Objects(name Resource) []Object {
	var all []Object
	for key := range t.resourceFor(name).rows {
		if o, exists := t.Get(name, key); exists {
			all = append(all, o)
		}
	}
	return all
}

// RemoveDeleted forgets the objects that do not exist any more, for a table that lives long. Call it when nothing that came
// until now can come again: a day after a restart of the exporter, say. What comes again anyway would be shown until the
// records behind it have come again too.
func (t *Table) RemoveDeleted() {
	for _, s := range t.resources {
		maps.DeleteFunc(s.rows, func(_ Key, row *row) bool { return row.deleted })
	}
}

// Gaps returns the gaps in the order in which they came.
func (t *Table) Gaps() []ResourceGap { return t.gaps }

// applyObject takes a record about an object.
func (s *resourceState) applyObject(r Record) error {
	key := Key{r.Namespace, r.Name}
	old := s.rows[key]
	if old.isCurrentAgainst(r) {
		return nil
	}
	if r.Type != "deleted" && len(r.After) == 0 {
		return fmt.Errorf("record %s of type %s has no object", r.ID, r.Type)
	}
	now := &row{version: version{r.UID, r.ResourceVersion, r.Type == "deleted"}, body: r.After, id: r.ID, observedAt: r.ObservedAt}
	if old != nil {
		now.snapshotID = old.snapshotID
	}
	now.uncertain = r.Coalesced && now.deleted
	if r.Snapshot != nil {
		now.snapshotID = r.Snapshot.ID
		s.snapshotFor(now.snapshotID).recordVersion(key, now.version)
	}
	if s.isSuperseded(key, now) {
		now = nil
	}
	s.setRow(key, now)
	return nil
}

// isSuperseded says that a row comes from before a snapshot that has ended and did not have it: a partition that is read
// later, or a repetition.
func (s *resourceState) isSuperseded(key Key, now *row) bool {
	for _, namespace := range []string{"", key.Namespace} {
		if f := s.newest[namespace]; f != nil && !now.deleted && f.supersedes(key, now) {
			return true
		}
	}
	return false
}

// setRow gives a key its newest row; nil forgets it.
func (s *resourceState) setRow(key Key, now *row) {
	if old := s.rows[key]; old != nil && !old.deleted {
		s.existing--
	}
	if now == nil {
		delete(s.rows, key)
		return
	}
	if !now.deleted {
		s.existing++
	}
	s.rows[key] = now
}

// isCurrentAgainst says that r is no news: it came before, or something newer did. The numbers are those of the rules in
// docs/consuming.md.
func (old *row) isCurrentAgainst(r Record) bool {
	switch {
	case old == nil:
		return false
	case r.ID == old.id: // 4
		return true
	case r.Coalesced || r.Snapshot != nil && r.Snapshot.ID != old.snapshotID: // 5, 6
		return false
	case old.deleted && r.UID == old.uid && r.ResourceVersion == old.resourceVersion && r.Snapshot == nil: // 4
		return true
	}
	return !old.uncertain && compareVersions(r.ResourceVersion, old.resourceVersion) < 0 // 4, 5
}

// applyGap takes a gap. One that ends before it begins is a cluster that was restored: what was ahead of it is forgotten, so
// that the versions which are counted anew are not taken for old ones.
func (s *resourceState) applyGap(g Gap) {
	if compareVersions(g.To, g.From) >= 0 {
		return
	}
	for _, row := range s.rows {
		if compareVersions(row.resourceVersion, g.To) > 0 {
			row.resourceVersion = g.To
		}
	}
}
