package consumer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var pods = Resource{Cluster: "c", Resource: "pods"}

// newRecord returns a record of a Pod: type, name, uid, resourceVersion.
func newRecord(typ, name, uid, rv string, changes ...func(*Record)) Record {
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

func setLeft(r *Record) { r.Left = true }

func inPass(id string) func(*Record) { return func(r *Record) { r.ID += "/" + id } }

func observedAt(seconds int64) func(*Record) {
	return func(r *Record) { r.ObservedAt = time.Unix(seconds, 0) }
}

func inList(version string) func(*Record) { return func(r *Record) { r.ListVersion = version } }

func setCoalesced(r *Record) { r.Coalesced = true }

func inSnapshot(id string) func(*Record) {
	return func(r *Record) { r.Snapshot = &Snapshot{ID: id} }
}

// newSnapshotEnd returns the end of a snapshot over objects, each with name, uid and resourceVersion.
func newSnapshotEnd(id, position string, objects ...[3]string) Record {
	var d digest
	for _, o := range objects {
		d.addObject(Key{"ns", o[0]}, version{uid: o[1], resourceVersion: o[2]}, 1)
	}
	return Record{ID: "end/" + id, Type: "snapshot.end", Cluster: "c", Resource: "pods", ResourceVersion: position, ObservedAt: time.Unix(2, 0),
		Snapshot: &Snapshot{ID: id, Position: position, Count: len(objects), Digest: d.String()}}
}

func newGap(from, to string) Record {
	return Record{ID: "gap", Type: "gap", Cluster: "c", Resource: "pods", ResourceVersion: to, Gap: &Gap{From: from, To: to}}
}

// tableOf applies the records and returns the table and its contents.
func tableOf(t *testing.T, records ...Record) (*Table, string) {
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
		"a life":                           {[]Record{newRecord("added", "a", "1", "5"), newRecord("updated", "a", "1", "6")}, "a@6"},
		"a death":                          {[]Record{newRecord("added", "a", "1", "5"), newRecord("added", "b", "2", "6"), newRecord("deleted", "a", "1", "7")}, "b@6"},
		"another life under the same name": {[]Record{newRecord("added", "a", "1", "5"), newRecord("deleted", "a", "1", "6"), newRecord("added", "a", "2", "7")}, "a@7"},
		"an old version once more":         {[]Record{newRecord("added", "a", "1", "5"), newRecord("updated", "a", "1", "6"), newRecord("added", "a", "1", "5")}, "a@6"},
		"an old version above 64 bits": {[]Record{newRecord("added", "a", "1", "18446744073709551616"),
			newRecord("updated", "a", "1", "18446744073709551617"), newRecord("added", "a", "1", "18446744073709551616")}, "a@18446744073709551617"},
		"an old version after the delete": {[]Record{newRecord("added", "a", "1", "5"), newRecord("deleted", "a", "1", "6"), newRecord("added", "a", "1", "5")}, ""},
		"a delete of the last known state, and that state once more": {
			[]Record{newRecord("added", "a", "1", "5"), newRecord("deleted", "a", "1", "5", setCoalesced), newRecord("added", "a", "1", "5")}, ""},
		"a coalesced change once more, and what came behind it": {
			[]Record{newRecord("updated", "a", "1", "5", setCoalesced), newRecord("updated", "a", "1", "6"), newRecord("updated", "a", "1", "5", setCoalesced), newRecord("updated", "a", "1", "6")}, "a@6"},
		"an object that a backup brings back in the version in which it was deleted": {
			[]Record{newRecord("added", "a", "1", "5"), newRecord("deleted", "a", "1", "5", setCoalesced), newGap("60", "40"), newRecord("added", "a", "1", "5", setCoalesced)}, "a@5"},
		"an object that leaves by edited rules, and enters again": {
			[]Record{newRecord("added", "a", "1", "5"), newRecord("deleted", "a", "1", "5", setCoalesced, setLeft, inPass("1")), newRecord("added", "a", "1", "5", setCoalesced, inPass("2"))}, "a@5"},
		"that, once more": {
			[]Record{newRecord("added", "a", "1", "5"), newRecord("deleted", "a", "1", "5", setCoalesced, setLeft, inPass("1")), newRecord("added", "a", "1", "5", setCoalesced, inPass("2")),
				newRecord("deleted", "a", "1", "5", setCoalesced, setLeft, inPass("1")), newRecord("added", "a", "1", "5", setCoalesced, inPass("2"))}, "a@5"},
		"a resource that rules leave out and take in again, once more": {
			[]Record{newRecord("added", "a", "1", "5"), newRecord("deleted", "a", "1", "5", setCoalesced, setLeft, inPass("1")), newRecord("snapshot", "a", "1", "5", inSnapshot("s")),
				newRecord("deleted", "a", "1", "5", setCoalesced, setLeft, inPass("1")), newRecord("snapshot", "a", "1", "5", inSnapshot("s"))}, "a@5"},
		"an object that edited rules leave out and take in within one snapshot": {
			[]Record{newRecord("snapshot", "a", "1", "5", inSnapshot("s")), newRecord("deleted", "a", "1", "5", setCoalesced, setLeft, inSnapshot("s"), inPass("1")),
				newRecord("snapshot", "a", "1", "5", inSnapshot("s"), inPass("2"))}, "a@5"},
		"an object that lost its label, then enters with the resource, once more": {
			[]Record{newRecord("added", "a", "1", "5"), newRecord("deleted", "a", "1", "6"), newRecord("snapshot", "a", "1", "6", inSnapshot("s")),
				newRecord("deleted", "a", "1", "6"), newRecord("snapshot", "a", "1", "6", inSnapshot("s"))}, "a@6"},
		"resync":                       {[]Record{newRecord("added", "a", "1", "5"), newRecord("sync", "a", "1", "5", inPass("1")), newRecord("sync", "b", "2", "3", inPass("1"))}, "a@5 b@3"},
		"resync that comes again late": {[]Record{newRecord("sync", "a", "1", "5", inPass("1")), newRecord("deleted", "a", "1", "6"), newRecord("sync", "a", "1", "5", inPass("1"))}, ""},
		"a snapshot after a lost journal": {
			[]Record{newRecord("updated", "a", "1", "5"), newGap("", "9"), newRecord("snapshot", "a", "1", "5", inSnapshot("s")), newSnapshotEnd("s", "9", [3]string{"a", "1", "5"})}, "a@5"},
		"a snapshot of a cluster that is restored as well": {
			[]Record{newRecord("updated", "a", "1", "50"), newGap("", "40"), newRecord("snapshot", "a", "1", "5", inSnapshot("s")), newSnapshotEnd("s", "40", [3]string{"a", "1", "5"})}, "a@5"},
		"a cluster restored from a backup": {
			[]Record{newRecord("added", "a", "1", "50"), newRecord("added", "b", "2", "51"), newRecord("deleted", "b", "2", "52"), newGap("60", "40"),
				newRecord("updated", "a", "1", "30", setCoalesced), newRecord("updated", "a", "1", "41"), newRecord("added", "b", "3", "42")}, "a@41 b@42"},
		"a name that comes again after the backup did not hold it": {
			[]Record{newRecord("added", "b", "2", "51"), newGap("60", "40"), newRecord("deleted", "b", "2", "51", setCoalesced), newRecord("added", "b", "3", "42")}, "b@42"},
		"an object that the backup did not hold, once more": {
			[]Record{newRecord("added", "b", "2", "51"), newGap("60", "40"), newRecord("deleted", "b", "2", "51", setCoalesced), newRecord("added", "b", "2", "51")}, ""},
		"a delete in a later gap, and all of it once more": {
			[]Record{newRecord("added", "c", "2", "74"), newRecord("deleted", "c", "2", "75"), newRecord("added", "c", "3", "76"), newGap("76", "80"), newRecord("deleted", "c", "3", "76", setCoalesced),
				newRecord("added", "c", "2", "74"), newRecord("deleted", "c", "2", "75"), newRecord("added", "c", "3", "76"), newGap("76", "80"), newRecord("deleted", "c", "3", "76", setCoalesced)}, ""},
		"an object that is gone after a lost journal, observed by a clock that is ahead": {
			[]Record{newRecord("added", "a", "1", "5", observedAt(9)), newGap("", "20"), newSnapshotEnd("s", "20")}, ""},
		"an object that edited rules take in after the snapshot, observed by a clock that lags": {
			[]Record{newSnapshotEnd("s", "20"), newRecord("added", "a", "1", "5", setCoalesced, inPass("1"), inList("21"), observedAt(1))}, "a@5"},
		"an object in a list of the same version as the snapshot, after it": {
			[]Record{newSnapshotEnd("s", "20"), newRecord("added", "a", "1", "5", setCoalesced, inPass("1"), inList("20"), observedAt(3))}, "a@5"},
		"an object that an exporter without listVersion takes in after the snapshot": {
			[]Record{newSnapshotEnd("s", "20"), newRecord("added", "a", "1", "5", setCoalesced, inPass("1"), observedAt(3))}, "a@5"},
		"an object that an exporter without listVersion listed before the snapshot": {
			[]Record{newRecord("snapshot", "a", "1", "5", inSnapshot("r")), newSnapshotEnd("s", "20")}, ""},
		"versions without an order, gone before the snapshot": {
			[]Record{newRecord("added", "a", "1", "x5"), newSnapshotEnd("s", "x20")}, ""},
		"versions without an order, created after the snapshot": {
			[]Record{newSnapshotEnd("s", "x20"), newRecord("added", "a", "1", "x5", observedAt(3))}, "a@x5"},
		"an object that is gone after a restored backup and a lost journal": {
			[]Record{newRecord("added", "a", "1", "5", setCoalesced, inList("110")), newGap("120", "40"), newGap("", "60"), newSnapshotEnd("s", "60")}, ""},
		"the end of an older snapshot that is read late": {
			[]Record{newRecord("snapshot", "a", "1", "5", inSnapshot("s2"), inList("30")), newSnapshotEnd("s1", "20")}, "a@5"},
		"a type that is not known yet": {[]Record{newRecord("added", "a", "1", "5"), {ID: "x", Type: "remarked"}}, "a@5"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, got := tableOf(t, c.records...); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestSnapshotEndRemovesObjectsItLacks(t *testing.T) {
	_, got := tableOf(t,
		newRecord("added", "gone", "1", "5"), newRecord("added", "kept", "2", "6"), newGap("", "20"),
		newRecord("snapshot", "kept", "2", "6", inSnapshot("s")), newRecord("added", "newer", "3", "21"),
		newSnapshotEnd("s", "20", [3]string{"kept", "2", "6"}))
	if want := "kept@6 newer@21"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNamespaceSnapshotRemovesNothingElsewhere(t *testing.T) {
	end := newSnapshotEnd("s", "20")
	end.Namespace = "other"
	if _, got := tableOf(t, newRecord("added", "a", "1", "5"), end); got != "a@5" {
		t.Errorf("got %q", got)
	}
}

// TestSnapshotIsVerifiedForAnyPartitionOrder applies a snapshot during which objects change, in every order that two
// partitions can have: the objects are in one, the control records in the other.
func TestSnapshotIsVerifiedForAnyPartitionOrder(t *testing.T) {
	objects := []Record{
		newRecord("snapshot", "a", "1", "5", inSnapshot("s")), newRecord("snapshot", "b", "2", "6", inSnapshot("s")), newRecord("snapshot", "c", "3", "7", inSnapshot("s")),
		newRecord("updated", "a", "1", "9", setCoalesced, inSnapshot("s")), // a restart during the snapshot, at position 10
		newRecord("deleted", "c", "3", "7", setCoalesced, inSnapshot("s")),
		newRecord("updated", "b", "2", "11"), newRecord("deleted", "a", "1", "12"), // live, after the position
	}
	end := newSnapshotEnd("s", "10", [3]string{"a", "1", "9"}, [3]string{"b", "2", "6"})
	for at := range len(objects) + 1 {
		records := slices.Insert(slices.Clone(objects), at, end)
		table, got := tableOf(t, records...)
		frames := table.Snapshots()
		if got != "b@11" || len(frames) != 1 || !frames[0].Verified {
			t.Errorf("the end at %d: %q, %+v", at, got, frames)
		}
	}
}

func TestASnapshotThatLacksAnObjectIsNotVerified(t *testing.T) {
	for name, end := range map[string]Record{
		"one more":        newSnapshotEnd("s", "10", [3]string{"a", "1", "5"}, [3]string{"b", "2", "6"}),
		"another version": newSnapshotEnd("s", "10", [3]string{"a", "1", "6"}),
	} {
		table, _ := tableOf(t, newRecord("snapshot", "a", "1", "5", inSnapshot("s")), end)
		if frames := table.Snapshots(); len(frames) != 1 || !frames[0].Ended || frames[0].Verified {
			t.Errorf("%s: %+v", name, frames)
		}
	}
}

// newWatermark returns a copy of a watermark, for the objects a and b in versions 10 and 15.
func newWatermark(sequence uint64, lane, lanes int, position string) Record {
	end := newSnapshotEnd("x", position, [3]string{"a", "ua", "10"}, [3]string{"b", "ub", "15"})
	return Record{ID: fmt.Sprint("watermark/", sequence, lane), Type: "watermark", Cluster: "c", Resource: "pods", ResourceVersion: position,
		Watermark: &Watermark{Epoch: "e", Sequence: sequence, Lane: lane, Lanes: lanes, Algorithm: digestAlgorithm,
			Count: end.Snapshot.Count, Digest: end.Snapshot.Digest}}
}

// TestAWatermarkThatStaysKeepsWhatWasReadForIt has a topic that grew from two partitions to three. The watermark of three is
// read first, and stays while an older one of two completes; the record that stands before both counts for it all the same.
func TestAWatermarkThatStaysKeepsWhatWasReadForIt(t *testing.T) {
	table, _ := tableOf(t,
		newRecord("added", "a", "ua", "10"), newWatermark(1, 0, 2, "20"), // its copy in lane 1 is gone
		newWatermark(3, 2, 3, "30"),
		newRecord("added", "b", "ub", "15"),
		newWatermark(2, 0, 2, "30"), newWatermark(2, 1, 2, "30"),
	)
	for lane, want := range []uint64{2, 3} {
		if all := table.Watermarks(); len(all) != 1 || all[0].Sequence != 2 || all[0].Check != CheckEqual {
			t.Fatalf("before the copy in lane %d the newest watermark is %+v", lane, all)
		}
		if err := table.Apply(newWatermark(3, lane, 3, "30")); err != nil {
			t.Fatal(err)
		}
		if all := table.Watermarks(); all[0].Sequence != want || all[0].Check != CheckEqual {
			t.Errorf("after the copy in lane %d the newest watermark is %+v", lane, all[0])
		}
	}
}

func TestGapsAreKept(t *testing.T) {
	table, _ := tableOf(t, newGap("5", "9"))
	if gaps := table.Gaps(); len(gaps) != 1 || gaps[0].Resource != pods || gaps[0].To != "9" {
		t.Errorf("%+v", gaps)
	}
}

func TestInvalidRecordsAreRejected(t *testing.T) {
	for _, value := range []string{"", "null", "[]", `{"type":"added"}`, `{"id":1}`, `{"id":"x","type":"gap"}`} {
		if _, err := Parse([]byte(value)); err == nil {
			t.Errorf("%q was accepted as a record", value)
		}
	}
	var table Table
	if err := table.Apply(newRecord("added", "a", "1", "5", func(r *Record) { r.After = nil })); err == nil {
		t.Error("a record without an object was accepted")
	}
}

// FuzzRecordsAreDecodedAsByEncodingJSON compares what is decoded, unless names differ in case only: those are other members.
func FuzzRecordsAreDecodedAsByEncodingJSON(f *testing.F) {
	for _, value := range []string{
		`{"id":"1","type":"added","name":"a","resourceVersion":"5","observedAt":"2026-01-02T03:04:05.678Z","after":{"a":["\u00e9"]}}`,
		`{"id":"2","type":"snapshot.end","snapshot":{"id":"s","position":"9","count":3,"digest":"x"},"coalesced":true}`,
		`{"id":"3","type":"watermark","watermark":{"epoch":"e","sequence":1,"lanes":2},"left":null,"name":null} `,
		`{"id":"\ud83d\ude00\n","type":"gap","gap":{"from":"1"},"gap":{"to":"2"},"id":"4"}`,
		"{\"id\":\"\xff\xff\",\"type\":\"x\"}", `{"id":1}`, `{"id":"x"`, `{"id":"x"} 1`, `null`, `{"observedAt":3}`,
	} {
		f.Add([]byte(value))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		var members map[string]json.RawMessage
		if json.Unmarshal(value, &members) == nil {
			for name := range members {
				if slices.ContainsFunc(recordMembers(), func(m string) bool { return m != name && strings.EqualFold(m, name) }) {
					return
				}
			}
		}
		var want, got Record
		wanted, failed := json.Unmarshal(value, &want), got.decode(value)
		if bytes.Equal(bytes.TrimSpace(value), []byte("null")) { // no object
			wanted = errors.New("null")
		}
		if (wanted == nil) != (failed == nil) {
			t.Fatalf("encoding/json says %v, and decode %v", wanted, failed)
		}
		if wanted == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("decoded\n%+v, want\n%+v", got, want)
		}
	})
}

// recordMembers returns the names of the members that a Record has.
func recordMembers() (names []string) {
	record := reflect.TypeFor[Record]()
	for i := range record.NumField() {
		names = append(names, record.Field(i).Tag.Get("json"))
	}
	return names
}

func FuzzTableAppliesParsedRecords(f *testing.F) {
	f.Add([]byte(`{"id":"1","type":"added","name":"a","resourceVersion":"5","after":{}}`), []byte(`{"id":"2","type":"snapshot.end","snapshot":{"id":"s","position":"9"}}`))
	f.Fuzz(func(_ *testing.T, first, second []byte) {
		var table Table
		for _, value := range [][]byte{first, second, first} {
			if r, err := Parse(value); err == nil {
				_ = table.Apply(r) // may fail, must not panic
			}
		}
		table.Snapshots()
	})
}
