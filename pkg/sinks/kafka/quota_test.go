package kafka

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// A broker with a quota answers at once, and then reads nothing more from the connection until the mean rate is below the
// quota again (KIP-219): here for longer than the sink waits for an answer. What lies there unread is sent again over
// another connection, and the broker reads both in the end.
func TestAQuotaLosesRepeatsAndReordersNothing(t *testing.T) {
	const partitions, each, size, clientID = 2, 40, 40_000, "throttled"
	b := apache(t)
	cfg := Config{Brokers: b.Brokers(), Topic: topicA, ClientID: clientID, Compression: "none", RequestTimeout: time.Second,
		CreateTopics: CreateTopics{Enabled: true, Partitions: partitions}}
	s := created(t, cfg)
	cfg.Topic = "another"
	created(t, cfg)
	limit(t, b.Brokers(), clientID, size/2)

	var lanes sync.WaitGroup
	for p := range partitions {
		lanes.Go(func() {
			for v := 1; v <= each; v += 4 {
				insist(t, s, laneName(topicA, int32(p), partitions), large("p"+itoa(p), v, v+4, size))
			}
		})
	}
	lanes.Wait()
	if wait := throttled(t, b.Brokers(), clientID, "another"); wait < cfg.RequestTimeout {
		t.Errorf("the broker throttles this client for %v; want more than %v", wait, cfg.RequestTimeout)
	}
	wantStreams(t, read(t, b.Brokers(), topicA), partitions, each)
	if now := s.Status(); now.State != Ready {
		t.Errorf("status %+v; want it to be ready", now)
	}
}

// large are versions from to (exclusive) of one pod, with so many bytes each.
func large(name string, from, to, size int) []sinks.Message {
	messages := pods(name, from, to)
	for _, m := range messages {
		m.Change.After = slices.Concat([]byte(`{"x":"`), []byte(random(size)), []byte(`"}`))
	}
	return messages
}

// limit sets a quota: so many bytes a second for clients of this ID.
func limit(t *testing.T, brokers []string, clientID string, bytes float64) {
	t.Helper()
	ask(t, brokers, func(ctx context.Context, c *kafka.Client) error {
		r, err := c.AlterClientQuotas(ctx, &kafka.AlterClientQuotasRequest{Entries: []kafka.AlterClientQuotaEntry{{
			Entities: []kafka.AlterClientQuotaEntity{{EntityType: "client-id", EntityName: clientID}},
			Ops:      []kafka.AlterClientQuotaOps{{Key: "producer_byte_rate", Value: bytes}},
		}}})
		if err != nil {
			return err
		}
		return r.Entries[0].Error
	})
}

// throttle notes what brokers say about a quota.
type throttle struct{ most atomic.Int64 }

func (th *throttle) OnBrokerThrottle(_ kgo.BrokerMetadata, d time.Duration, _ bool) {
	th.most.Store(max(th.most.Load(), int64(d)))
}

// throttled says how long the broker wants a client of this ID to wait after one small record more.
func throttled(t *testing.T, brokers []string, clientID, topic string) time.Duration {
	t.Helper()
	var told throttle
	c, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ClientID(clientID), kgo.WithHooks(&told))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return time.Duration(told.most.Load())
}
