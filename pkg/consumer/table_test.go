package consumer

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

var pods = Resource{Cluster: "c", Resource: "pods"}

// told is a record about pods: type, name, uid, resourceVersion.
func told(typ, name, uid, rv string, changes ...func(*Record)) Record {
	r := Record{ID: strings.Join([]string{"c", uid, rv, typ}, "/"), Type: typ, Cluster: "c", Resource: "pods",
		Namespace: "ns", Name: name, UID: uid, ResourceVersion: rv, ObservedAt: time.Unix(1, 0)}
	if typ != "deleted" {
		r.After = json.RawMessage(`{"v":` + rv + `}`)
	}
	for _, change := range changes {
		change(&r)
	}
	return r
}

func left(r *Record) { r.Left = true }

func pass(id string) func(*Record) { return func(r *Record) { r.ID += "/" + id } }

func coalesced(r *Record) { r.Coalesced = true }

func under(id string) func(*Record) {
	return func(r *Record) { r.Snapshot = &Snapshot{ID: id} }
}

// ended is the end of a snapshot over objects, each name, uid and resourceVersion.
func ended(id, position string, objects ...[3]string) Record {
	var d digest
	for _, o := range objects {
		d.add(Key{"ns", o[0]}, version{uid: o[1], resourceVersion: o[2]}, 1)
	}
	return Record{ID: "end/" + id, Type: "snapshot.end", Cluster: "c", Resource: "pods", ResourceVersion: position, ObservedAt: time.Unix(2, 0),
		Snapshot: &Snapshot{ID: id, Position: position, Count: len(objects), Digest: d.String()}}
}

func gap(from, to string) Record {
	return Record{ID: "gap", Type: "gap", Cluster: "c", Resource: "pods", ResourceVersion: to, Gap: &Gap{From: from, To: to}}
}

// table is what the records leave.
func table(t *testing.T, records ...Record) (*Table, string) {
	t.Helper()
	var table Table
	for _, r := range records {
		if err := table.Apply(r); err != nil {
			t.Fatal(err)
		}
	}
	var all []string
	for _, o := range table.Objects(pods) {
		all = append(all, o.Name+"@"+o.ResourceVersion)
	}
	slices.Sort(all)
	return &table, strings.Join(all, " ")
}

