package verify

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
)

// histories is how many random histories each property is tried with.
const histories = 90

// newestState returns the state at the newest watermark.
func (w *world) newestState() map[string]version {
	newest := 0
	for v := range w.states {
		newest = max(newest, v)
	}
	return w.states[newest]
}

// TestWhatWasDeliveredIsEqual in every order of lanes, with repeated blocks of records, and with changes behind the last
// watermark.
func TestWhatWasDeliveredIsEqual(t *testing.T) {
	for seed := range uint64(histories) {
		w := newLivedWorld(t, seed)
		r := w.verify()
		if r.Outcome != OutcomeEqual || r.Equal != len(w.newestState()) || len(r.Differences) > 0 || r.WatermarksWrong > 0 {
			t.Fatalf("seed %d: %+v, want %d objects", seed, r, len(w.newestState()))
		}
	}
}

// lastMark returns where the first copy of the last watermark is in a lane.
func (w *world) lastMark(lane int) int {
	var last *event.WatermarkInfo
	for _, r := range w.lanes[lane] {
		if r.change.Type == event.Watermark {
			last = r.change.Watermark
		}
	}
	return slices.IndexFunc(w.lanes[lane], func(r stored) bool {
		return r.change.Type == event.Watermark && r.change.Watermark.Epoch == last.Epoch && r.change.Watermark.Sequence == last.Sequence
	})
}

// recordsOf returns where the records of an object are before the last watermark, without repetitions.
func (w *world) recordsOf(name string) (lane int, at []int) {
	lane = w.laneOf(name)
	seen := map[string]bool{}
	for i, r := range w.lanes[lane][:w.lastMark(lane)] {
		if r.change.Name == name && !seen[r.change.ID()] {
			seen[r.change.ID()] = true
			at = append(at, i)
		}
	}
	return lane, at
}

// renumber gives the records of a lane positions again.
func (w *world) renumber(lane int) {
	for i := range w.lanes[lane] {
		w.lanes[lane][i].at = w.first[lane] + int64(i)
	}
}

