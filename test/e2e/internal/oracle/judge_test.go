package oracle

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
)

var web = bus.Object{Resource: "configmaps", Namespace: "shop", Name: "web"}

// record returns a consistent record.
func record(kind string, revision int64) bus.Record {
	r := bus.Record{Object: web, Type: kind, Cluster: "c", UID: "u", Revision: revision, Key: "c/core/configmaps/shop/web"}
	return with(r, func(*bus.Record) {})
}

// with changes a record and makes it consistent again.
func with(r bus.Record, change func(*bus.Record)) bus.Record {
	change(&r)
	r.ResourceVersion = strconv.FormatInt(r.Revision, 10)
	r.ID = id(r)
	body := fmt.Appendf(nil, `{"metadata":{"namespace":"shop","name":"web","uid":%q,"resourceVersion":%q}}`, r.UID, r.ResourceVersion)
	r.Before, r.After = nil, body
	if r.Type == deleted {
		r.Before, r.After = body, nil
	}
	r.Payload = fmt.Appendf(nil, "%s %s", r.ID, body)
	return r
}

func gapRecord(from, to int64) bus.Record {
	r := bus.Record{Object: bus.Object{Resource: "configmaps"}, Type: gap, Cluster: "c", Revision: to, Key: "c/core/configmaps//"}
	r.ID = fmt.Sprintf("c/configmaps@%d/%d/gap", from, to)
	r.Gap = &bus.Gap{From: strconv.FormatInt(from, 10), To: strconv.FormatInt(to, 10), Reason: "history expired"}
	return r
}

// life is an object's whole history, and what a bus holds of it when all is well.
func life() (*History, []bus.Record) {
	h := &History{Start: 10, End: 40, Revisions: []Revision{
		{Object: web, Revision: 11, Op: Created}, {Object: web, Revision: 15, Op: Updated}, {Object: web, Revision: 20, Op: Updated}, {Object: web, Revision: 30, Op: Deleted},
	}}
	return h, []bus.Record{record(added, 11), record(updated, 15), record(updated, 20), record(deleted, 30)}
}

func TestCorrectStreamPasses(t *testing.T) {
	h, records := life()
	if wrong := h.Judge(records, Rules{}); len(wrong) > 0 {
		t.Fatal(wrong)
	}
	if wrong := h.Judge(slices.Concat(records[:3], records[1:]), Rules{Repetitions: true}); len(wrong) > 0 {
		t.Fatalf("a redelivery: %v", wrong)
	}
}

// TestEachKindOfDamageIsReported damages a faithful stream in one point each.
func TestEachKindOfDamageIsReported(t *testing.T) {
	damages := map[string]struct {
		damage func(records []bus.Record) []bus.Record
		want   string
	}{
		"one is lost": {func(r []bus.Record) []bus.Record { return slices.Delete(r, 1, 2) }, "15 (updated) is missing"},
		"two are exchanged": {func(r []bus.Record) []bus.Record { r[1], r[2] = r[2], r[1]; return r },
			"updated 15 () comes after updated 20 ()"},
		"one is there twice": {func(r []bus.Record) []bus.Record { return append(r[:2], r[1:]...) }, "is there 2 times"},
		"one never happened": {func(r []bus.Record) []bus.Record {
			return slices.Insert(r, 3, record(updated, 25))
		}, "updated 25 never happened"},
		"an update is told as new":  {func(r []bus.Record) []bus.Record { r[1] = record(added, 15); return r }, "tells that it was updated"},
		"a delete is told as state": {func(r []bus.Record) []bus.Record { r[3] = record(updated, 30); return r }, "was last deleted at 30"},
		"the body is another": {func(r []bus.Record) []bus.Record { r[1].After = r[2].After; return r },
			"its body speaks of"},
		"managedFields are left": {func(r []bus.Record) []bus.Record {
			r[1].After = []byte(strings.Replace(string(r[1].After), `{"name`, `{"managedFields":[],"name`, 1))
			return r
		}, "carries managedFields"},
		"the ID is random":   {func(r []bus.Record) []bus.Record { r[1].ID = "4711"; return r }, "the ID should be"},
		"the key is missing": {func(r []bus.Record) []bus.Record { r[1].Key = ""; return r }, "key \"\", want"},
		"the bus deduplicates by another ID": {func(r []bus.Record) []bus.Record { r[1].DuplicateDetection = "x"; return r },
			"drops duplicates by"},
		"a gap is told": {func(r []bus.Record) []bus.Record { return append(r, gapRecord(11, 20)) }, "gap from"},
	}
	for name, d := range damages {
		t.Run(name, func(t *testing.T) {
			h, records := life()
			wrong := h.Judge(d.damage(slices.Clip(records)), Rules{})
			if !strings.Contains(strings.Join(wrong, "\n"), d.want) {
				t.Fatalf("got %q, want something with %q", wrong, d.want)
			}
		})
	}
}

