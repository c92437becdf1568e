package kafka

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// A broker with a quota answers at once, and then reads nothing from the connection until the mean rate is below the quota
// again (KIP-219): here for longer than the request timeout. No request is sent until then, and no connection is dropped.
func TestAQuotaLosesRepeatsAndReordersNothing(t *testing.T) {
	const partitions, size, clientID = 2, 36_000, "throttled"
	b := startKafka(t)
	s, log := openSinkWithLog(t, Config{Brokers: b.Brokers(), Topic: topicA, ClientID: clientID, Compression: "none", BatchBytes: minBatchBytes,
		RequestTimeout: 5 * time.Second, CreateTopics: CreateTopics{Enabled: true, Partitions: partitions}})
	opened := countDials(s)
	waitForTopic(t, s)
	lane := func(p int) sinks.Lane { return laneName(topicA, int32(p), partitions) }
	for p := range partitions {
		publishUntilAccepted(t, s, lane(p), pods("p"+itoa(p), 1, 2))
	}
	before := opened.Load()
	setProducerQuota(t, b.Brokers(), clientID, size/9) // Kafka measures over 10 s

	each, leader := 1, b.Address()
	for began := time.Now(); s.cluster.Dialer.Throttle.Remaining(leader) <= s.config.RequestTimeout; each += 2 { // until the quota applies
		if time.Since(began) > testTimeout {
			t.Fatal("the broker does not throttle this client")
		}
		mustPublish(t, s, lane(0), largePods("p0", each+1, each+3, size))
	}
	slowed := s.SlowdownReason()
	listens := time.Now().Add(s.cluster.Dialer.Throttle.Remaining(leader))
	mustPublish(t, s, lane(1), pods("p1", 2, each+1))
	if time.Now().Before(listens) {
		t.Error("a request was sent before the throttle time was over")
	}
	mustPublish(t, s, lane(0), pods("p0", each+1, each+11))
	mustPublish(t, s, lane(1), pods("p1", each+1, each+11))

	wantStreams(t, readTopics(t, b.Brokers(), topicA), partitions, each+10)
	if !strings.Contains(slowed, `producer_byte_rate of the client ID "throttled"`) {
		t.Errorf("slowed: %q", slowed)
	}
	if n := strings.Count(log.String(), "kafka throttles requests"); n != 1 {
		t.Errorf("throttling is logged %d times:\n%s", n, log)
	}
	if n := opened.Load(); n != before {
		t.Errorf("%d connections were opened again", n-before)
	}
}

// largePods are versions from to (exclusive) of one pod with bodies of a size in bytes.
func largePods(name string, from, to, size int) []sinks.Message {
	messages := pods(name, from, to)
	for _, m := range messages {
		m.Change.After = slices.Concat([]byte(`{"x":"`), []byte(randomText(size)), []byte(`"}`))
	}
	return messages
}

// setProducerQuota sets the produce quota of a client ID in bytes per second.
func setProducerQuota(t *testing.T, brokers []string, clientID string, bytes float64) {
	t.Helper()
	withClient(t, brokers, func(ctx context.Context, c *kafka.Client) error {
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