// TestEveryManipulationIsNamedAndHealed takes a history without repetitions, changes one record of a random object, and
// expects that object with the right word, and no other. Once that is emitted again, nothing differs behind it.
func TestEveryManipulationIsNamedAndHealed(t *testing.T) {
	for name, change := range map[string]func(w *world, lane int, at []int) Kind{
		"deleted": func(w *world, lane int, at []int) Kind {
			last := at[len(at)-1]
			removed := w.lanes[lane][last].change
			w.lanes[lane] = slices.Delete(w.lanes[lane], last, last+1)
			if removed.Type == event.Deleted {
				return Ghost
			}
			if removed.Type == event.Added {
				return Missing
			}
			return Stale
		},
		"altered": func(w *world, lane int, at []int) Kind {
			r := &w.lanes[lane][at[len(at)-1]]
			r.value = []byte(strings.Replace(string(r.value), `"step":`, `"step":1`, 1))
			return Different
		},
		"repeated": func(w *world, lane int, at []int) Kind {
			r := w.lanes[lane][at[len(at)-2]]
			w.lanes[lane] = slices.Insert(w.lanes[lane], w.lastMark(lane), r)
			return Repeated
		},
		"swapped": func(w *world, lane int, at []int) Kind {
			a, b := at[len(at)-2], at[len(at)-1]
			w.lanes[lane][a], w.lanes[lane][b] = w.lanes[lane][b], w.lanes[lane][a]
			return OutOfOrder
		},
		"late": func(w *world, lane int, at []int) Kind { // behind a watermark that covers it
			r := w.lanes[lane][at[len(at)-1]]
			marks := slices.IndexFunc(w.lanes[lane][at[len(at)-1]:], func(r stored) bool { return r.change.Type == event.Watermark })
			to := at[len(at)-1] + marks
			if to >= w.lastMark(lane) {
				return ""
			}
			w.lanes[lane] = slices.Delete(slices.Insert(w.lanes[lane], to+1, r), at[len(at)-1], at[len(at)-1]+1)
			return OutOfOrder
		},
		"in another lane": func(w *world, lane int, at []int) Kind { // behind a watermark that covers it
			r, other := w.lanes[lane][at[len(at)-1]], (lane+1)%len(w.lanes)
			to := slices.IndexFunc(w.lanes[other], func(o stored) bool {
				return o.change.Type == event.Watermark && !isBefore(o.change.ResourceVersion, r.change.ResourceVersion)
			})
			if other == lane || to < 0 || to >= w.lastMark(other) || r.change.Type == event.Deleted {
				return ""
			}
			w.lanes[other] = slices.Insert(w.lanes[other], to+1, r)
			w.renumber(other)
			return OutOfOrder
		},
		"far ahead": func(w *world, lane int, at []int) Kind { // and what follows is behind it
			c := *w.lanes[lane][at[len(at)-2]].change
			if c.Type == event.Deleted {
				return ""
			}
			c.ResourceVersion, c.After = "900000000", bodyOf(c.Name, c.UID, 900000000)
			w.lanes[lane] = slices.Insert(w.lanes[lane], at[len(at)-2]+1, stored{change: &c, value: format.AppendJSON(nil, &c)})
			return OutOfOrder
		},
		"another uid": func(w *world, lane int, at []int) Kind {
			r := &w.lanes[lane][at[len(at)-1]]
			c := *r.change
			c.UID = "invented"
			r.value = format.AppendJSON(nil, &c)
			if c.Type == event.Deleted {
				return ""
			}
			return Different
		},
		"malformed": func(w *world, lane int, at []int) Kind {
			r := &w.lanes[lane][at[len(at)-1]]
			r.value = []byte(strings.Replace(string(r.value), "/"+r.change.UID+"/", "/another/", 1))
			return Malformed
		},
	} {
		t.Run(name, func(t *testing.T) {
			tried := 0
			for seed := uint64(0); tried < histories/3 && seed < 50*histories; seed++ {
				w := newWorld(t, seed, 1+int(seed%3))
				for range 4 {
					w.changes(40)
					w.mark()
				}
				object := "pod-" + strconv.Itoa(w.random.IntN(20))
				lane, at := w.recordsOf(object)
				if len(at) < 2 || name == "altered" && w.lanes[lane][at[len(at)-1]].change.Type == event.Deleted {
					continue
				}
				if c := w.lanes[lane][at[len(at)-2]].change; name == "repeated" && c.Type == event.Deleted {
					continue // a repeated delete of an older object changes nothing, and is not seen
				}
				want := change(w, lane, at)
				if want == "" {
					continue
				}
				w.renumber(lane)
				tried++
				found := w.verifyAfter(nil)
				r := found.Resources[0]
				named := slices.ContainsFunc(r.Differences, func(d Difference) bool { return d.Kind == want })
				other := slices.ContainsFunc(r.Differences, func(d Difference) bool { return d.Name != object })
				if r.Outcome != OutcomeDifferent || !named || other {
					t.Fatalf("seed %d: %s of %s is not named: %+v", seed, want, object, r)
				}
				if want == Different && name == "altered" && r.Differences[0].Path != "/spec/step" {
					t.Fatalf("seed %d: %+v", seed, r.Differences)
				}
				w.checkHealed(seed, found.Differing())
			}
			if tried < histories/3 {
				t.Errorf("only %d histories were tried", tried)
			}
		})
	}
}

// checkHealed emits what differs again, and verifies behind that.
func (w *world) checkHealed(seed uint64, found []Differing) {
	w.t.Helper()
	if len(found) != 1 || len(found[0].Existing)+len(found[0].Absent) != 1 || found[0].Whole {
		w.t.Fatalf("seed %d: to be emitted again are %+v", seed, found)
	}
	w.emitAgain(found[0])
	ends, err := Ends(w.t.Context(), w, "pods")
	if err != nil {
		w.t.Fatal(err)
	}
	w.change("pod-0")
	w.mark()
	if r := w.verifyAfter(ends); r.Outcome != OutcomeEqual || len(r.Resources[0].Differences) > 0 || len(r.Differing()) > 0 {
		w.t.Fatalf("seed %d: %+v was emitted again, and then: %+v", seed, found, r.Resources[0])
	}
}

