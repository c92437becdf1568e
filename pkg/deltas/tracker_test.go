package deltas

import (
	"fmt"
	"maps"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/event"
)

var podScope = Scope{ID: "s", Cluster: "c", Resource: event.Resource{Version: "v1", Resource: "pods"}}

// newTracker returns a tracker with these known objects.
func newTracker(objects ...*Object) *Tracker {
	known := NewKnownSet()
	for _, o := range objects {
		known.Add(o.toKnown())
	}
	return NewTracker(podScope, known, nil, time.Now)
}

func newPod(name, rv string) *Object {
	o := NewObject("ns", name)
	o.UID, o.ResourceVersion = name, rv
	return o
}

func addedEvents(objects ...*Object) []Event {
	var events []Event
	for _, o := range objects {
		events = append(events, Event{watch.Added, o})
	}
	return events
}

// mustObserve returns a function that fails the test on an error.
func mustObserve(t *testing.T) func(event.Observation, error) event.Observation {
	return func(o event.Observation, err error) event.Observation {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
}

// checkDrained fails if DeltaFIFO is not empty. Pop returns an error once the queue is closed and empty.
func checkDrained(t *testing.T, tr *Tracker) {
	t.Helper()
	tr.fifo.Close()
	_, err := tr.fifo.Pop(func(obj any, _ bool) error {
		t.Errorf("DeltaFIFO still has %+v", obj)
		return nil
	})
	if err == nil || len(tr.queued) > 0 {
		t.Errorf("Pop: %v, keys of what is queued: %v", err, tr.queued)
	}
}

// TestTrackerNeverBlocks: Pop of an empty DeltaFIFO blocks, but a tracker must not, because its goroutine has other work.
func TestTrackerNeverBlocks(t *testing.T) {
	for name, batch := range map[string][]Event{
		"nothing": nil,
		"one name again and again": {
			{watch.Deleted, newPod("a", "2")}, {watch.Deleted, newPod("a", "3")},
			{watch.Added, newPod("a", "4")}, {watch.Deleted, newPod("a", "5")},
		},
		"deletes of what is not known": {{watch.Deleted, newPod("b", "2")}, {watch.Deleted, newPod("c", "3")}},
		"a bookmark":                   {{watch.Bookmark, newPod("", "2")}, {watch.Added, newPod("b", "3")}},
		"an unknown event type":        {{"GREETING", newPod("a", "2")}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // fails if all goroutines are blocked
				tr := newTracker(newPod("a", "1"))
				mustObserve(t)(tr.ObserveEvents(batch, "9"))
				mustObserve(t)(tr.ObserveSynced(newPod("a", "1"), "P", ""))
				tr.StartList(List{})
				mustObserve(t)(tr.ObserveEvents(batch, ""))
				for more := true; more; {
					var err error
					if _, more, err = tr.ObserveMissing(); err != nil {
						t.Fatal(err)
					}
				}
				tr.FinishList("10")
				checkDrained(t, tr)
			})
		})
	}
}

func TestMissingObjectsAreSplitIntoObservations(t *testing.T) {
	const objects = 2*maxTombstones + 1
	var known []*Object
	for i := range objects {
		known = append(known, newPod(strconv.Itoa(i), "1"))
	}
	tr := newTracker(known...)
	tr.StartList(List{})
	emitted := map[string]bool{}
	for more := true; more; {
		var o event.Observation
		var err error
		if o, more, err = tr.ObserveMissing(); err != nil {
			t.Fatal(err)
		}
		if len(o.Changes) > maxTombstones || len(o.RemovedKeys) != len(o.Changes) {
			t.Fatalf("%d deletes, %d removed keys in one observation", len(o.Changes), len(o.RemovedKeys))
		}
		for _, c := range o.Changes {
			emitted[c.Name] = true
		}
	}
	if len(emitted) != objects || tr.KnownCount() != 0 {
		t.Errorf("%d of %d are deleted, %d known", len(emitted), objects, tr.KnownCount())
	}
}

