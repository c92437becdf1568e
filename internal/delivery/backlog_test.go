package delivery

import (
	"fmt"
	"maps"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

func (b *backlog) mustAddChange(t *testing.T, r event.Record) *lane {
	t.Helper()
	if _, ok := b.addChange(r.Offset, []placement{{sinks.Lane(r.Change.Namespace), newEntry(r, nil, nil)}}, nil); !ok {
		t.Fatalf("no room for %d", r.Offset)
	}
	return b.lanes.byName[sinks.Lane(r.Change.Namespace)]
}

// checkSums compares the sets and sums of a lane table with what its lanes hold.
func checkSums(t *testing.T, b *backlog) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	want := newLaneTable(b.lanes.window.fixed, 0)
	want.window.lanes = len(b.lanes.byName)
	for _, u := range b.cursor.unstored {
		want.window.used += int64(u.size)
	}
	for name, l := range b.lanes.byName {
		copied := lane{state: l.state, lagsFrom: l.lagsFrom, drainedAt: l.drainedAt}
		want.updateMembership(&copied)
		size := int64(0)
		for _, e := range l.queue.pendingEntries() {
			want.queueEntry(&copied, e)
			size += int64(e.size)
		}
		_, busy := b.lanes.busy[l]
		_, catchingUp := b.lanes.catchingUp[l]
		if l.membership != copied.membership || busy != copied.membership.busy || catchingUp != copied.membership.catchingUp ||
			l.queue.bytes != size {
			t.Errorf("lane %q: membership %+v in sets %v and %v with %d bytes, want %+v with %d", name, l.membership, busy, catchingUp,
				l.queue.bytes, copied.membership, size)
		}
	}
	got := &b.lanes
	if got.window != want.window || got.pending != want.pending || got.lagging != want.lagging || got.failing != want.failing ||
		len(got.busy) != len(want.busy) || len(got.catchingUp) != len(want.catchingUp) {
		t.Errorf("the sums of the lane table are %+v\nwant %+v", got, want)
	}
}

func TestTheCursorNamesOnlyUnfinishedLanes(t *testing.T) {
	b := newBacklog("", 1<<20, event.Cursor{}, nil)
	lanes := map[uint64]*lane{}
	for _, r := range changesIn("a", "b", "c", "a", "c") {
		lanes[r.Offset] = b.mustAddChange(t, r)
	}
	b.acknowledgeOldest(lanes[1], 1, time.Time{}) // a: 1 done, 4 waits
	b.acknowledgeOldest(lanes[3], 2, time.Time{}) // c: 3 and 5 done
	if c, _ := b.takeSnapshot(); fmt.Sprint(c.Low, c.High, c.Lanes) != "1 5 map[a:3 b:1]" {
		t.Errorf("cursor %d %d %v, want 1 5 map[a:3 b:1]", c.Low, c.High, c.Lanes)
	}
	if b.hasAdvanced() {
		t.Error("the same snapshot is offered twice")
	}
	b.acknowledgeOldest(lanes[2], 1, time.Time{})
	if c, _ := b.takeSnapshot(); fmt.Sprint(c.Low, c.High, c.Lanes) != "3 5 map[a:3]" {
		t.Errorf("cursor %d %d %v, want 3 5 map[a:3]", c.Low, c.High, c.Lanes)
	}
}

func TestADeadLetterMadeDuringAWriteGoesIntoTheNext(t *testing.T) {
	b := newBacklog("", 1<<20, event.Cursor{}, nil)
	var l *lane
	for _, r := range changesIn("a", "a", "a") {
		l = b.mustAddChange(t, r)
	}
	b.deadLetterEntry(l, 0, "first", time.Time{})
	first, dead := b.takeSnapshot()
	b.deadLetterEntry(l, 0, "second", time.Time{})
	b.recordStored(first, len(dead))
	second, dead := b.takeSnapshot()
	if first.Low != 1 || second.Low != 2 || len(dead) != 1 || dead[0].Offset != 2 || dead[0].Reason != "second" {
		t.Errorf("cursors %d and %d, second write has %+v", first.Low, second.Low, dead)
	}
	b.recordStored(second, len(dead))
	if size := int64(l.queue.pendingEntries()[0].size); b.lanes.window.used != size {
		t.Errorf("window holds %d bytes, want the %d of what is pending", b.lanes.window.used, size)
	}
}

func TestABatchIsBoundedButNeverEmpty(t *testing.T) {
	b := newBacklog("", 1<<20, event.Cursor{}, nil)
	var l *lane
	for _, r := range changesIn("a", "a", "a", "a", "a") {
		l = b.mustAddChange(t, r)
	}
	size := int64(l.queue.entries[0].size)
	for _, c := range []struct {
		messages int
		bytes    int64
		want     int
	}{{1000, 1 << 20, 5}, {2, 1 << 20, 2}, {1000, 3 * size, 3}, {1000, 3*size - 1, 2}, {1000, 1, 1}} {
		if got, _ := b.takeBatch(l, nil, c.messages, c.bytes); len(got) != c.want || got[0].Offset != 1 {
			t.Errorf("at most %d messages and %d bytes: took %d, want %d", c.messages, c.bytes, len(got), c.want)
		}
	}
}