// TestWatermarkBeforeARepairDoesNotCount: there is nothing of the repair before it.
func TestWatermarkBeforeARepairDoesNotCount(t *testing.T) {
	inVirtualTime(func(t *testing.T) {
		w := newLivedWorld(t, 1)
		ends, err := Ends(t.Context(), w, "pods")
		if err != nil {
			t.Fatal(err)
		}
		if r := w.verifyAfter(ends).Resources[0]; r.Outcome != OutcomeNotVerified {
			t.Errorf("without a watermark behind: %+v", r)
		}
		lookups := 0
		w.live = func() {
			if lookups++; lookups == 3 {
				w.mark()
			}
		}
		if r := w.verifyAfter(ends).Resources[0]; r.Outcome != OutcomeEqual || r.Watermark.Position != strconv.Itoa(w.version) {
			t.Errorf("with one: %+v", r)
		}
	})(t)
}

// TestManyDifferencesAreEmittedAsAWhole, and what does not exist by name: no snapshot has a delete of it.
func TestManyDifferencesAreEmittedAsAWhole(t *testing.T) {
	w := newWorld(t, 1, 1)
	for i := range MaxNamed + 1 {
		w.now[fmt.Sprint("lost-", i)] = version{uid: "u", resourceVersion: "50"}
	}
	ghost := &event.Change{
		Type: event.Added, Cluster: "c", Resource: pods, Namespace: "ns", Name: "ghost", UID: "u", ResourceVersion: "99", After: bodyOf("ghost", "u", 99),
	}
	w.appendRecord(0, ghost)
	w.mark()
	d := w.verifyAfter(nil).Differing()
	if len(d) != 1 || !d[0].Whole || d[0].Existing != nil || !slices.Equal(d[0].Absent, []string{"ns/ghost"}) {
		t.Errorf("%+v", d)
	}
}

// TestWhatTheExporterItselfDoesNotKnowIsNotEmittedAgain: it would emit what it knows.
func TestWhatTheExporterItselfDoesNotKnowIsNotEmittedAgain(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.changes(20)
	w.mark()
	w.states[w.version]["unknown"] = version{uid: "u", resourceVersion: "50"}
	if d := w.verifyAfter(nil).Differing(); len(d) != 1 || !strings.Contains(d[0].Reason, "the exporter itself knows other objects") {
		t.Errorf("%+v", d)
	}
}

// TestVersionBeyondTheWatermarkIsADifferenceWithoutExactLists, and nothing that is merely newer.
func TestVersionBeyondTheWatermarkIsADifferenceWithoutExactLists(t *testing.T) {
	inVirtualTime(func(t *testing.T) {
		w := newLivedWorld(t, 3)
		w.appendRecord(0, &event.Change{
			Type: event.Added, Cluster: "c", Resource: pods, Namespace: "ns", Name: "ahead", UID: "u", ResourceVersion: "900000000",
			After: bodyOf("ahead", "u", 900000000),
		})
		w.mark()
		w.inexact, w.live = true, func() { w.changes(2); w.mark() }
		if r := w.verify(); r.Outcome != OutcomeDifferent || r.Ghost != 1 || r.Differences[0].Name != "ahead" {
			t.Errorf("%+v", r)
		}
	})(t)
}

// TestOrderOfMembersIsNoDifference between contents.
func TestOrderOfMembersIsNoDifference(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.change("a")
	w.mark()
	r := &w.lanes[0][0]
	r.value = []byte(strings.Replace(string(r.value), `"name":"a","namespace":"ns"`, `"namespace": "ns", "name": "a"`, 1))
	if !strings.Contains(string(r.value), `"namespace": "ns"`) {
		r.value = []byte(strings.Replace(string(r.value), `"spec":{`, `"spec": {`, 1))
	}
	if got := w.verify(); got.Outcome != OutcomeEqual || got.Equal != 1 {
		t.Errorf("%+v: %s", got, r.value)
	}
}

// TestExpiredPositionsAreReplacedByFreshOnes while the exporter goes on; after several, the newest state is compared,
// without what changed since.
func TestExpiredPositionsAreReplacedByFreshOnes(t *testing.T) {
	for _, inexact := range []bool{false, true} {
		t.Run(fmt.Sprintf("inexact %t", inexact), inVirtualTime(func(t *testing.T) {
			newer := 0
			for seed := range uint64(histories / 10) {
				w := newLivedWorld(t, seed)
				w.inexact = inexact
				lookups := 0
				w.live = func() {
					if lookups++; lookups > 1 {
						w.changes(3)
						w.mark()
					}
					if lookups < 2+int(seed%5) {
						w.oldest = w.version + 1
					}
				}
				r := w.verify()
				newer += r.Newer
				if r.Outcome != OutcomeEqual || inexact && (r.ListedAt == "" || r.Note == "") {
					t.Fatalf("seed %d: %+v", seed, r)
				}
			}
			if inexact && newer == 0 {
				t.Error("nothing has changed since the lists")
			}
		}))
	}
}

