package sinktest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// ledger is what the caller of a sink stores across restarts: how far each lane is acknowledged, and the state of the sink.
type ledger struct {
	mu    sync.Mutex
	acked map[sinks.Lane]int // messages, in this life

	storing sync.Mutex
	sink    sinks.Stateful // nil: the sink has no state
	stored  map[sinks.Lane]int
	state   []byte
}

// storeProgress does the same as delivery: it takes the positions first, then the state, and stores both together.
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

// startLife starts sink from what is stored.
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

// testInFlightRestarts publishes through a sink that dies repeatedly while batches are in flight. Its successor begins at
// the stored positions, and has new messages as well.
func testInFlightRestarts(t testing.TB, h Harness) {
	f, p := newChangeFactory(), openSink(t, h)
	if _, stateful := p.sink.(sinks.Stateful); stateful && !h.ExactRestart {
		t.Skip("the destination does not report what it holds")
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
		for lane := range tr.lanes { // a lane without a stored position begins at 0
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

// publishLife publishes all lanes from positions up to newest, concurrently, and records where a Publish began again. A
// short life ends earlier, with batches in flight.
func publishLife(p publisher, l *ledger, positions map[sinks.Lane]int, lanes map[sinks.Lane][]sinks.Message, newest uint64,
	short bool, random *rand.Rand, restarts map[sinks.Lane][]int,
) {
	ctx, die := context.WithTimeout(context.Background(), testTimeout)
	defer die()
	defer func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			p.t.Errorf("a run did not end in time")
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

// publishInLife publishes messages from begin to last until ctx ends, and stores progress at random.
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
			p.t.Errorf("the destination should accept this message: %v", err)
			return again
		}
		if random.IntN(3) == 0 {
			_ = l.storeProgress(ctx) // cannot fail
		}
	}
	return again
}
