package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

const (
	objects = 4096
	body    = 4000 // bytes of an object
)

// load is what is written.
type load struct{ messages, rounds int }

// publish returns when everything is acknowledged.
type publish func(ctx context.Context, changes []*event.Change) error

// way is one way to publish. It begins again in each round.
type way struct {
	name  string
	begin func(ctx context.Context) (p publish, end func() error, err error)
}

// result is what the rounds of one way have come to: changes a second, and processor time for each, of client and server.
type result struct{ rates, costs []float64 }

// compare runs the ways in turn. The first round warms up.
func (l load) compare(ctx context.Context, server *process.Process, ways ...way) ([]result, error) {
	all := make([]result, len(ways))
	for round := range l.rounds + 1 {
		for i, w := range ways {
			changes := changesOf(round*len(ways)+i, l.messages)
			publish, end, err := w.begin(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
			began, before := time.Now(), usedCPU(server)
			err = publish(ctx, changes)
			took, used := time.Since(began), usedCPU(server)-before
			if err := errors.Join(err, end()); err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
			if round > 0 {
				all[i].rates = append(all[i].rates, float64(l.messages)/took.Seconds())
				all[i].costs = append(all[i].costs, float64(used.Microseconds())/float64(l.messages))
			}
		}
	}
	return all, nil
}

// batchSink is a sink that says how much it takes at once.
type batchSink interface {
	sinks.Sink
	BatchLimits() (messages int, bytes int64)
}

// through publishes as delivery does: each lane in batches as large as the sink asks for, all lanes at once.
func through(s batchSink) publish {
	return func(ctx context.Context, changes []*event.Change) error {
		byLane := map[sinks.Lane][]sinks.Message{}
		for i, c := range changes {
			lane, err := s.Lane(c)
			if err != nil {
				return err
			}
			byLane[lane] = append(byLane[lane], sinks.Message{Offset: uint64(i + 1), Change: c})
		}
		most, bytes := s.BatchLimits()
		most = min(most, int(bytes)/changes[0].Size())
		var workers sync.WaitGroup
		failed := make(chan error, len(byLane))
		for lane, messages := range byLane {
			workers.Go(func() {
				for len(messages) > 0 {
					n, err := s.Publish(ctx, lane, messages[:min(len(messages), most)])
					if err != nil {
						failed <- err
						return
					}
					messages = messages[n:]
				}
			})
		}
		workers.Wait()
		close(failed)
		return <-failed
	}
}

// changesOf makes new versions of the same objects, interleaved as time would. A third of a body is as random as names,
// hashes and addresses are; the rest repeats.
func changesOf(run, n int) []*event.Change {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	source := rand.New(rand.NewPCG(uint64(run), 1))
	changes := make([]*event.Change, n)
	for i := range changes {
		after := append(make([]byte, 0, body+64), `{"kind":"Pod","apiVersion":"v1","spec":{`...)
		for field := 0; len(after) < body; field++ {
			after = append(strconv.AppendInt(append(after, `"terminationMessagePath`...), int64(field), 10), `":"/dev/`...)
			for range 16 {
				after = append(after, alphabet[source.IntN(len(alphabet))])
			}
			after = append(after, `",`...)
		}
		after = append(after[:len(after)-1], `}}`...)
		changes[i] = &event.Change{Type: event.Updated, Cluster: "bench", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
			Namespace: "shop", Name: fmt.Sprint("web-", i%objects), UID: fmt.Sprintf("%d-%d", run, i%objects),
			ResourceVersion: fmt.Sprint(run*n + i), ObservedAt: time.Now(), After: after}
	}
	return changes
}