// inVirtualTime runs a test in which nothing waits for real time.
func inVirtualTime(test func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) { synctest.Test(t, test) }
}

// TestDifferenceIsFoundWithoutExactLists, too.
func TestDifferenceIsFoundWithoutExactLists(t *testing.T) {
	inVirtualTime(findWithoutExactLists)(t)
}

func findWithoutExactLists(t *testing.T) {
	w := newLivedWorld(t, 3)
	w.change("lost")
	w.lanes[w.laneOf("lost")] = w.lanes[w.laneOf("lost")][:len(w.lanes[w.laneOf("lost")])-1]
	w.mark()
	w.inexact, w.live = true, func() { w.changes(2); w.mark() }
	if r := w.verify(); r.Outcome != OutcomeDifferent || r.Missing != 1 || r.Differences[0].Name != "lost" {
		t.Errorf("%+v", r)
	}
}

// TestReplacedRecordsAreNoDifference: in a compacted topic the record of an object at the position is gone if the object has
// changed since.
func TestReplacedRecordsAreNoDifference(t *testing.T) {
	newer := 0
	for seed := range uint64(histories) {
		w := newLivedWorld(t, seed)
		w.replaces = true
		for i, lane := range w.lanes {
			last := map[string]int{}
			for j, r := range lane {
				last[r.change.Key()+strconv.FormatUint(watermarkOf(r.change), 10)] = j
			}
			kept := w.lanes[i][:0:0]
			for j, r := range lane {
				if last[r.change.Key()+strconv.FormatUint(watermarkOf(r.change), 10)] == j {
					kept = append(kept, r)
				}
			}
			w.lanes[i] = kept
		}
		r := w.verify()
		newer += r.Newer
		if r.Outcome != OutcomeEqual {
			t.Fatalf("seed %d: %+v", seed, r)
		}
	}
	if newer == 0 {
		t.Error("no record was replaced after its watermark")
	}
}

// TestRecordsReplacedWhileTheyAreReadAreNoDifference: objects may change after the end of the lanes was looked up, so that
// their only records are behind it.
func TestRecordsReplacedWhileTheyAreReadAreNoDifference(t *testing.T) {
	for seed := range uint64(histories) {
		w := newWorld(t, seed, 1)
		w.replaces = true
		w.changes(20)
		w.mark()
		reads := 0
		w.beforeRead = func() {
			if reads++; reads == 1 || reads > 5 { // the first one looks for watermarks
				return
			}
			for name := range w.newestState() {
				w.change(name)
				w.lanes[0] = slices.DeleteFunc(w.lanes[0], func(r stored) bool {
					return r.change.Name == name && r.change.ResourceVersion != strconv.Itoa(w.version)
				})
			}
		}
		if r := w.verify(); r.Outcome != OutcomeEqual || r.Newer == 0 {
			t.Fatalf("seed %d: %+v", seed, r)
		}
	}
}

// TestUnnamedRemovalIsNewerThanTheWatermarkBeforeIt: what a marker without a name has removed from a bucket is not known. It
// is missing at the next watermark.
func TestUnnamedRemovalIsNewerThanTheWatermarkBeforeIt(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.replaces = true
	w.changes(20)
	w.mark()
	var name string
	for name = range w.now {
		break
	}
	w.lanes[0] = slices.DeleteFunc(w.lanes[0], func(r stored) bool { return r.change.Name == name })
	if r := w.verify(); r.Outcome != OutcomeDifferent || r.Missing != 1 {
		t.Errorf("without a marker: %+v", r)
	}
	w.appendRecord(0, &event.Change{})
	w.lanes[0][len(w.lanes[0])-1].value = nil
	if r := w.verify(); r.Outcome != OutcomeEqual || r.Newer != 1 {
		t.Errorf("with a marker behind the watermark: %+v", r)
	}
	w.change("another")
	w.mark()
	if r := w.verify(); r.Outcome != OutcomeDifferent || r.Missing != 1 {
		t.Errorf("with a marker before the watermark: %+v", r)
	}
}

