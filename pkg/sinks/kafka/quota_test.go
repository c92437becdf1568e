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
// again (KIP-219): here for longer than the request timeout. Nothing is sent under the quota until then, other requests are
// answered, and an announced time of hours ends with the quota.
func TestAQuotaLosesRepeatsAndReordersNothing(t *testing.T) {
	t.Parallel()
	const partitions, size, clientID = 2, 36_000, "throttled"
	b := startKafka(t)
	s, log := openSinkWithLog(t, Config{Brokers: b.Brokers(), Topic: topicA, ClientID: clientID, Compression: "none", BatchBytes: minBatchBytes,
		RequestTimeout: 5 * time.Second, CreateTopics: CreateTopics{Enabled: true, Partitions: partitions}})
	waitForTopic(t, s)
	lane := func(p int) sinks.Lane { return laneName(topicA, int32(p), partitions) }
	for p := range partitions {
		publishUntilAccepted(t, s, lane(p), pods("p"+itoa(p), 1, 2))
	}
	setProducerQuota(t, b.Brokers(), clientID, size/9) // Kafka measures over 10 s

	each := 1
	for began := time.Now(); s.cluster.ThrottledFor() <= s.config.RequestTimeout; each += 2 { // until the quota applies
		if time.Since(began) > testTimeout {
			t.Fatal("the broker does not throttle this client")
		}
		mustPublish(t, s, lane(0), largePods("p0", each+1, each+3, size))
	}
	// The broker announces more than it takes if it applied the quota late: then the sink, which asks again, sends earlier.
	listens := time.Now().Add(s.config.RequestTimeout)
	mustPublish(t, s, lane(1), pods("p1", 2, each+1))
	if time.Now().Before(listens) {
		t.Error("a request was sent before the throttle time was over")
	}
	setProducerQuota(t, b.Brokers(), clientID, 10)
	mustPublish(t, s, lane(0), largePods("p0", each+1, each+2, size))
	slowed := s.cluster.Throttling()
	if left := s.cluster.ThrottledFor(); left < 2*testTimeout {
		t.Fatalf("the broker throttles for %v: the test shows nothing", left)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("a quota is reported as an outage: %v", err)
	}
	if _, err := s.topics.refreshLayout(t.Context(), s.topics.topicByName("k8s.other"), nil); err != nil {
		t.Errorf("a quota keeps other topics from being created: %v", err)
	}
	setProducerQuota(t, b.Brokers(), clientID, 0)
	publishUntilAccepted(t, s, lane(0), pods("p0", each+2, each+11))
	publishUntilAccepted(t, s, lane(1), pods("p1", each+1, each+11))

	wantStreams(t, readTopics(t, b.Brokers(), topicA), partitions, each+10)
	if !strings.Contains(slowed.Cause, "throttles the sink for another ") || !strings.Contains(slowed.Remedy, `producer_byte_rate of the client ID "throttled"`) {
		t.Errorf("slowed: %+v", slowed)
	}
	if n := strings.Count(log.String(), "kafka throttles requests"); n != 1 {
		t.Errorf("throttling is logged %d times:\n%s", n, log)
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

// setProducerQuota sets the produce quota of a client ID in bytes per second; 0 removes it.
func setProducerQuota(t *testing.T, brokers []string, clientID string, bytes float64) {
	t.Helper()
	withClient(t, brokers, func(ctx context.Context, c *kafka.Client) error {
		r, err := c.AlterClientQuotas(ctx, &kafka.AlterClientQuotasRequest{Entries: []kafka.AlterClientQuotaEntry{{
			Entities: []kafka.AlterClientQuotaEntity{{EntityType: "client-id", EntityName: clientID}},
			Ops:      []kafka.AlterClientQuotaOps{{Key: "producer_byte_rate", Value: bytes, Remove: bytes == 0}},
		}}})
		if err != nil {
			return err
		}
		return r.Entries[0].Error
	})
}
