package deltas

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// script turns fuzzed bytes into choices; after the last byte all choices are 0.
type script []byte

func (s *script) nextChoice(n int) int {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return int(b) % n
}

// nextList returns a list of a first snapshot, after a gap, after an edit, or both; nil for a watch.
func (s *script) nextList() *List {
	return []*List{
		nil, {}, {Pass: "P"}, {Snapshot: &event.SnapshotInfo{ID: "S"}}, {Snapshot: &event.SnapshotInfo{ID: "S"}, Pass: "P"},
	}[s.nextChoice(5)]
}

// nextObject returns one of a few states of a few objects with one name.
func (s *script) nextObject(name string) *Object {
	o := NewObject("ns", name)
	o.UID = []string{"u1", "u2", "6f1d3c9e-8a57-4f0e-9d0b-3c5a7e2b1f44", ""}[s.nextChoice(4)]
	o.ResourceVersion = []string{"", "v3"}[s.nextChoice(8)/7] + strconv.Itoa(s.nextChoice(6))
	if writers := s.nextChoice(4); writers > 0 {
		summary := AppendParts(nil, Parts{Metadata: uint64(s.nextChoice(2)), Status: uint64(s.nextChoice(2)), Rest: uint64(s.nextChoice(2))})
		var names []byte
		for w := range writers - 1 {
			summary = AppendWriter(summary, uint64(w), uint64(s.nextChoice(3)), 1, 1)
			names = AppendNames(names, []byte{'m', byte('0' + w)}, []byte("Update"), nil, nil)
		}
		o.Summary, o.Names = string(summary), string(names)
	}
	o.Raw, o.ObservedAt = []byte(o.ResourceVersion), time.Unix(1, 0)
	return o
}

// nextDelta returns a delta of one object. Only a list reveals that an object is gone without its final state.
func (s *script) nextDelta(list *List) cache.Delta {
	types := []cache.DeltaType{cache.Added, cache.Updated, cache.Deleted, cache.Sync}
	d := cache.Delta{Type: types[s.nextChoice(4)], Object: s.nextObject("a")}
	if d.Type == cache.Deleted && list != nil && s.nextChoice(2) == 0 {
		d.Object = cache.DeletedFinalStateUnknown{Key: "ns/a", Obj: d.Object}
	}
	return d
}

// FuzzStepIsPure checks that Step returns the same result twice, does not modify its arguments, and does not depend on how
// the deltas are split into Pops.
func FuzzStepIsPure(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 2, 3, 1, 0, 0, 1})
	f.Add([]byte{3, 1, 0, 5, 3, 2, 1, 0, 2, 1, 1, 0, 4, 0})
	f.Add([]byte("020000007")) // a resync without a list
	f.Fuzz(func(t *testing.T, b []byte) {
		s := script(b)
		scope := Scope{ID: "s", Cluster: "c", Selected: s.nextChoice(2) == 0}
		list, known := s.nextList(), event.Known{Key: "ns/a"}
		if s.nextChoice(3) > 0 {
			known = s.nextObject("a").toKnown()
		}
		var deltas, before cache.Deltas
		for len(s) > 0 && len(deltas) < 20 {
			was := slices.Clone(s)
			deltas = append(deltas, s.nextDelta(list))
			before = append(before, was.nextDelta(list))
		}
		after, changes := Step(scope, list, known, deltas)
		again, changesAgain := Step(scope, list, known, deltas)
		if after != again || !reflect.DeepEqual(changes, changesAgain) {
			t.Errorf("%+v with %+v is first %+v, then %+v", known, deltas, after, again)
		}
		if !reflect.DeepEqual(deltas, before) {
			t.Errorf("%+v have become %+v", before, deltas)
		}
		if after.Key != known.Key {
			t.Errorf("what is known of %s is %+v", known.Key, after)
		}
		step := known
		var changesOneByOne []*event.Change
		for _, d := range deltas {
			var c []*event.Change
			step, c = Step(scope, list, step, cache.Deltas{d})
			changesOneByOne = append(changesOneByOne, c...)
		}
		if step != after || !reflect.DeepEqual(changes, changesOneByOne) {
			t.Errorf("one by one %+v with %+v is %+v, at once %+v", known, deltas, step, after)
		}
	})
}

// FuzzBatchesAreDrained checks that DeltaFIFO is empty after each call, and that the known objects always match the
// observations.
func FuzzBatchesAreDrained(f *testing.F) {
	f.Add([]byte{1, 0, 0, 1, 2, 3, 1, 0, 0, 1, 9, 9, 9, 9, 9, 9, 9})
	f.Add([]byte{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 1, 3, 5, 7, 9, 11})
	f.Fuzz(func(t *testing.T, b []byte) {
		s := script(b)
		tr, known, listing := newTracker(), map[string]event.Known{}, false
		take := func(o event.Observation, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			checkObservation(t, o)
			storeKnown(known, o)
			if len(tr.queued) > 0 || tr.KnownCount() != len(known) {
				t.Fatalf("%v are queued, %d are known, of which the observations name %d", tr.queued, tr.KnownCount(), len(known))
			}
		}
		for len(s) > 0 {
			switch s.nextChoice(6) {
			default:
				var batch []Event
				for range s.nextChoice(6) {
					types := []watch.EventType{watch.Added, watch.Modified, watch.Deleted, watch.Bookmark}
					batch = append(batch, Event{types[s.nextChoice(4)], s.nextObject(fmt.Sprint(s.nextChoice(3)))})
				}
				take(tr.ObserveEvents(batch, ""))
			case 3:
				if !listing {
					take(tr.ObserveSynced(s.nextObject(fmt.Sprint(s.nextChoice(3))), "P", ""))
				}
			case 4:
				if list := s.nextList(); list != nil {
					tr.StartList(*list)
					listing = true
				}
			case 5:
				if listing {
					o, _, err := tr.ObserveMissing()
					take(o, err)
					take(tr.FinishList("9"), nil)
					listing = false
				}
			}
		}
		for key, want := range known {
			if got := tr.known.lookupKey(key); got != want {
				t.Errorf("known is %+v, according to the observations %+v", got, want)
			}
		}
		checkDrained(t, tr)
	})
}
