package state

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Processes take over from each other at random moments, with and without their journals; those before go on until they are
// told. History may be lost to the API server in between. Nothing is lost, told twice, or followed by something older.
func TestTakeOversLoseRepeatAndReorderNothing(t *testing.T) {
	for seed := range uint64(64) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel() // it waits for the journal mostly
			takeOvers(t, seed)
		})
	}
}

func takeOvers(t *testing.T, seed uint64) {
	whole := seed%2 == 0 // the API server keeps all of its history
	w := newWorld(t, seed, seed%4 == 3)
	p := w.start(nil)
	defer func() {
		for _, p := range append(w.before, p) {
			p.end()
		}
	}()
	if err := p.takeOver(); err != nil {
		t.Fatal(err)
	}
	// The first list claims nothing of what happened before, and one that nobody knows of is another snapshot to who takes
	// over: what that does not name is gone.
	p.settle()
	for range 6 {
		for range 40 + w.random.IntN(150) {
			w.turn(p, whole)
		}
		p = w.next(p)
	}
	p.settle()
	for name := range w.topics {
		w.judge(name, whole && !w.topics[name].compact)
	}
}

// turn lets something happen: in the cluster, in the process that works, or in one that has not heard yet that it does not.
func (w *world) turn(p *process, whole bool) {
	switch n := w.random.IntN(10); {
	case n < 2:
		w.cluster.change()
	case n == 2 && !whole && w.random.IntN(4) == 0:
		w.cluster.compacted = w.cluster.version
	case n == 3 && len(w.before) > 0:
		w.before[w.random.IntN(len(w.before))].step()
	default:
		p.step()
	}
}

// next lets another process take over, one with a new journal, or with that of an earlier one. It may be killed meanwhile.
func (w *world) next(p *process) *process {
	for {
		var next *process
		if w.random.IntN(3) == 0 { // p was killed, and is started again on its volume
			p.end()
			next = w.start(p.fs)
		} else {
			w.before = append(w.before, p)
			next = w.start(vfs.NewMem())
		}
		for range w.random.IntN(3) {
			if err := next.keeper.follow(context.Background()); err != nil {
				w.t.Fatal(err)
			}
			w.turn(p, true)
		}
		writes := w.random.IntN(6)
		w.bus.fail = func() error {
			if writes--; writes == 0 {
				return errKilled
			}
			return nil
		}
		err := next.takeOver()
		w.bus.fail = nil
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
