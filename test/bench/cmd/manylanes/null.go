package main

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	objects = most
	body    = 4000 // bytes of an object
)

// null is a destination that accepts everything after a millisecond. Its lanes lead to it alone.
type null struct{ names []sinks.Lane }

func newNull(lanes int) null {
	names := make([]sinks.Lane, lanes)
	for i := range names {
		names[i] = sinks.Lane(fmt.Sprintf("k8s.core.pods/%d", i))
	}
	return null{names}
}

// Concurrency is that of the Kafka sink.
func (n null) Concurrency() int { return 256 }

func (n null) Lane(c *event.Change) (sinks.Lane, error) {
	return n.names[int(c.Generation)%len(n.names)], nil
}

func (n null) Publish(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
	time.Sleep(time.Millisecond)
	return len(batch), nil
}

func (n null) Close(context.Context) error { return nil }

// changesOf makes versions of the same objects, interleaved as time would. A third of a body is as random as names, hashes
// and addresses are; the rest repeats.
func changesOf(n int) iter.Seq[*event.Change] {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	source := rand.New(rand.NewPCG(1, 1))
	return func(yield func(*event.Change) bool) {
		for i := range n {
			after := append(make([]byte, 0, body+64), `{"kind":"Pod","apiVersion":"v1","spec":{`...)
			for field := 0; len(after) < body; field++ {
				after = append(strconv.AppendInt(append(after, `"terminationMessagePath`...), int64(field), 10), `":"/dev/`...)
				for range 16 {
					after = append(after, alphabet[source.IntN(len(alphabet))])
				}
				after = append(after, `",`...)
			}
			after = append(after[:len(after)-1], `}}`...)
			object := i % objects
			if !yield(&event.Change{
				Type: event.Updated, Cluster: "bench", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
				Namespace: "shop", Name: fmt.Sprint("web-", object), UID: fmt.Sprint(object), Generation: int64(object),
				ResourceVersion: fmt.Sprint(i + 1), ObservedAt: time.Now(), After: after,
			}) {
				return
			}
		}
	}
}
