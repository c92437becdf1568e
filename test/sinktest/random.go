package sinktest

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// testRandomRun publishes random batches over all lanes at once under contexts that end at random moments, and goes on from
// what was acknowledged. Nothing may be missing, and no object's history may step back behind an acknowledgement.
func testRandomRun(t testing.TB, h Harness) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	PublishRandomly(t, h, rand.New(rand.NewPCG(seed, 1)), 24, 40)
}

// PublishRandomly publishes last versions of each of some objects in random batches, concurrently over their lanes, some of them
// under a context that ends while they are on their way. After each error it goes on as delivery does. Then it compares
// the destination with the truth. Callers that break connections meanwhile get the same promise.
func PublishRandomly(t testing.TB, h Harness, random *rand.Rand, objects, last int) {
	t.Helper()
	f, p := newChangeFactory(), openSink(t, h)
	p.publishTruth(newPublishedTruth(h, f, p, makeVersions(f, objects, last)), random)
}

// publishTruth publishes what is told by tr, and compares.
func (p publisher) publishTruth(tr *publishedTruth, random *rand.Rand) {
	p.t.Helper()
	var mu sync.Mutex
	restarts := make(map[sinks.Lane][]int)
	var lanes sync.WaitGroup
	for lane, messages := range tr.lanes {
		own := rand.New(rand.NewPCG(random.Uint64(), 2)) // of this lane's goroutine
		lanes.Go(func() {
			starts := p.publishLaneRandomly(lane, messages, own)
			mu.Lock()
			defer mu.Unlock()
			restarts[lane] = starts
		})
	}
	lanes.Wait()
	tr.checkOrder(p.t, restarts)
}

// publishLaneRandomly publishes one lane to its end and returns at which messages a Publish began anew after an error.
func (p publisher) publishLaneRandomly(lane sinks.Lane, messages []sinks.Message, random *rand.Rand) []int {
	var restarts []int
	done := 0
	p.retryUntilDone("publish at random", func(ctx context.Context) error {
		for done < len(messages) {
			most := 16
			if random.IntN(4) == 0 {
				most = 1000
			}
			size := 1 + random.IntN(min(most, len(messages)-done))
			n, err := p.publishMaybeCancelled(ctx, lane, messages[done:done+size], random)
			done += n
			if err != nil {
				restarts = append(restarts, done)
			}
			if err != nil && (ctx.Err() != nil || !errors.Is(err, context.Canceled)) {
				return err // such as an outage: the next attempt comes after a pause
			}
		}
		return nil
	})
	return restarts
}

// publishMaybeCancelled publishes under a context that, one time in four, ends at some moment of the call.
func (p publisher) publishMaybeCancelled(ctx context.Context, lane sinks.Lane, batch []sinks.Message, random *rand.Rand) (int, error) {
	if random.IntN(4) != 0 {
		return p.publishBatch(ctx, lane, batch)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	yields := random.IntN(200)
	var canceller sync.WaitGroup
	canceller.Go(func() {
		for range yields {
			runtime.Gosched()
		}
		cancel()
	})
	defer canceller.Wait()
	return p.publishBatch(ctx, lane, batch)
}
