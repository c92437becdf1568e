package away

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// judge reads the stream and compares it with what was fed: version n is the n-th change, and the next of its object is
// n+objects.
func (r *run) judge(ctx context.Context) error {
	nc, err := natsgo.Connect(r.server.URL())
	if err != nil {
		return err
	}
	closed := make(chan struct{})
	nc.SetClosedHandler(func(*natsgo.Conn) { close(closed) })
	defer func() { nc.Close(); <-closed }()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	consumer, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{HeadersOnly: true})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	seen := make([]bool, r.report.Fed)
	newest := make([]int, objects)
	for left := s.CachedInfo().State.Msgs; left > 0; left-- {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		if err := r.see(m.Headers().Get(natsgo.MsgIdHdr), seen, newest); err != nil {
			return err
		}
	}
	for _, there := range seen {
		if !there {
			r.report.Missing++
		}
	}
	return nil
}

// see notes one message by its ID, cluster/uid/version/type.
func (r *run) see(id string, seen []bool, newest []int) error {
	parts := strings.Split(id, "/")
	if len(parts) != 4 {
		return fmt.Errorf("the stream holds %q", id)
	}
	n, err := strconv.Atoi(parts[2])
	if err != nil || n >= len(seen) {
		return fmt.Errorf("the stream holds %q, of %d changes", id, len(seen))
	}
	if seen[n] {
		r.report.Duplicates++
	}
	seen[n] = true
	object := n % objects
	if n < newest[object] {
		r.report.StepsBack++
	}
	newest[object] = n
	return nil
}