// watermarkOf returns the sequence of a watermark: the newest ones are not compacted yet.
func watermarkOf(c *event.Change) uint64 {
	if c.Watermark == nil {
		return 0
	}
	return c.Watermark.Sequence
}

// TestWhatCannotBeVerifiedIsNotCalledEqual and has its reason.
func TestWhatCannotBeVerifiedIsNotCalledEqual(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*world)
		reason string
	}{
		"no watermark": {func(w *world) {
			for i, lane := range w.lanes {
				w.lanes[i] = slices.DeleteFunc(slices.Clone(lane), func(r stored) bool { return r.change.Type == event.Watermark })
			}
		}, "no watermark of the resource"},
		"another selection": {func(w *world) {
			for i, lane := range w.lanes {
				w.lanes[i] = slices.DeleteFunc(slices.Clone(lane), func(r stored) bool { return r.change.Type == event.Watermark })
			}
			w.epoch = "E.other"
			w.mark()
		}, "another selection"},
		"a lane that lags":    {func(w *world) { w.lanes[1] = nil }, "is not in all lanes"},
		"an expired position": {func(w *world) { w.oldest = w.version + 1 }, "no longer lists at"},
		"no digest": {func(w *world) {
			w.mark()
			for i, lane := range w.lanes {
				c := *lane[len(lane)-1].change
				info := *c.Watermark
				info.OmitDigest()
				c.Watermark = &info
				w.lanes[i][len(lane)-1] = stored{at: lane[len(lane)-1].at, change: &c, value: format.AppendJSON(nil, &c)}
			}
		}, "no digest"},
		"a lost beginning": {func(w *world) { w.first[0] = w.lanes[0][0].at + 1; w.lanes[0] = w.lanes[0][1:] }, "are gone"},
		"more lanes":       {func(w *world) { w.lanes, w.first = append(w.lanes, nil), append(w.first, 0) }, "is in 2 lanes"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 5, 2)
			w.changes(50)
			w.mark()
			test.change(w)
			r, err := Run(t.Context(), Options{
				Sink: "bus", Cluster: "c", Targets: []Target{{Scope: podScope, Topic: "pods"}}, Reader: w, List: w.list, Wait: time.Millisecond,
			})
			if err != nil || r.Outcome != OutcomeNotVerified || !strings.Contains(r.Resources[0].Reason, test.reason) {
				t.Errorf("%v: %+v", err, r.Resources[0])
			}
		})
	}
}

// TestLaneWithoutItsBeginningIsWholeFromASnapshotOn if what is left of each lane reaches back to it.
func TestLaneWithoutItsBeginningIsWholeFromASnapshotOn(t *testing.T) {
	for seed := range uint64(histories) {
		w := newWorld(t, seed, 3)
		for range 30 { // nothing in lane 1
			if name := "pod-" + strconv.Itoa(w.random.IntN(20)); w.laneOf(name) != 1 {
				w.change(name)
			}
		}
		w.mark()
		before := []int{len(w.lanes[0]), len(w.lanes[1]), len(w.lanes[2])}
		w.snapshot()
		w.changes(40)
		w.mark()
		for i := range w.lanes {
			w.truncate(i, before[i]-1) // the watermark before the snapshot is left
		}
		if r := w.verify(); r.Outcome != OutcomeEqual || r.Snapshots != 1 {
			t.Fatalf("seed %d: %+v", seed, r)
		}
		w.truncate(1, 2) // the watermark, and the first change after the snapshot: the snapshot is whole, and the lane is not
		if r := w.verify(); r.Outcome == OutcomeEqual || r.Snapshots != 1 || r.Outcome == OutcomeDifferent && r.certain() == 0 {
			t.Fatalf("seed %d: %+v", seed, r)
		}
	}
}

