package state

import (
	"context"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// startWithGoneLanes returns a world and a process that has taken over after lanes of the first topic were deleted.
func startWithGoneLanes(t *testing.T, gone ...sinks.Lane) (*world, *process) {
	t.Helper()
	w := newWorld(t, 1, false)
	before := w.startProcess(nil)
	if err := before.takeOver(); err != nil {
		t.Fatal(err)
	}
	before.settleAll() // the first list
	for range 40 {
		w.cluster.changeObject()
	}
	before.settleAll()
	lanes := map[sinks.Lane]sinks.LanePosition{"first/8": 100, "first/9": 100}
	if err := before.writer.checkpoints.storeNewLanes(context.Background(), "first", lanes); err != nil {
		t.Fatal(err)
	}
	w.topics["first"].deleted = map[sinks.Lane]bool{}
	for _, lane := range gone {
		w.topics["first"].deleted[lane] = true
	}
	p := w.startProcess(vfs.NewMem())
	if err := p.takeOver(); err != nil {
		t.Fatal(err)
	}
	return w, p
}

// storedLanes returns the lanes of the first topic that a standby reads from the state, with their tails.
func (w *world) storedLanes() map[sinks.Lane]sinks.Tail {
	w.t.Helper()
	reader := w.startProcess(vfs.NewMem())
	defer reader.shutDown()
	c, err := reader.writer.mirror.readContent(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return reader.writer.mirror.tailStart("first", c).lanes
}

func TestALaneThatIsGoneLeavesTheState(t *testing.T) {
	w, p := startWithGoneLanes(t, "first/9")
	if _, ok := w.storedLanes()["first/9"]; !ok {
		t.Error("the lane left before the state has what its tail held")
	}
	for range 40 {
		w.cluster.changeObject()
	}
	p.settleAll()
	lanes := w.storedLanes()
	if _, ok := lanes["first/9"]; ok {
		t.Errorf("the state still has %v", lanes)
	}
	if _, ok := lanes["first/8"]; !ok {
		t.Errorf("the state has %v, and only first/9 is gone", lanes)
	}
	for key := range w.startedTable().others {
		if key[0] != keyProgress {
			continue
		}
		if n, _, _ := decodeKey(key); !slices.Contains(w.laneNumbers(), n) {
			t.Errorf("the position of lane %d is left", n)
		}
	}
	w.verifyTopic("first", true)
}

// startedTable returns the entries that a standby reads.
func (w *world) startedTable() *table {
	w.t.Helper()
	reader := w.startProcess(vfs.NewMem())
	defer reader.shutDown()
	if err := reader.writer.mirror.readStored(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	return reader.writer.mirror.table
}

func (w *world) laneNumbers() (numbers []uint64) {
	_ = w.startedTable().eachOther(keyLane, func(n uint64, _, _ string) error {
		numbers = append(numbers, n)
		return nil
	})
	return numbers
}

// TestTheStateKnowsHowFarLanesHaveGot: a checkpoint is taken before what it covers is delivered.
func TestTheStateKnowsHowFarLanesHaveGot(t *testing.T) {
	w, p := startWithGoneLanes(t)
	p.settleAll()
	for range 40 {
		w.cluster.changeObject()
	}
	for name := range p.scopes {
		p.watchScope(name)
	}
	p.writer.checkpoints.takeCheckpoint()
	p.deliverAll()
	if err := p.writer.checkpoints.commitSettled(t.Context()); err != nil {
		t.Fatal(err)
	}
	behind := 0
	for lane, tail := range w.storedLanes() {
		end := w.topics["first"].lanes[lane].next
		if lane == "first/8" || lane == "first/9" {
			continue
		}
		if tail.Reached != end || tail.From > end {
			t.Errorf("lane %s ends at %d, and is in the state as %+v", lane, end, tail)
		}
		if tail.From < end {
			behind++
		}
	}
	if behind == 0 {
		t.Error("the checkpoint was taken behind everything: the test shows nothing")
	}
}

// TestALaneThatIsUsedAgainStaysInTheState has messages for lanes that were gone, before and after the state drops them.
func TestALaneThatIsUsedAgainStaysInTheState(t *testing.T) {
	w, p := startWithGoneLanes(t, "first/0", "first/1", "first/2")
	for range 3 {
		for range 40 {
			w.cluster.changeObject()
		}
		p.settleAll()
		lanes := w.storedLanes()
		for lane, partition := range w.topics["first"].lanes {
			if !w.topics["first"].deleted[lane] {
				continue
			}
			if tail, ok := lanes[lane]; !ok && len(partition.messages) > 0 || tail.From > partition.next {
				t.Errorf("lane %s, which ends at %d, is in the state at %d, %t", lane, partition.next, tail.From, ok)
			}
		}
	}
	next := w.startProcess(vfs.NewMem())
	if err := next.takeOver(); err != nil {
		t.Fatal(err)
	}
	next.settleAll()
	w.verifyTopic("first", true)
}
