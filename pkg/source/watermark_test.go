package source

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// markedScope is an emitter with watermarks, and what it appends.
type markedScope struct {
	t *testing.T
	*emitter
	marks  []*event.Change
	stored event.StoredScope
	now    time.Time
}

func newMarkedScope(t *testing.T, stored event.StoredScope, known *deltas.KnownSet, series ...WatermarkSeries) *markedScope {
	s := &markedScope{t: t, stored: stored, now: time.Unix(1e9, 0)}
	s.emitter = &emitter{
		scope: selection.Scope{ID: "pods", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}},
		append: func(_ context.Context, o event.Observation) error {
			for _, c := range o.Changes {
				if c.Type == event.Watermark {
					s.marks = append(s.marks, c)
				}
			}
			if o.Position != "" {
				s.stored.Position, s.stored.AheadUpTo = o.Position, o.AheadUpTo
			}
			return nil
		},
		watermarks: newWatermarks(selection.Scope{ID: "pods"}, series), clock: &deltas.Clock{},
	}
	s.loadState("c", stored, known)
	return s
}

// mark lets a second pass, and returns the watermarks that it brings.
func (s *markedScope) mark() []*event.Change {
	s.t.Helper()
	s.now = s.now.Add(time.Second)
	s.marks = nil
	if err := s.emitWatermarks(s.t.Context(), s.now); err != nil {
		s.t.Fatal(err)
	}
	return s.marks
}

// watchUpTo lets the watch deliver an object, or a bookmark without one, at a position.
func (s *markedScope) watchUpTo(position string, objects ...*deltas.Object) {
	s.t.Helper()
	var events []deltas.Event
	for _, o := range objects {
		events = append(events, deltas.Event{Type: watch.Added, Object: o})
	}
	if err := s.emitEvents(s.t.Context(), events, position); err != nil {
		s.t.Fatal(err)
	}
}

func podAt(name, version string) *deltas.Object {
	o := deltas.NewObject("ns", name)
	o.UID, o.ResourceVersion, o.Raw = "uid-of-"+name, version, []byte("{}")
	return o
}

var everySecond = WatermarkSeries{Every: time.Second, Sinks: []string{"bus"}}

// TestNoWatermarkWhileKnownObjectsAreAhead: later pages of a list may be newer than its position. Until that has passed
// them, also after a restart, the known objects are no state of the cluster.
func TestNoWatermarkWhileKnownObjectsAreAhead(t *testing.T) {
	s := newMarkedScope(t, event.StoredScope{ID: "pods"}, deltas.NewKnownSet(), everySecond)
	s.beginList("10")
	if len(s.mark()) > 0 {
		t.Error("a watermark before the first complete state")
	}
	s.watchUpTo("", podAt("a", "8"), podAt("b", "14"))
	if err := s.finishList(t.Context(), "10", "15"); err != nil {
		t.Fatal(err)
	}
	s.watchUpTo("12")
	if marks := s.mark(); len(marks) > 0 || s.stored.AheadUpTo != "15" {
		t.Errorf("the watermark %+v of a state up to 15, at 12; stored is %+v", marks, s.stored)
	}
	known := deltas.NewKnownSet()
	known.Add(event.Known{Key: "ns/a", UID: "uid-of-a", ResourceVersion: "8"})
	known.Add(event.Known{Key: "ns/b", UID: "uid-of-b", ResourceVersion: "14"})
	s = newMarkedScope(t, s.stored, known, everySecond)
	if marks := s.mark(); len(marks) > 0 {
		t.Errorf("after a restart the watermark %+v of a state up to 15, at 12", marks)
	}
	s.watchUpTo("15")
	marks := s.mark()
	if len(marks) != 1 || marks[0].ResourceVersion != "15" || s.stored.AheadUpTo != "" {
		t.Fatalf("at 15 the watermarks %+v; stored is %+v", marks, s.stored)
	}
	var digest event.Digest
	digest.Add("ns", "a", "uid-of-a", "8")
	digest.Add("ns", "b", "uid-of-b", "14")
	if w := marks[0].Watermark; w.Count != 2 || w.Digest != digest.String() || w.Sequence != 1 || w.Sinks[0] != "bus" {
		t.Errorf("the watermark is %+v", w)
	}
}

// TestWatermarksFollowThePosition: one in each interval of a series if the position has moved, in epochs that end with lost
// history.
func TestWatermarksFollowThePosition(t *testing.T) {
	slow := WatermarkSeries{Every: 3 * time.Second, Sinks: []string{"file"}}
	s := newMarkedScope(t, event.StoredScope{ID: "pods", Position: "10"}, deltas.NewKnownSet(), everySecond, slow)
	first := s.mark()
	if len(first) != 2 || first[0].ResourceVersion != "10" || first[0].ID() == first[1].ID() {
		t.Fatalf("at the start the watermarks are %+v", first)
	}
	if again := s.mark(); len(again) > 0 {
		t.Errorf("without another position there are the watermarks %+v", again)
	}
	s.watchUpTo("11")
	if moved := s.mark(); len(moved) != 1 || moved[0].Watermark.Sequence != 2 || moved[0].Watermark.Epoch != first[0].Watermark.Epoch {
		t.Errorf("at another position there are the watermarks %+v", moved)
	}
	if late := s.mark(); len(late) != 1 || late[0].Watermark.Sinks[0] != "file" || late[0].ResourceVersion != "11" {
		t.Errorf("after three seconds there are the watermarks %+v", late)
	}
	s.loseHistory("a test")
	if lost := s.mark(); len(lost) > 0 {
		t.Errorf("without history there are the watermarks %+v", lost)
	}
	s.beginList("20")
	if err := s.finishList(t.Context(), "20", ""); err != nil {
		t.Fatal(err)
	}
	if next := s.mark(); len(next) != 1 || next[0].Watermark.Sequence != 1 || next[0].Watermark.Epoch == first[0].Watermark.Epoch {
		t.Errorf("after lost history there are the watermarks %+v", next)
	}
}

// TestEpochNamesTheSelection: a comparison of a stream with what a rule selects must not take the watermark of another
// rule for one of its own.
func TestEpochNamesTheSelection(t *testing.T) {
	fingerprint := func(scope selection.Scope) string {
		w := newWatermarks(scope, []WatermarkSeries{everySecond})
		first := w.series[0].epoch
		w.startEpoch()
		second := w.series[0].epoch
		_, of, found := strings.Cut(first, event.EpochSeparator)
		if _, again, _ := strings.Cut(second, event.EpochSeparator); !found || first == second || of != again {
			t.Errorf("epochs %q and %q", first, second)
		}
		return of
	}
	all, one := fingerprint(selection.Scope{ID: "pods"}), fingerprint(selection.Scope{ID: "pods;ns=web"})
	if all == one || all != (selection.Scope{ID: "pods"}).Fingerprint() {
		t.Errorf("%q and %q", all, one)
	}
}
