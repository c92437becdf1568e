package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// TestTakeOversNeverLoseRepeatOrReorder lets processes take over from each other at random moments, with and without their
// journals. Deposed processes continue until a destination rejects them. The API server may lose history in between, and
// some processes are not allowed to read a resource. No change is lost, emitted twice, or followed by an older one, and what
// stands before the copies of a watermark is the state of the cluster at its position.
func TestTakeOversNeverLoseRepeatOrReorder(t *testing.T) {
	for seed := range uint64(64) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel() // it mostly waits for the journal
			runTakeOvers(t, seed)
		})
	}
}

// TestASinkThatWasNoMemberGetsAGapForWhatItMissed lets processes take over from each other of which only some have the
// second sink, with and without their journals. What that sink misses lies inside a gap that it got; the first sink misses
// nothing, and gets no gap.
func TestASinkThatWasNoMemberGetsAGapForWhatItMissed(t *testing.T) {
	missing := make([]int, 32)
	t.Run("seeds", func(t *testing.T) {
		for seed := range uint64(len(missing)) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel() // it mostly waits for the journal
				w := newWorld(t, seed, false)
				w.varyMembers = true
				p := w.playTakeOvers(true)
				for !slices.Contains(p.members, "second") {
					p = w.failOver(p)
				}
				p.settleAll()
				w.verifyTopic("first", true)
				for _, e := range slices.Concat(slices.Collect(maps.Values(w.topics["first"].messagesByLane()))...) {
					if e.Type == event.Gap {
						t.Errorf("first: a gap, %s", e.ID)
					}
				}
				missing[seed] = w.verifyGaps("second")
			})
		}
	})
	if slices.Max(missing) == 0 {
		t.Error("the second sink never missed anything")
	}
}

func runTakeOvers(t *testing.T, seed uint64) {
	whole := seed%2 == 0 // the API server keeps all of its history
	w := newWorld(t, seed, seed%4 == 3)
	p := w.playTakeOvers(whole)
	p.settleAll()
	complete := 0
	for name := range w.topics {
		w.verifyTopic(name, whole && !w.topics[name].compact)
		if !w.topics[name].compact {
			complete += w.verifyWatermarks(name)
		}
	}
	if seed%4 != 3 && complete == 0 {
		t.Error("no watermark was in all lanes")
	}
}

// playTakeOvers plays random events with six failovers, and returns the last process. All end with the test.
func (w *world) playTakeOvers(whole bool) *process {
	p := w.startProcess(nil)
	if err := p.takeOver(); err != nil {
		w.t.Fatal(err)
	}
	// Deliver the first list. A process that takes over without knowing of it starts another snapshot, and the objects that
	// that one does not name are gone without a deletion.
	p.settleAll()
	for range 8 {
		for range 40 + w.random.IntN(150) {
			w.playRandomEvent(p, whole)
		}
		if whole && w.random.IntN(2) == 0 {
			w.topics["first"].stickLane(sinks.Lane(fmt.Sprintf("first/%d", w.random.IntN(3))))
		}
		p = w.failOver(p)
		p.forbidden = ""
		if w.random.IntN(3) == 0 {
			p.forbidden = slices.Sorted(maps.Keys(resources))[w.random.IntN(len(resources))]
		}
	}
	p.forbidden = ""
	return p
}

// playRandomEvent makes a change in the cluster, or a step of the active process or of one that is deposed without knowing
// it.
func (w *world) playRandomEvent(p *process, whole bool) {
	switch n := w.random.IntN(10); {
	case n < 2:
		w.cluster.changeObject()
	case n == 2 && !whole && w.random.IntN(4) == 0:
		w.cluster.compacted = w.cluster.version
	case n == 3 && len(w.predecessors) > 0:
		w.predecessors[w.random.IntN(len(w.predecessors))].stepRandomly()
	default:
		w.failAfter(w.random.IntN(400))
		p.stepRandomly()
		w.bus.failWrite = nil
	}
}

// failAfter kills the process that does the nth write to the state; 0 kills none.
func (w *world) failAfter(n int) {
	w.bus.failWrite = func() error {
		if n--; n == 0 {
			return errKilled
		}
		return nil
	}
}

// failOver lets another process take over, on a new journal or on that of p. It may be killed during the take-over.
func (w *world) failOver(p *process) *process {
	for {
		var next *process
		if w.random.IntN(3) == 0 { // p was killed and restarts on its volume
			p.shutDown()
			next = w.startProcess(p.fs)
		} else {
			w.predecessors = append(w.predecessors, p)
			next = w.startProcess(vfs.NewMem())
		}
		for range w.random.IntN(3) {
			if err := next.writer.readStandby(context.Background()); err != nil {
				w.t.Fatal(err)
			}
			w.playRandomEvent(p, true)
		}
		w.failAfter(w.random.IntN(8))
		err := next.takeOver()
		w.bus.failWrite = nil
		if err == nil {
			return next
		}
		if !errors.Is(err, errKilled) {
			w.t.Fatal(err)
		}
		next.deposed = true
		p = next
	}
}
