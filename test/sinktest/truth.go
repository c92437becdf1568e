package sinktest

import (
	"slices"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// publishedTruth is what was published, in the order of each lane.
type publishedTruth struct {
	h     Harness
	f     *changeFactory
	lanes map[sinks.Lane][]sinks.Message
}

func newPublishedTruth(h Harness, f *changeFactory, p publisher, messages []sinks.Message) *publishedTruth {
	if h.StateOnly {
		messages = slices.DeleteFunc(slices.Clone(messages), func(m sinks.Message) bool { return m.Change.Type.IsControl() })
	}
	return &publishedTruth{h: h, f: f, lanes: p.byLane(messages)}
}

// readOwnMessages returns the messages of this test that the destination holds, in order, without tombstones.
func (tr *publishedTruth) readOwnMessages(t testing.TB) []Delivered {
	t.Helper()
	var own []Delivered
	for _, d := range tr.h.Read(t) {
		if !d.Tombstone && tr.f.ownsID(d.ID) {
			own = append(own, d)
		}
	}
	return own
}

// linePosition is the position of a change in an orderedLine.
type linePosition struct {
	line  string
	index int
}

// indexChanges returns the position of each change by ID, and the lines by name.
func (tr *publishedTruth) indexChanges() (places map[string]linePosition, lines map[string]orderedLine) {
	places, lines = make(map[string]linePosition), make(map[string]orderedLine)
	for lane, messages := range tr.lanes {
		for i, m := range messages {
			name := string(lane)
			if tr.h.OrderPerObject {
				name += " " + m.Change.Key()
			}
			l := lines[name]
			places[m.Change.ID()] = linePosition{line: name, index: len(l.inLane)}
			lines[name] = orderedLine{lane, append(l.inLane, i)}
		}
	}
	return places, lines
}

// orderedLine is a sequence of changes that has to keep its order: those of a lane or, with OrderPerObject, of an object.
type orderedLine struct {
	lane   sinks.Lane
	inLane []int // the index of each change in its lane
}

// restartIndexes maps the indexes at which a Publish of the lane began again to indexes in the line.
func (l orderedLine) restartIndexes(lane []int) (own []int) {
	for _, start := range lane {
		i, _ := slices.BinarySearch(l.inLane, start)
		own = append(own, i)
	}
	return own
}

// checkOnce fails the test unless the destination holds every change exactly once, in order, with the right key and value.
func (tr *publishedTruth) checkOnce(t testing.TB) { t.Helper(); tr.checkOrder(t, nil) }

// checkOrder compares the destination with what was published. Every change must be there with its key and value. The
// history of a lane may go back only to the first message of a repeated Publish, in the order of these calls (restarts:
// ascending indexes by lane): a message that is there twice was published twice, because it had not been acknowledged.
// Without restarts, and with exact retries, nothing may be there twice. // I3
func (tr *publishedTruth) checkOrder(t testing.TB, restarts map[sinks.Lane][]int) {
	t.Helper()
	tr.checkContents(t)
	if tr.h.ExactRetry {
		restarts = nil
	}
	places, lines := tr.indexChanges()
	newest := make(map[string]int)   // index of the last change seen, plus one
	starts := make(map[string][]int) // restarts that were not used yet
	for name, l := range lines {
		starts[name] = l.restartIndexes(restarts[l.lane])
	}
	for _, d := range tr.readOwnMessages(t) {
		at, known := places[d.ID]
		if !known {
			t.Errorf("the destination holds %s, which was not published", d.ID)
			continue
		}
		if at.index > newest[at.line] {
			t.Errorf("lane %s: %s, message %d, was found where message %d is due", at.line, d.ID, at.index, newest[at.line])
		}
		if at.index < newest[at.line] {
			starts[at.line] = acceptRepetition(t, at, d.ID, starts[at.line])
		}
		newest[at.line] = at.index + 1
	}
	for name, l := range lines {
		if newest[name] != len(l.inLane) {
			t.Errorf("lane %s: ends with message %d of %d", name, newest[name], len(l.inLane))
		}
	}
}

// acceptRepetition accepts a repetition that begins where a Publish began again, no earlier than the last one accepted, and
// returns the starts that are left.
func acceptRepetition(t testing.TB, at linePosition, id string, starts []int) []int {
	t.Helper()
	if i := slices.Index(starts, at.index); i >= 0 {
		return starts[i+1:]
	}
	t.Errorf("lane %s goes back to message %d, %s, from where nothing may be repeated", at.line, at.index, id)
	return nil
}

// checkContents checks that nothing is missing, key and value of every message, and tombstones if they are promised.
func (tr *publishedTruth) checkContents(t testing.TB) {
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
		if value := tr.h.expectedValue(m.Change); string(d.Value) != value {
			t.Errorf("%s has the value %.200s\nwant %.200s", d.ID, d.Value, value)
		}
		if tr.h.isInWrongTopic(t, m, d.Topic) {
			t.Errorf("%s is in topic %q, but was sent to %v", d.ID, d.Topic, m.Topic)
		}
		if key := tr.h.expectedKey(m.Change); d.Key != key {
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