func TestAStuckLaneDoesNotKeepJournalFramesAlive(t *testing.T) {
	const frames, frameSize = 60, 1 << 16
	b := newBacklog("", 10*frameSize, event.Cursor{}, nil)
	alive := make([]weak.Pointer[[frameSize]byte], frames)
	for i := range frames {
		frame := new([frameSize]byte)
		alive[i] = weak.Make(frame)
		frame[0], frame[1] = byte(i), 42
		// One small change of a lane that never advances, and a large one that is delivered at once.
		b.mustAddChange(t, event.Record{Offset: uint64(2*i + 1), Change: &event.Change{Namespace: "stuck", After: frame[:2]}, InFrame: true})
		l := b.mustAddChange(t, event.Record{Offset: uint64(2*i + 2), Change: &event.Change{Namespace: "fast", After: frame[2:]}, InFrame: true})
		b.acknowledgeOldest(l, 1, time.Time{})
	}
	runtime.GC()
	kept := 0
	for _, p := range alive {
		if p.Value() != nil {
			kept++
		}
	}
	if kept > 0 {
		t.Errorf("%d frames are alive", kept)
	}
	stuck, _ := b.takeBatch(b.lanes.byName["stuck"], nil, frames, 1<<30)
	for i, m := range stuck {
		if m.Change.After[0] != byte(i) || m.Change.After[1] != 42 {
			t.Fatalf("change %d came back as %v", i, m.Change.After)
		}
	}
}

func TestALaneInSteadyFlowAllocatesNothing(t *testing.T) {
	b := newBacklog("", 1<<30, event.Cursor{}, nil)
	change := &event.Change{Namespace: "a"}
	offset := uint64(0)
	add := func() *lane {
		offset++
		return b.mustAddChange(t, event.Record{Offset: offset, Change: change})
	}
	for range 100 {
		add()
	}
	if n := testing.AllocsPerRun(10_000, func() { b.acknowledgeOldest(add(), 1, time.Time{}) }); n != 0 {
		t.Errorf("%v allocations a change", n)
	}
	if c := cap(b.lanes.byName["a"].queue.entries); c > 1000 {
		t.Errorf("a queue of 100 changes holds space for %d", c)
	}
}

// TestNewLanesBeginWhereAllOldOnesHaveGotTo: a crash at any moment needs no other knowledge than the positions of lanes.
func TestNewLanesBeginWhereAllOldOnesHaveGotTo(t *testing.T) {
	b := newBacklog("", 1<<20, event.Cursor{}, nil)
	records := changesIn("a", "b", "a", "b", "a", "c")
	ahead, behind := b.mustAddChange(t, records[0]), b.mustAddChange(t, records[1])
	b.mustAddChange(t, records[2])
	b.acknowledgeOldest(ahead, 2, time.Time{})
	replacer := newLaneReplacer(b)
	r := sinks.Repartition{From: []sinks.Lane{"a", "b"}, To: []sinks.Lane{"new"}}
	if stopped, _ := replacer.stopLanes(r); stopped {
		t.Fatal("replaced while a change is queued")
	}
	for _, record := range records[3:] {
		b.mustAddChange(t, record)
	}
	checkSums(t, b)
	b.acknowledgeOldest(behind, 1, time.Time{})
	if stopped, _ := replacer.stopLanes(r); !stopped {
		t.Fatal("not replaced when all of them have got to 3")
	}
	replacer.replaceLanes(r)
	b.acknowledgeOldest(b.lanes.byName["c"], 1, time.Time{})
	checkSums(t, b)
	if cursor, _ := b.cursor.takeSnapshot(&b.lanes); !maps.Equal(cursor.Lanes, map[string]uint64{"new": 3}) {
		t.Errorf("the cursor is %+v", cursor)
	}
}

func TestALaneInDoubtIsNotReplaced(t *testing.T) {
	b := newBacklog("", 1<<20, event.Cursor{}, nil)
	l := b.mustAddChange(t, changesIn("a")[0])
	r := sinks.Repartition{From: []sinks.Lane{"a"}, To: []sinks.Lane{"b"}}
	replacer := newLaneReplacer(b)
	b.markWorking(l, true) // the sink was unavailable
	if stopped, _ := replacer.stopLanes(r); stopped || l.paused {
		t.Error("changes in doubt may move to another lane")
	}
	b.markWorking(l, false)
	if stopped, _ := replacer.stopLanes(r); !stopped {
		t.Error("a lane without problems is not replaced")
	}
}