func TestTheTableHoldsTheNewestOfEachObject(t *testing.T) {
	for name, c := range map[string]struct {
		records []Record
		want    string
	}{
		"a life":                           {[]Record{told("added", "a", "1", "5"), told("updated", "a", "1", "6")}, "a@6"},
		"a death":                          {[]Record{told("added", "a", "1", "5"), told("added", "b", "2", "6"), told("deleted", "a", "1", "7")}, "b@6"},
		"another life under the same name": {[]Record{told("added", "a", "1", "5"), told("deleted", "a", "1", "6"), told("added", "a", "2", "7")}, "a@7"},
		"an old version once more":         {[]Record{told("added", "a", "1", "5"), told("updated", "a", "1", "6"), told("added", "a", "1", "5")}, "a@6"},
		"an old version after the delete":  {[]Record{told("added", "a", "1", "5"), told("deleted", "a", "1", "6"), told("added", "a", "1", "5")}, ""},
		"a delete of the last known state, and that state once more": {
			[]Record{told("added", "a", "1", "5"), told("deleted", "a", "1", "5", coalesced), told("added", "a", "1", "5")}, ""},
		"a coalesced change once more, and what came behind it": {
			[]Record{told("updated", "a", "1", "5", coalesced), told("updated", "a", "1", "6"), told("updated", "a", "1", "5", coalesced), told("updated", "a", "1", "6")}, "a@6"},
		"an object that a backup brings back in the version in which it was deleted": {
			[]Record{told("added", "a", "1", "5"), told("deleted", "a", "1", "5", coalesced), gap("60", "40"), told("added", "a", "1", "5", coalesced)}, "a@5"},
		"an object that leaves by edited rules, and enters again": {
			[]Record{told("added", "a", "1", "5"), told("deleted", "a", "1", "5", coalesced, left, pass("1")), told("added", "a", "1", "5", coalesced, pass("2"))}, "a@5"},
		"that, once more": {
			[]Record{told("added", "a", "1", "5"), told("deleted", "a", "1", "5", coalesced, left, pass("1")), told("added", "a", "1", "5", coalesced, pass("2")),
				told("deleted", "a", "1", "5", coalesced, left, pass("1")), told("added", "a", "1", "5", coalesced, pass("2"))}, "a@5"},
		"a resource that rules leave out and take in again, once more": {
			[]Record{told("added", "a", "1", "5"), told("deleted", "a", "1", "5", coalesced, left, pass("1")), told("snapshot", "a", "1", "5", under("s")),
				told("deleted", "a", "1", "5", coalesced, left, pass("1")), told("snapshot", "a", "1", "5", under("s"))}, "a@5"},
		"an object that edited rules leave out and take in within one snapshot": {
			[]Record{told("snapshot", "a", "1", "5", under("s")), told("deleted", "a", "1", "5", coalesced, left, under("s"), pass("1")),
				told("snapshot", "a", "1", "5", under("s"), pass("2"))}, "a@5"},
		"an object that lost its label, then enters with the resource, once more": {
			[]Record{told("added", "a", "1", "5"), told("deleted", "a", "1", "6"), told("snapshot", "a", "1", "6", under("s")),
				told("deleted", "a", "1", "6"), told("snapshot", "a", "1", "6", under("s"))}, "a@6"},
		"resync":                       {[]Record{told("added", "a", "1", "5"), told("sync", "a", "1", "5", pass("1")), told("sync", "b", "2", "3", pass("1"))}, "a@5 b@3"},
		"resync that comes again late": {[]Record{told("sync", "a", "1", "5", pass("1")), told("deleted", "a", "1", "6"), told("sync", "a", "1", "5", pass("1"))}, ""},
		"a snapshot after a lost journal": {
			[]Record{told("updated", "a", "1", "5"), gap("", "9"), told("snapshot", "a", "1", "5", under("s")), ended("s", "9", [3]string{"a", "1", "5"})}, "a@5"},
		"a snapshot of a cluster that is restored as well": {
			[]Record{told("updated", "a", "1", "50"), gap("", "40"), told("snapshot", "a", "1", "5", under("s")), ended("s", "40", [3]string{"a", "1", "5"})}, "a@5"},
		"a cluster restored from a backup": {
			[]Record{told("added", "a", "1", "50"), told("added", "b", "2", "51"), told("deleted", "b", "2", "52"), gap("60", "40"),
				told("updated", "a", "1", "30", coalesced), told("updated", "a", "1", "41"), told("added", "b", "3", "42")}, "a@41 b@42"},
		"a name that comes again after the backup did not hold it": {
			[]Record{told("added", "b", "2", "51"), gap("60", "40"), told("deleted", "b", "2", "51", coalesced), told("added", "b", "3", "42")}, "b@42"},
		"an object that the backup did not hold, once more": {
			[]Record{told("added", "b", "2", "51"), gap("60", "40"), told("deleted", "b", "2", "51", coalesced), told("added", "b", "2", "51")}, ""},
		"a delete in a later gap, and all of it once more": {
			[]Record{told("added", "c", "2", "74"), told("deleted", "c", "2", "75"), told("added", "c", "3", "76"), gap("76", "80"), told("deleted", "c", "3", "76", coalesced),
				told("added", "c", "2", "74"), told("deleted", "c", "2", "75"), told("added", "c", "3", "76"), gap("76", "80"), told("deleted", "c", "3", "76", coalesced)}, ""},
		"a type that is not known yet": {[]Record{told("added", "a", "1", "5"), {ID: "x", Type: "remarked"}}, "a@5"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, got := table(t, c.records...); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestTheEndOfASnapshotDropsWhatItDidNotTell(t *testing.T) {
	_, got := table(t,
		told("added", "gone", "1", "5"), told("added", "kept", "2", "6"), gap("", "20"),
		told("snapshot", "kept", "2", "6", under("s")), told("added", "newer", "3", "21"),
		ended("s", "20", [3]string{"kept", "2", "6"}))
	if want := "kept@6 newer@21"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestASnapshotOfANamespaceDropsNothingElsewhere(t *testing.T) {
	end := ended("s", "20")
	end.Namespace = "other"
	if _, got := table(t, told("added", "a", "1", "5"), end); got != "a@5" {
		t.Errorf("got %q", got)
	}
}

// TestASnapshotIsVerifiedWhateverPartitionComesFirst plays a snapshot during which objects change in every order that two
// partitions can have: the objects are in one, the control records in the other.
func TestASnapshotIsVerifiedWhateverPartitionComesFirst(t *testing.T) {
	objects := []Record{
		told("snapshot", "a", "1", "5", under("s")), told("snapshot", "b", "2", "6", under("s")), told("snapshot", "c", "3", "7", under("s")),
		told("updated", "a", "1", "9", coalesced, under("s")), // a restart within the snapshot, at position 10
		told("deleted", "c", "3", "7", coalesced, under("s")),
		told("updated", "b", "2", "11"), told("deleted", "a", "1", "12"), // live, after the position
	}
	end := ended("s", "10", [3]string{"a", "1", "9"}, [3]string{"b", "2", "6"})
	for at := range len(objects) + 1 {
		records := slices.Insert(slices.Clone(objects), at, end)
		table, got := table(t, records...)
		frames := table.Snapshots()
		if got != "b@11" || len(frames) != 1 || !frames[0].Verified {
			t.Errorf("the end at %d: %q, %+v", at, got, frames)
		}
	}
}

func TestASnapshotThatLacksAnObjectIsNotVerified(t *testing.T) {
	for name, end := range map[string]Record{
		"one more":        ended("s", "10", [3]string{"a", "1", "5"}, [3]string{"b", "2", "6"}),
		"another version": ended("s", "10", [3]string{"a", "1", "6"}),
	} {
		table, _ := table(t, told("snapshot", "a", "1", "5", under("s")), end)
		if frames := table.Snapshots(); len(frames) != 1 || !frames[0].Ended || frames[0].Verified {
			t.Errorf("%s: %+v", name, frames)
		}
	}
}

func TestGapsAreRemembered(t *testing.T) {
	table, _ := table(t, gap("5", "9"))
	if gaps := table.Gaps(); len(gaps) != 1 || gaps[0].Resource != pods || gaps[0].To != "9" {
		t.Errorf("%+v", gaps)
	}
}

func TestWhatIsNoRecordIsRefused(t *testing.T) {
	for _, value := range []string{"", "null", "[]", `{"type":"added"}`, `{"id":1}`, `{"id":"x","type":"gap"}`} {
		if _, err := Parse([]byte(value)); err == nil {
			t.Errorf("%q was taken for a record", value)
		}
	}
	var table Table
	if err := table.Apply(told("added", "a", "1", "5", func(r *Record) { r.After = nil })); err == nil {
		t.Error("an object without a body was taken")
	}
}

func FuzzATableTakesWhatParses(f *testing.F) {
	f.Add([]byte(`{"id":"1","type":"added","name":"a","resourceVersion":"5","after":{}}`), []byte(`{"id":"2","type":"snapshot.end","snapshot":{"id":"s","position":"9"}}`))
	f.Fuzz(func(_ *testing.T, first, second []byte) {
		var table Table
		for _, value := range [][]byte{first, second, first} {
			if r, err := Parse(value); err == nil {
				_ = table.Apply(r) // may refuse, must not panic
			}
		}
		table.Snapshots()
	})
}
