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
// that do not exist any more, too, some 200 bytes each, because records may come again: see [Table.ForgetDeleted].
type Table struct {
	resources map[Resource]*resource
	gaps      []Loss
}

// Loss is a gap: within it, objects may have come and gone, and others may have been versions that nobody will know. What
// still differs afterwards is told behind it, so the table is right again once that has come.
type Loss struct {
	Resource
	Gap
}

type resource struct {
	rows      map[Key]*row
	exist     int               // rows that are not gone
	snapshots map[string]*frame // by ID
	newest    map[string]*frame // that has ended, by namespace; "" for all
}

// row is the newest record of one key. It outlives its object: an older record that comes once more must not bring the
// object back.
type row struct {
	version
	body       json.RawMessage
	id         string // of the record
	observedAt time.Time
	under      string // ID of the snapshot that had this key last
	vague      bool   // gone, with the version of something else: history was lost
}

// version is one state of one key.
type version struct {
	uid, resourceVersion string
	gone                 bool
}

// Apply takes the next record. Types that it does not know change nothing, as they may be added.
func (t *Table) Apply(r Record) error {
	switch r.Type {
	case "added", "updated", "deleted", "snapshot", "sync":
		return t.of(r.resource()).object(r)
	case "snapshot.begin":
		t.of(r.resource()).frame(r.Snapshot.ID).namespace = r.Namespace
	case "snapshot.end":
		t.of(r.resource()).end(r)
	case "gap":
		t.gaps = append(t.gaps, Loss{r.resource(), *r.Gap})
		t.of(r.resource()).lose(*r.Gap)
	}
	return nil
}

func (t *Table) of(name Resource) *resource {
	if t.resources == nil {
		t.resources = map[Resource]*resource{}
	}
	s := t.resources[name]
	if s == nil {
		s = &resource{rows: map[Key]*row{}, snapshots: map[string]*frame{}, newest: map[string]*frame{}}
		t.resources[name] = s
	}
	return s
}

// Get returns an object, if it exists.
func (t *Table) Get(name Resource, key Key) (Object, bool) {
	row := t.of(name).rows[key]
	if row == nil || row.gone {
		return Object{}, false
	}
	return Object{key, row.uid, row.resourceVersion, row.body}, true
}

// Len returns how many objects of a resource exist.
func (t *Table) Len(name Resource) int { return t.of(name).exist }

// Objects returns everything of a resource that exists, in no order.
func (t *Table) Objects(name Resource) []Object {
	var all []Object
	for key := range t.of(name).rows {
		if o, exists := t.Get(name, key); exists {
			all = append(all, o)
		}
	}
	return all
}

// ForgetDeleted forgets the objects that do not exist any more, for a table that lives long. Call it when nothing that came
// until now can come again: a day after a restart of the exporter, say. What comes again anyway would be shown until the
// records behind it have come again too.
func (t *Table) ForgetDeleted() {
	for _, s := range t.resources {
		maps.DeleteFunc(s.rows, func(_ Key, row *row) bool { return row.gone })
	}
}

// Gaps returns the gaps in the order in which they came.
func (t *Table) Gaps() []Loss { return t.gaps }

// object takes a record about an object.
func (s *resource) object(r Record) error {
	key := Key{r.Namespace, r.Name}
	old := s.rows[key]
	if old.outdates(r) {
		return nil
	}
	if r.Type != "deleted" && len(r.After) == 0 {
		return fmt.Errorf("record %s of type %s has no object", r.ID, r.Type)
	}
	now := &row{version: version{r.UID, r.ResourceVersion, r.Type == "deleted"}, body: r.After, id: r.ID, observedAt: r.ObservedAt}
	if old != nil {
		now.under = old.under
	}
	now.vague = r.Coalesced && now.gone
	if r.Snapshot != nil {
		now.under = r.Snapshot.ID
		s.frame(now.under).told(key, now.version)
	}
	if s.superseded(key, now) {
		now = nil
	}
	s.put(key, now)
	return nil
}

// superseded says that a row comes from before a snapshot that has ended and did not have it: a partition that is read
// later, or a repetition.
func (s *resource) superseded(key Key, now *row) bool {
	for _, namespace := range []string{"", key.Namespace} {
		if f := s.newest[namespace]; f != nil && !now.gone && f.supersedes(key, now) {
			return true
		}
	}
	return false
}

// put gives a key its newest row; nil forgets it.
func (s *resource) put(key Key, now *row) {
	if old := s.rows[key]; old != nil && !old.gone {
		s.exist--
	}
	if now == nil {
		delete(s.rows, key)
		return
	}
	if !now.gone {
		s.exist++
	}
	s.rows[key] = now
}

// outdates says that r is no news: it came before, or something newer did. The numbers are those of the rules in
// docs/consuming.md.
func (old *row) outdates(r Record) bool {
	switch {
	case old == nil:
		return false
	case r.ID == old.id: // 4
		return true
	case r.Coalesced || r.Snapshot != nil && r.Snapshot.ID != old.under: // 5, 6
		return false
	case old.gone && r.UID == old.uid && r.ResourceVersion == old.resourceVersion && r.Snapshot == nil: // 4
		return true
	}
	return !old.vague && compare(r.ResourceVersion, old.resourceVersion) < 0 // 4, 5
}

// lose takes a gap. One that ends before it begins is a cluster that was restored: what was ahead of it is forgotten, so
// that the versions which are counted anew are not taken for old ones.
func (s *resource) lose(g Gap) {
	if compare(g.To, g.From) >= 0 {
		return
	}
	for _, row := range s.rows {
		if compare(row.resourceVersion, g.To) > 0 {
			row.resourceVersion = g.To
		}
	}
}
