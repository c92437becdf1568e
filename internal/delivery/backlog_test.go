package delivery

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

func (b *backlog) mustAdd(t *testing.T, r event.Record) *lane {
	t.Helper()
	if _, ok := b.add(sinks.Lane(r.Change.Namespace), newEntry(r, nil, nil)); !ok {
		t.Fatalf("no room for %d", r.Offset)
	}
	return b.lanes[sinks.Lane(r.Change.Namespace)]
}

func TestTheCursorNamesOnlyLanesThatAreNotDone(t *testing.T) {
	b := newBacklog("", 1<<20, event.Cursor{})
	lanes := map[uint64]*lane{}
	for _, r := range changesIn("a", "b", "c", "a", "c") {
		lanes[r.Offset] = b.mustAdd(t, r)
	}
	b.acknowledge(lanes[1], 1, time.Time{}) // a: 1 done, 4 waits
	b.acknowledge(lanes[3], 2, time.Time{}) // c: 3 and 5 done
	if c, _ := b.snapshot(); fmt.Sprint(c.Low, c.High, c.Lanes) != "1 5 map[a:3 b:1]" {
		t.Errorf("cursor %d %d %v, want 1 5 map[a:3 b:1]", c.Low, c.High, c.Lanes)
	}
	if b.advanced() {
		t.Error("the same snapshot is offered twice")
	}
	b.acknowledge(lanes[2], 1, time.Time{})
	if c, _ := b.snapshot(); fmt.Sprint(c.Low, c.High, c.Lanes) != "3 5 map[a:3]" {
		t.Errorf("cursor %d %d %v, want 3 5 map[a:3]", c.Low, c.High, c.Lanes)
	}
}

func TestADeadLetterMadeDuringAWriteGoesIntoTheNext(t *testing.T) {
	b := newBacklog("", 1<<20, event.Cursor{})
	var l *lane
	for _, r := range changesIn("a", "a", "a") {
		l = b.mustAdd(t, r)
	}
	b.reject(l, "first", time.Time{})
	first, dead := b.snapshot()
	b.reject(l, "second", time.Time{})
	b.stored(first, len(dead))
	second, dead := b.snapshot()
	if first.Low != 1 || second.Low != 2 || len(dead) != 1 || dead[0].Offset != 2 || dead[0].Reason != "second" {
		t.Errorf("cursors %d and %d, second write has %+v", first.Low, second.Low, dead)
	}
	b.stored(second, len(dead))
	if size := int64(l.pending()[0].size); b.bytes != size {
		t.Errorf("window holds %d bytes, want the %d of what is pending", b.bytes, size)
	}
}

func TestABatchIsBoundedButNeverEmpty(t *testing.T) {
	b := newBacklog("", 1<<20, event.Cursor{})
	var l *lane
	for _, r := range changesIn("a", "a", "a", "a", "a") {
		l = b.mustAdd(t, r)
	}
	size := int64(l.entries[0].size)
	for _, c := range []struct {
		messages int
		bytes    int64
		want     int
	}{{1000, 1 << 20, 5}, {2, 1 << 20, 2}, {1000, 3 * size, 3}, {1000, 3*size - 1, 2}, {1000, 1, 1}} {
		if got, _ := b.take(l, nil, c.messages, c.bytes); len(got) != c.want || got[0].Offset != 1 {
			t.Errorf("at most %d messages and %d bytes: took %d, want %d", c.messages, c.bytes, len(got), c.want)
		}
	}
}

func TestAStuckLaneDoesNotKeepJournalFramesAlive(t *testing.T) {
	const frames, frameSize = 60, 1 << 16
	b := newBacklog("", 10*frameSize, event.Cursor{})
	alive := make([]weak.Pointer[[frameSize]byte], frames)
	for i := range frames {
		frame := new([frameSize]byte)
		alive[i] = weak.Make(frame)
		frame[0], frame[1] = byte(i), 42
		// One small change of a lane that never advances, and a large one that is delivered at once.
		b.mustAdd(t, event.Record{Offset: uint64(2*i + 1), Change: &event.Change{Namespace: "stuck", After: frame[:2]}})
		l := b.mustAdd(t, event.Record{Offset: uint64(2*i + 2), Change: &event.Change{Namespace: "fast", After: frame[2:]}})
		b.acknowledge(l, 1, time.Time{})
		b.unpin(frameSize)
	}
	runtime.GC()
	kept := 0
	for _, p := range alive {
		if p.Value() != nil {
			kept++
		}
	}
	if kept > 20 {
		t.Errorf("%d frames are alive, want at most the 20 of two windows", kept)
	}
	stuck, _ := b.take(b.lanes["stuck"], nil, frames, 1<<30)
	for i, m := range stuck {
		if m.Change.After[0] != byte(i) || m.Change.After[1] != 42 {
			t.Fatalf("change %d came back as %v", i, m.Change.After)
		}
	}
	if kept == 0 {
		t.Error("no frame is alive: changes were copied that need not be")
	}
}

func TestALaneInSteadyFlowDoesNotAllocate(t *testing.T) {
	b := newBacklog("", 1<<30, event.Cursor{})
	change := &event.Change{Namespace: "a"}
	offset := uint64(0)
	add := func() *lane {
		offset++
		return b.mustAdd(t, event.Record{Offset: offset, Change: change})
	}
	for range 100 {
		add()
	}
	if n := testing.AllocsPerRun(10_000, func() { b.acknowledge(add(), 1, time.Time{}) }); n != 0 {
		t.Errorf("%v allocations a change, want none", n)
	}
	if c := cap(b.lanes["a"].entries); c > 1000 {
		t.Errorf("a queue of 100 changes holds space for %d", c)
	}
}