func TestGapCoversOnlyItsRange(t *testing.T) {
	h := &History{Start: 10, End: 40, Revisions: []Revision{{Object: web, Revision: 11, Op: Created}, {Object: web, Revision: 15, Op: Updated}, {Object: web, Revision: 20, Op: Updated}}}
	coalesced := with(record(updated, 20), func(r *bus.Record) { r.Coalesced = true })
	all := []bus.Record{record(added, 11), gapRecord(11, 20), coalesced}
	if wrong := h.Judge(all, Rules{Gaps: true}); len(wrong) > 0 {
		t.Fatal(wrong)
	}
	all[1] = gapRecord(15, 20)
	if missing := h.Missing(all); len(missing) != 1 || missing[0].Revision != 15 {
		t.Fatalf("a gap that begins at 15 covers it: %v", missing)
	}
	if wrong := h.Judge(all[:2], Rules{Gaps: true}); !strings.Contains(strings.Join(wrong, "\n"), "its last record is added 11") {
		t.Fatalf("the last state may be missing: %q", wrong)
	}
}

// framed is a snapshot of the records, begin and end around them.
func framed(records ...bus.Record) []bus.Record {
	first := bus.Record{Object: bus.Object{Resource: "configmaps"}, Type: begin, Cluster: "c", ID: "c/configmaps@s//snapshot.begin",
		Key: "c/core/configmaps//", Snapshot: &bus.Snapshot{ID: "s"}}
	last, info := first, bus.Snapshot{ID: "s", Position: "20", Count: len(records)}
	var digest event.Digest
	for i, r := range records {
		digest.Add(r.Namespace, r.Name, r.UID, r.ResourceVersion)
		records[i] = with(r, func(r *bus.Record) { r.Snapshot = &bus.Snapshot{ID: "s"} })
	}
	info.Digest = digest.String()
	last.Type, last.ID, last.Snapshot = end, "c/configmaps@s/20/snapshot.end", &info
	return append(append([]bus.Record{first}, records...), last)
}

func TestSnapshotCoversExistingObjects(t *testing.T) {
	h := &History{Start: 10, End: 40, Existing: []Revision{{Object: web, Revision: 5, Op: Updated}}, Revisions: []Revision{{Object: web, Revision: 15, Op: Updated}}}
	if wrong := h.Judge(append(framed(record(snapshot, 5)), record(updated, 15)), Rules{}); len(wrong) > 0 {
		t.Fatal(wrong)
	}
	if wrong := h.Judge(framed(record(snapshot, 15)), Rules{}); len(wrong) > 0 {
		t.Fatalf("the list was after the change: %v", wrong)
	}
	late := framed(record(snapshot, 15)) // ends at 20; it was cut short before 5 was emitted
	if missing := h.Missing(late); len(missing) > 0 {
		t.Fatalf("a snapshot in two pieces: %v", missing)
	}
	if missing := h.Missing([]bus.Record{record(updated, 15)}); len(missing) != 1 || missing[0].Revision != 5 {
		t.Fatalf("no snapshot: %v", missing)
	}
}

func TestUnframedSnapshotIsReported(t *testing.T) {
	h := &History{Start: 10, End: 40, Existing: []Revision{{Object: web, Revision: 5, Op: Updated}}}
	for want, damage := range map[string]func([]bus.Record) []bus.Record{
		"has no begin":        func(all []bus.Record) []bus.Record { return all[1:] },
		"has no end":          func(all []bus.Record) []bus.Record { return all[:2] },
		"ends with 2 objects": func(all []bus.Record) []bus.Record { all[2].Snapshot.Count++; return all },
		"told other objects":  func(all []bus.Record) []bus.Record { all[2].Snapshot.Digest = "0"; return all },
		"belongs to no snapshot": func(all []bus.Record) []bus.Record {
			all[1].Snapshot = nil
			return all
		},
	} {
		if wrong := h.Judge(damage(framed(record(snapshot, 5))), Rules{}); !strings.Contains(strings.Join(wrong, "; "), want) {
			t.Errorf("want %q, got %v", want, wrong)
		}
	}
}

func TestUnobservedDeleteRepeatsTheLastRevision(t *testing.T) {
	h := &History{Start: 10, End: 40, Revisions: []Revision{{Object: web, Revision: 11, Op: Created}, {Object: web, Revision: 20, Op: Deleted}}}
	unknown := with(record(deleted, 11), func(r *bus.Record) { r.FinalStateUnknown, r.Coalesced = true, true })
	unknown.ID += "/list"
	if wrong := h.Judge([]bus.Record{record(added, 11), gapRecord(11, 30), unknown}, Rules{Gaps: true}); len(wrong) > 0 {
		t.Fatal(wrong)
	}
}

func TestBusesAreComparedByteByByte(t *testing.T) {
	_, a := life()
	_, b := life()
	if wrong := Differ("a", a, "b", b); len(wrong) > 0 {
		t.Fatal(wrong)
	}
	b[1].Payload = []byte("other")
	if wrong := Differ("a", a, "b", b[:3]); len(wrong) != 2 {
		t.Fatalf("got %q", wrong)
	}
}
