package consumer

import (
	"encoding/json"
	"fmt"
)

// Object is an object that exists.
type Object struct {
	Key
	UID, ResourceVersion string
	Body                 json.RawMessage
}

// Table is what exists, as far as it has been told. The zero value is empty.
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
	restored  string            // position to which the last gap went back, if it did
}

// row is the newest that was told of one key. It outlives its object: an older record that comes once more must not bring
// the object back.
type row struct {
	version
	body      json.RawMessage
	under     string // ID of the snapshot that told of this key last
	coalesced string // ID of the coalesced change that was taken last
	floor     string // of an object that a backup did not hold: another one under its name is newer than that
}

// version is one state of one key.
type version struct {
	uid, resourceVersion string
	gone                 bool
}

// Apply takes the next record. Types that it does not know change nothing, as they may be added.
func (t *Table) Apply(r Record) error {
	switch r.Type {
	case "added", "updated", "deleted", "snapshot":
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
		s = &resource{rows: map[Key]*row{}, snapshots: map[string]*frame{}}
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

// Gaps returns the gaps in the order in which they came.
func (t *Table) Gaps() []Loss { return t.gaps }

// object takes a record about an object.
func (s *resource) object(r Record) error {
	key := Key{r.Namespace, r.Name}
	old := s.rows[key]
	if r.Snapshot != nil {
		s.frame(r.Snapshot.ID) // its begin may be in a partition that is read later
	}
	if old.outdates(r) {
		return nil
	}
	if r.Type != "deleted" && len(r.After) == 0 {
		return fmt.Errorf("%s tells of an object and does not show it", r.ID)
	}
	now := &row{version: version{r.UID, r.ResourceVersion, r.Type == "deleted"}, body: r.After}
	if old != nil {
		now.under, now.coalesced = old.under, old.coalesced
	}
	if r.Coalesced {
		now.coalesced = r.ID
		if s.restored != "" && r.Type == "deleted" && compare(r.ResourceVersion, s.restored) > 0 {
			now.floor = s.restored
		}
	}
	if r.Snapshot != nil {
		now.under = r.Snapshot.ID
	}
	s.put(key, now)
	if f := s.snapshots[now.under]; f != nil {
		f.told(key, now.version, r.Snapshot != nil)
	}
	return nil
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

// outdates says that r is not news: it came before, or something newer did. Where history was lost, or a snapshot was
// begun anew, the resourceVersion may go back, as it does when a cluster is restored from a backup.
func (old *row) outdates(r Record) bool {
	if old == nil {
		return false
	}
	if r.Coalesced && r.ID == old.coalesced {
		return true
	}
	if r.Snapshot != nil && r.Snapshot.ID != old.under {
		return false
	}
	if old.gone && r.UID == old.uid && r.ResourceVersion == old.resourceVersion {
		return true
	}
	newest := old.resourceVersion
	if old.floor != "" && r.UID != old.uid {
		newest = old.floor
	}
	return !r.Coalesced && compare(r.ResourceVersion, newest) < 0
}

// lose takes a gap. One that ends before it begins is a cluster that was restored: what was ahead of it is forgotten, so
// that the versions which are counted anew are not taken for old ones.
func (s *resource) lose(g Gap) {
	s.restored = ""
	if compare(g.To, g.From) >= 0 {
		return
	}
	s.restored = g.To
	for _, row := range s.rows {
		if compare(row.resourceVersion, g.To) > 0 {
			row.resourceVersion = g.To
		}
	}
}