// TestFirstCopyOfAWatermarkIsTheBarrier, although a repeated one is nearer to the end of the lane.
func TestFirstCopyOfAWatermarkIsTheBarrier(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.changes(50)
	w.mark()
	at := len(w.lanes[0]) - 1
	w.changes(2 * firstWindow)
	for _, r := range slices.Clone(w.lanes[0][at : at+20]) {
		w.appendRecord(0, r.change)
	}
	if r := w.verify(); r.Outcome != OutcomeEqual || r.Equal != len(w.newestState()) {
		t.Errorf("%+v", r)
	}
}

// TestStreamAloneShowsItsFaults without a cluster.
func TestStreamAloneShowsItsFaults(t *testing.T) {
	check := func(w *world) *ScopeResult {
		r, err := RunStream(t.Context(), Options{Sink: "bus", Reader: w}, []string{"pods"})
		if err != nil {
			t.Fatal(err)
		}
		return r.Resources[0]
	}
	for seed := range uint64(histories) {
		if r := check(newLivedWorld(t, seed)); r.Outcome != OutcomeConsistent {
			t.Fatalf("seed %d: %+v", seed, r)
		}
	}
	lost, swapped, gap := newWorld(t, 7, 2), newWorld(t, 7, 2), newWorld(t, 7, 2)
	for _, w := range []*world{lost, swapped, gap} {
		w.changes(60)
		w.change("x")
		w.change("x")
		w.mark()
	}
	lane, at := lost.recordsOf("x")
	lost.lanes[lane] = slices.Delete(lost.lanes[lane], at[len(at)-1], at[len(at)-1]+1)
	if r := check(lost); r.Outcome != OutcomeDifferent || r.WatermarksWrong != 1 {
		t.Errorf("a lost record: %+v", r)
	}
	a, b := at[len(at)-2], at[len(at)-1]
	swapped.lanes[lane][a], swapped.lanes[lane][b] = swapped.lanes[lane][b], swapped.lanes[lane][a]
	swapped.renumber(lane)
	if r := check(swapped); r.Outcome != OutcomeDifferent || r.OutOfOrder != 1 {
		t.Errorf("swapped records: %+v", r)
	}
	gap.appendRecord(0, &event.Change{
		Type: event.Gap, Cluster: "c", Resource: pods, ResourceVersion: "900", Gap: &event.GapInfo{From: "800", To: "900", Reason: "lost"},
	})
	if r := check(gap); r.Outcome != OutcomeNotVerified || len(r.Gaps) != 1 {
		t.Errorf("a gap: %+v", r)
	}
}

// TestComparisonNamesEachDifference covers the table of kinds.
func TestComparisonNamesEachDifference(t *testing.T) {
	v := func(uid, resourceVersion, body string) version { return version{uid, resourceVersion, body} }
	for _, test := range []struct {
		stream, cluster version
		kind            Kind
		path            string
	}{
		{version{}, version{}, Equal, ""},
		{v("a", "1", ""), v("a", "1", "x"), Equal, ""},
		{v("a", "1", "x"), v("a", "1", "x"), Equal, ""},
		{v("a", "1", "y"), v("a", "1", "x"), Different, ""},
		{version{}, v("a", "1", ""), Missing, ""},
		{v("a", "1", ""), version{}, Ghost, ""},
		{v("a", "9", ""), v("a", "10", ""), Stale, pathVersion},
		{v("a", "9", ""), v("b", "10", ""), Stale, pathUID},
		{v("a", "10", ""), v("a", "9", ""), Different, pathVersion},
		{v("a", "10", ""), v("b", "10", ""), Different, pathUID},
		{v("a", "x", ""), v("a", "y", ""), Different, pathVersion},
	} {
		if kind, path := compareVersions(test.stream, test.cluster); kind != test.kind || path != test.path {
			t.Errorf("%+v against %+v: %s at %q, want %s at %q", test.stream, test.cluster, kind, path, test.kind, test.path)
		}
	}
}

// TestWatermarkWithAnotherDigestThanTheClusterIsADifference, although the stream has everything.
func TestWatermarkWithAnotherDigestThanTheClusterIsADifference(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.changes(20)
	w.mark()
	r := &w.lanes[0][len(w.lanes[0])-1]
	r.value = []byte(strings.Replace(string(r.value), `"count":`, `"count":1`, 1))
	if got := w.verify(); got.Outcome != OutcomeDifferent || !got.WatermarkDiffers || len(got.Differences) > 0 {
		t.Errorf("%+v", got)
	}
}
