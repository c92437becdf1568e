package sinktest

import (
	"slices"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// truth is what was published, and in which order within each lane.
type truth struct {
	h     Harness
	f     *factory
	lanes map[sinks.Lane][]sinks.Message
}

func newTruth(h Harness, f *factory, p publisher, messages []sinks.Message) *truth {
	if h.StateOnly {
		messages = slices.DeleteFunc(slices.Clone(messages), func(m sinks.Message) bool { return m.Change.Type.Control() })
	}
	return &truth{h: h, f: f, lanes: p.byLane(messages)}
}

// held reads the destination and keeps this test's changes, in order, without tombstones.
func (tr *truth) held(t testing.TB) []Delivered {
	t.Helper()
	var own []Delivered
	for _, d := range tr.h.Read(t) {
		if !d.Tombstone && tr.f.owns(d.ID) {
			own = append(own, d)
		}
	}
	return own
}

// place is where a change stands in what has to be in order: its lane, or its object.
type place struct {
	line  string
	index int
}

// places returns the place of each change, and for each line the indexes that its changes have in their lane.
func (tr *truth) places() (places map[string]place, lines map[string]line) {
	places, lines = make(map[string]place), make(map[string]line)
	for lane, messages := range tr.lanes {
		for i, m := range messages {
			name := string(lane)
			if tr.h.ObjectsApart {
				name += " " + m.Change.Key()
			}
			l := lines[name]
			places[m.Change.ID()] = place{line: name, index: len(l.inLane)}
			lines[name] = line{lane, append(l.inLane, i)}
		}
	}
	return places, lines
}

// line is what has to be in order.
type line struct {
	lane   sinks.Lane
	inLane []int // the index of each change in its lane
}

// restarts returns at which changes of the line a Publish of its lane began again.
func (l line) restarts(lane []int) (own []int) {
	for _, start := range lane {
		i, _ := slices.BinarySearch(l.inLane, start)
		own = append(own, i)
	}
	return own
}

// once fails the test unless the destination holds every change exactly once, in order, with the right key and value.
func (tr *truth) once(t testing.TB) { t.Helper(); tr.check(t, nil) }

// check compares the destination with what was published. Every change must be there with its key and value. A lane's
// history may step back only to the first message of a Publish, in the order of these calls (restarts, ascending
// indexes by lane): what is there twice was published twice, because it had not been acknowledged. Without restarts, and
// where the destination promises exact retries, nothing may be there twice. // I3
func (tr *truth) check(t testing.TB, restarts map[sinks.Lane][]int) {
	t.Helper()
	tr.contents(t)
	if tr.h.ExactRetry {
		restarts = nil
	}
	places, lines := tr.places()
	newest := make(map[string]int)   // index of the last change seen, plus one
	starts := make(map[string][]int) // restarts that were not used yet
	for name, l := range lines {
		starts[name] = l.restarts(restarts[l.lane])
	}
	for _, d := range tr.held(t) {
		at, known := places[d.ID]
		if !known {
			t.Errorf("the destination holds %s, which was not published", d.ID)
			continue
		}
		if at.index > newest[at.line] {
			t.Errorf("lane %s: %s, message %d, stands where message %d is due", at.line, d.ID, at.index, newest[at.line])
		}
		if at.index < newest[at.line] {
			starts[at.line] = stepBack(t, at, d.ID, starts[at.line])
		}
		newest[at.line] = at.index + 1
	}
	for name, l := range lines {
		if newest[name] != len(l.inLane) {
			t.Errorf("lane %s: ends with message %d of %d", name, newest[name], len(l.inLane))
		}
	}
}

// stepBack accepts a repetition that begins where a Publish began that is not older than the last one accepted, and returns
// those that are left.
func stepBack(t testing.TB, at place, id string, starts []int) []int {
	t.Helper()
	if i := slices.Index(starts, at.index); i >= 0 {
		return starts[i+1:]
	}
	t.Errorf("lane %s steps back to message %d, %s, where no Publish began again", at.line, at.index, id)
	return nil
}

// contents checks key and value of everything held, that nothing is missing, and tombstones where they are promised.
func (tr *truth) contents(t testing.TB) {
	t.Helper()
	missing := make(map[string]sinks.Message)
	tombstones := make(map[string]bool) // key of a deleted object: tombstone still missing
	want := make(map[string]sinks.Message)
	for _, messages := range tr.lanes {
		for _, m := range messages {
			missing[m.Change.ID()], want[m.Change.ID()] = m, m
		}
	}
	for _, d := range tr.h.Read(t) {
		if d.Tombstone {
			delete(tombstones, d.Key)
			continue
		}
		m, published := want[d.ID]
		if !published {
			continue
		}
		delete(missing, d.ID)
		if value := tr.h.value(m.Change); string(d.Value) != value {
			t.Errorf("%s has the value %.200s\nwant %.200s", d.ID, d.Value, value)
		}
		if tr.h.misplaced(t, m, d.Topic) {
			t.Errorf("%s is in topic %q, but was sent to %v", d.ID, d.Topic, m.Topic)
		}
		if key := tr.h.key(m.Change); d.Key != key {
			t.Errorf("%s has the key %q, want %q", d.ID, d.Key, key)
		}
		if tr.h.Tombstones && m.Change.Type == event.Deleted {
			tombstones[d.Key] = true
		}
	}
	for id := range missing {
		t.Errorf("%s was acknowledged and is not there", id)
	}
	for key := range tombstones {
		t.Errorf("no tombstone follows the deleted change of %q", key)
	}
}
