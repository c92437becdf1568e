package verify

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/shape/diff"
)

// keptWorld has the objects a and b, and had the object gone, in a format. It replaces records of a key if replaces is set,
// as a compacted topic and a bucket do.
func keptWorld(t *testing.T, f format.Format, replaces bool) *world {
	w := newWorld(t, 1, 1)
	w.format, w.keyed, w.replaces = f, true, replaces
	w.change("a")
	w.change("b")
	w.change("gone")
	c := *w.lanes[0][2].change
	w.version++
	c.Type, c.ResourceVersion, c.After, c.Before = event.Deleted, "150", nil, c.After
	w.version = 150
	delete(w.now, "gone")
	w.appendRecord(0, &c)
	w.mark()
	return w
}

// plant adds a record, and a watermark behind it.
func (w *world) plant(r stored) {
	last := w.lanes[0][len(w.lanes[0])-1]
	r.at = last.at + 1
	if r.change == nil {
		r.change = &event.Change{}
	}
	w.lanes[0] = append(w.lanes[0], r)
	w.mark()
}

// under returns the key of an object.
func under(name string) string {
	return (&event.Change{Cluster: "c", Resource: pods, Namespace: "ns", Name: name}).Key()
}

// TestWhateverStandsUnderAKeyAndIsNoRecordOfItsObjectIsNamedAtThatKey in each format, on a bus that replaces records and on
// one that does not, where only readers of rows use the last record of a key; and nothing else is named.
func TestWhateverStandsUnderAKeyAndIsNoRecordOfItsObjectIsNamedAtThatKey(t *testing.T) {
	type manipulation struct {
		plant  func(w *world) stored
		named  string // the object; "": none
		kind   Kind
		always bool // on every bus and in every format
	}
	first := func(w *world, i int) stored { return w.lanes[0][i] }
	foreign := func(key, value string) func(*world) stored {
		return func(*world) stored { return stored{key: key, value: []byte(value)} }
	}
	for name, m := range map[string]manipulation{
		"bare tombstone":                    {foreign(under("a"), ""), "a", Missing, false},
		"bare tombstone of a deleted":       {foreign(under("gone"), ""), "", "", false},
		"bare tombstone of an unknown":      {foreign(under("never"), ""), "", "", false},
		"junk":                              {foreign(under("a"), "junk"), "a", Malformed, false},
		"junk in braces":                    {foreign(under("a"), `{"a":`), "a", Malformed, false},
		"number":                            {foreign(under("a"), "7"), "a", Malformed, false},
		"null":                              {foreign(under("a"), "null"), "a", Malformed, false},
		"list":                              {foreign(under("a"), "[]"), "a", Malformed, false},
		"empty object":                      {foreign(under("a"), "{}"), "a", Malformed, false},
		"junk under a deleted":              {foreign(under("gone"), "{}"), "gone", Malformed, false},
		"junk under an unknown":             {foreign(under("never"), "{}"), "never", Malformed, false},
		"row without our headers":           {func(w *world) stored { return stored{key: under("a"), value: bodyOf("a", "u", 9)} }, "a", Malformed, false},
		"other's row under the key":         {func(w *world) stored { r := first(w, 1); r.key = under("a"); return r }, "a", Malformed, false},
		"other's row under a deleted":       {func(w *world) stored { r := first(w, 1); r.key = under("gone"); return r }, "gone", Malformed, false},
		"other's delete under the key":      {func(w *world) stored { r := first(w, 3); r.key = under("a"); return r }, "a", "", false},
		"watermark under the key":           {func(w *world) stored { r := first(w, 4); r.key = under("a"); return r }, "a", "", false},
		"same ID with altered content":      {func(w *world) stored { return altered(first(w, 0)) }, "a", Malformed, false},
		"row of another cluster's key":      {foreign(strings.Replace(under("a"), "c/", "d/", 1), "{}"), "", "", false},
		"junk under another resource":       {foreign("c/apps/deployments/ns/a", "{}"), "", "", false},
		"junk under a key of no object":     {foreign("c/core/pods/ns/", "{}"), "", "", false},
		"junk under no key":                 {foreign("", "{}"), "", "", false},
		"junk under a foreign key":          {foreign("theirs", "{}"), "", "", false},
		"repetition of the newest":          {func(w *world) stored { return first(w, 0) }, "", "", false},
		"repetition of the delete":          {func(w *world) stored { return first(w, 3) }, "", "", false},
		"junk, and the row behind it":       {func(w *world) stored { w.plant(stored{key: under("a"), value: []byte("x")}); return first(w, 0) }, "", "", false},
		"junk of a deleted, and the delete": {func(w *world) stored { w.plant(stored{key: under("gone"), value: []byte("x")}); return first(w, 3) }, "", "", false},
		"added object": {func(w *world) stored {
			return w.encode(0, &event.Change{Type: event.Added, Cluster: "c", Resource: pods, Namespace: "ns", Name: "new", UID: "n", ResourceVersion: "151", After: bodyOf("new", "n", 151)})
		}, "new", Ghost, true},
		"newer version": {func(w *world) stored {
			c := *first(w, 0).change
			c.Type, c.ResourceVersion, c.After, c.Before = event.Updated, "149", bodyOf("a", c.UID, 149), c.After
			return w.encode(0, &c)
		}, "a", Different, true},
		"another uid": {func(w *world) stored {
			c := *first(w, 0).change
			c.ResourceVersion, c.UID, c.After = "149", "other", bodyOf("a", "other", 149)
			return w.encode(0, &c)
		}, "a", Different, true},
		"delete": {func(w *world) stored {
			c := *first(w, 0).change
			c.Type, c.ResourceVersion, c.Before, c.After = event.Deleted, "149", c.After, nil
			return w.encode(0, &c)
		}, "a", Missing, true},
	} {
		for _, f := range format.All() {
			for _, replaces := range []bool{false, true} {
				t.Run(strings.Join([]string{name, f.String(), map[bool]string{true: "replacing", false: "keeping"}[replaces]}, "/"), func(t *testing.T) {
					w := keptWorld(t, f, replaces)
					w.plant(m.plant(w))
					expected := m.named
					if !m.always && !replaces && !f.HasRows() {
						expected = "" // readers of the history pass over it
					}
					w.bodies = f != format.Upsert // what is named there needs none
					r := w.verify()
					named := slices.ContainsFunc(r.Differences, func(d Difference) bool {
						return d.Name == expected && (m.kind == "" || d.Kind == m.kind || f == format.Debezium && m.kind == Different)
					})
					other := slices.ContainsFunc(r.Differences, func(d Difference) bool { return d.Name != expected })
					if other || named != (expected != "") || (r.Outcome == OutcomeEqual) != (expected == "") {
						t.Errorf("want %q %s, got %+v", expected, m.kind, r)
					}
				})
			}
		}
	}
}

// altered returns a record with the same ID and another content.
func altered(r stored) stored {
	r.value = bytes.ReplaceAll(r.value, []byte(`"step":`), []byte(`"step":9`))
	return r
}

// TestTheVersionInWhichAResourceIsServedIsNoDifference: objects that did not change since have the one before.
func TestTheVersionInWhichAResourceIsServedIsNoDifference(t *testing.T) {
	before, now := []byte(`{"apiVersion":"x/v1","kind":"A","spec":1}`), []byte(`{"apiVersion":"x/v2","kind":"A","spec":1}`)
	if diff.Hash(before, "apiVersion") != diff.Hash(now, "apiVersion") || firstPath(before, now) != samePath {
		t.Errorf("%s differs from %s at %s", before, now, firstPath(before, now))
	}
	if other := []byte(`{"apiVersion":"x/v2","kind":"A","spec":2}`); diff.Hash(before, "apiVersion") == diff.Hash(other, "apiVersion") || firstPath(before, other) != "/spec" {
		t.Errorf("%s does not differ from %s: %s", before, other, firstPath(before, other))
	}
}