func TestStatsCountChangesAndRecordLastSeen(t *testing.T) {
	now := time.Unix(100, 0)
	known := NewKnownSet()
	known.Add(newPod("a", "1").toKnown())
	tr := NewTracker(podScope, known, func(namespace string) bool { return namespace == "ns" }, func() time.Time { return now })
	if s := tr.Stats(); s.Known != 1 || !s.LastSeen.IsZero() || len(s.Changes) != 0 {
		t.Errorf("at first: %+v", s)
	}
	now = now.Add(time.Second)
	mustObserve(t)(tr.ObserveEvents(addedEvents(newPod("b", "2"), NewObject("other", "c")), "3"))
	tr.NewObservation(tr.NewGap("1", "2", "a test"))
	want := map[event.Type]uint64{event.Added: 1, event.Gap: 1}
	if s := tr.Stats(); s.Known != 2 || !s.LastSeen.Equal(now) || !maps.Equal(s.Changes, want) {
		t.Errorf("after a batch: %+v", s)
	}
	now = now.Add(time.Second)
	mustObserve(t)(tr.ObserveEvents(nil, "4"))
	if s := tr.Stats(); !s.LastSeen.Equal(now) {
		t.Errorf("after a bookmark: %+v", s)
	}
}

// TestStatsAreSafeForConcurrentUse relies on the race detector.
func TestStatsAreSafeForConcurrentUse(t *testing.T) {
	tr := newTracker()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				tr.Stats()
			}
		}
	}()
	for i := range 200 {
		mustObserve(t)(tr.ObserveEvents(addedEvents(newPod("a", strconv.Itoa(i))), ""))
		tr.StartList(List{})
		tr.FinishList("")
	}
	close(stop)
	<-done
}

func TestControlRecordsNameTheNamespaceOfTheirScope(t *testing.T) {
	s := podScope
	s.Namespace = "ns"
	tr := NewTracker(s, NewKnownSet(), nil, time.Now)
	tr.StartList(List{Snapshot: &event.SnapshotInfo{ID: "S"}})
	end := tr.FinishList("5").Changes[0]
	for _, c := range []*event.Change{tr.NewGap("1", "2", "a test"), tr.NewSnapshotBegin("S"), end} {
		if c.Namespace != "ns" || c.Cluster != "c" || c.Resource != s.Resource || c.Name != "" || c.ObservedAt.IsZero() {
			t.Errorf("%s is %+v", c.Type, c)
		}
	}
}

// BenchmarkWatched observes events of ten thousand different objects, with and without the sum that watermarks need.
func BenchmarkWatched(b *testing.B) {
	for i, size := range []int{1, 16, 16, 256} {
		summed := i == 2
		b.Run(fmt.Sprint(size, " at once, summed: ", summed), func(b *testing.B) {
			const objects = 10_000
			summary := string(AppendWriter(AppendWriter(AppendParts(nil, Parts{Rest: 1}), 1, 1, 1, 1), 2, 1, 1, 1))
			manager := string(AppendNames(AppendNames(nil, []byte("a"), nil, nil, nil), []byte("b"), nil, nil, nil))
			var pool []*Object
			for i := range objects {
				o := newPod(fmt.Sprintf("app-7d9c6b8f5d-%05d", i), "1")
				o.UID, o.Summary, o.Names = fmt.Sprintf("6f1d3c9e-8a57-4f0e-9d0b-%012x", i), summary, manager
				pool = append(pool, o)
			}
			tr := newTracker(pool...)
			if summed {
				tr.KeepSum()
			}
			batch := make([]Event, size)
			events := 0
			b.ReportAllocs()
			for b.Loop() {
				for i := range batch {
					o := *pool[(events*7919)%objects]
					o.ResourceVersion = strconv.Itoa(1_000_000 + events)
					batch[i] = Event{watch.Modified, &o}
					events++
				}
				if _, err := tr.ObserveEvents(batch, batch[size-1].Object.ResourceVersion); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(events), "ns/event")
		})
	}
}
