package sinktest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// ledger is what a caller keeps of one sink over its lives: how far each lane is acknowledged, how far that is stored, and
// the sink's state with it.
type ledger struct {
	mu    sync.Mutex
	acked map[sinks.Lane]int // messages, in this life

	storing sync.Mutex
	sink    sinks.Stateful // nil: keeps no state
	stored  map[sinks.Lane]int
	state   []byte
}

// storeProgress does what delivery does: first the positions, then the state, both kept together.
func (l *ledger) storeProgress(context.Context) error {
	l.storing.Lock()
	defer l.storing.Unlock()
	l.mu.Lock()
	positions := make(map[sinks.Lane]int, len(l.acked))
	for lane, n := range l.acked {
		positions[lane] = n
	}
	l.mu.Unlock()
	if l.sink != nil {
		l.state = l.sink.State(0)
	}
	l.stored = positions
	return nil
}

func (l *ledger) recordAcked(lane sinks.Lane, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked[lane] += n
}

// startLife starts a life of sink from what is stored.
func (l *ledger) startLife(t testing.TB, sink sinks.Sink, newest uint64) {
	t.Helper()
	l.acked = make(map[sinks.Lane]int)
	for lane, n := range l.stored {
		l.acked[lane] = n
	}
	if l.sink, _ = sink.(sinks.Stateful); l.sink == nil {
		return
	}
	if err := l.sink.RestoreState(l.state, newest, l.storeProgress); err != nil {
		t.Errorf("restore: %v", err)
	}
}

// testInFlightRestarts publishes through a sink that dies again and again while batches are in flight, and whose successor
// begins where positions were stored last. Each successor finds messages that are new.
func testInFlightRestarts(t testing.TB, h Harness) {
	f, p := newChangeFactory(), openSink(t, h)
	if _, stateful := p.sink.(sinks.Stateful); stateful && !h.ExactRestart {
		t.Skip("the destination does not tell what it holds")
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 4))
	const lives, objects, each = 6, 16, 8
	messages := makeVersions(f, objects, lives*each)
	tr := newPublishedTruth(h, f, p, messages)
	l := &ledger{stored: make(map[sinks.Lane]int)}
	restarts := make(map[sinks.Lane][]int)
	newest := uint64(0)
	for life := 1; life <= lives; life++ {
		sink := h.New(t)
		l.startLife(t, sink, newest)
		newest = messages[life*objects*each-1].Offset
		positions := l.stored
		for lane := range tr.lanes { // one of which nothing was stored begins at 0
			restarts[lane] = append(restarts[lane], positions[lane])
		}
		publishLife(publisher{t, sink}, l, positions, tr.lanes, newest, life < lives, random, restarts)
		closeSink(t, sink)
	}
	if h.ExactRestart {
		restarts = nil
	} else {
		tr.h.ExactRetry = false
	}
	tr.checkOrder(t, restarts)
}

// publishLife publishes all lanes from positions up to newest, concurrently, and notes where a Publish began again. A life that is
// cut short ends after some of it, with everything that is under way.
func publishLife(p publisher, l *ledger, positions map[sinks.Lane]int, lanes map[sinks.Lane][]sinks.Message, newest uint64,
	short bool, random *rand.Rand, restarts map[sinks.Lane][]int,
) {
	ctx, die := context.WithTimeout(context.Background(), testTimeout)
	defer die()
	defer func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			p.t.Errorf("a life did not come to its end")
		}
	}()
	var running sync.WaitGroup
	var mu sync.Mutex
	for lane, messages := range lanes {
		for len(messages) > 0 && messages[len(messages)-1].Offset > newest {
			messages = messages[:len(messages)-1]
		}
		own := rand.New(rand.NewPCG(random.Uint64(), 5)) // of this lane's goroutine
		begin, last := positions[lane], len(messages)
		if short {
			last = begin + own.IntN(len(messages)-begin+1)
		}
		running.Go(func() {
			again := p.publishInLife(ctx, l, lane, messages, begin, last, own)
			mu.Lock()
			defer mu.Unlock()
			restarts[lane] = append(restarts[lane], again...)
			if short && own.IntN(4) == 0 {
				die()
			}
		})
	}
	running.Wait()
}

// publishInLife publishes messages from begin to last, storing now and then, until ctx ends.
func (p publisher) publishInLife(ctx context.Context, l *ledger, lane sinks.Lane, messages []sinks.Message, begin, last int,
	random *rand.Rand,
) (again []int) {
	for done := begin; done < last && ctx.Err() == nil; {
		size := 1 + random.IntN(min(16, last-done))
		n, err := p.publishMaybeCancelled(ctx, lane, messages[done:done+size], random)
		done += n
		l.recordAcked(lane, n)
		if err != nil {
			again = append(again, done)
		}
		var rejected *sinks.RejectedError
		if errors.As(err, &rejected) {
			p.t.Errorf("a message that the destination should take: %v", err)
			return again
		}
		if random.IntN(3) == 0 {
			_ = l.storeProgress(ctx) // cannot fail
		}
	}
	return again
}
