package kafka

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	broker "github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/require"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

// failoverHarness describes processes of one group that write to topics with a prefix in a format.
func failoverHarness(brokers []string, prefix string, f format.Format, adapt func(*Config)) sinktest.Harness {
	cfg := Config{
		Brokers: brokers, Topic: prefix + "{resource}", BatchBytes: minBatchBytes,
		CreateTopics: CreateTopics{Enabled: true, Partitions: 3},
	}
	adapt(&cfg)
	return sinktest.Harness{
		New: func(t testing.TB) sinks.Sink {
			t.Helper()
			s, err := New(cfg, f, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Read: func(t testing.TB) []sinktest.Delivered {
			return deliveredWithTombstones(t, readTopicsWithPrefix(t, brokers, prefix), cfg.Tombstones)
		},
		Key:        (*event.Change).Key,
		Value:      func(c *event.Change) []byte { return f.AppendValue(nil, c) },
		ExactRetry: true, ExactRestart: true, Tombstones: cfg.Tombstones,
	}
}

func TestFailoverOnApacheKafka(t *testing.T) {
	t.Parallel()
	b := startKafka(t)
	for f, codec := range map[format.Format]string{ // the two do not depend on each other
		format.JSON: "zstd", format.CloudEvents: "lz4", format.CloudEventsStructured: "snappy", format.Upsert: "gzip", format.Debezium: "none",
	} {
		t.Run(f.String()+" "+codec, func(t *testing.T) {
			adapt := func(c *Config) { c.Compression, c.Tombstones = codec, f == format.Debezium }
			sinktest.RunFailover(t, failoverHarness(b.Brokers(), "k8s."+f.String()+".", f, adapt))
		})
	}
}

// deliveredWithTombstones reads records of any format.
func deliveredWithTombstones(t testing.TB, records []*kgo.Record, tombstones bool) (all []sinktest.Delivered) {
	for _, r := range records {
		d := sinktest.Delivered{ID: recordHeader(r, "id") + recordHeader(r, "ce_id"), Key: string(r.Key), Value: r.Value, Topic: r.Topic}
		var structured struct{ ID string }
		if d.ID == "" {
			if err := json.Unmarshal(r.Value, &structured); err != nil {
				t.Error(err)
			}
			d.ID = structured.ID
		}
		if tombstones && r.Value == nil && recordHeader(r, "type") == string(event.Deleted) {
			d.ID, d.Tombstone = "", true
		}
		all = append(all, d)
	}
	return all
}

// TestFailoverWhileBrokersDie kills one of three brokers whenever another process takes over: leaders, and the coordinator
// of the transactional ID.
func TestFailoverWhileBrokersDie(t *testing.T) {
	require.Long(t)
	t.Parallel()
	cluster := startKafkaIn(t, t.TempDir(), 3, broker.Options{})
	h := failoverHarness(cluster.Brokers(), "k8s.three.", format.JSON, func(c *Config) { c.RequestTimeout = 5 * time.Second })
	allRunning := make(chan struct{}, 1) // holds a token while all brokers run
	allRunning <- struct{}{}
	begun := 0
	open, read := h.New, h.Read
	h.New = func(t testing.TB) sinks.Sink {
		begun++
		if begun%5 != 0 { // a broker takes seconds to come back
			return open(t)
		}
		<-allRunning
		victim := cluster[begun/5%len(cluster)]
		go func() {
			defer func() { allRunning <- struct{}{} }()
			if err := victim.Kill(); err != nil {
				t.Error(err)
			}
			restartBroker(t, victim)
		}()
		return open(t)
	}
	h.Read = func(t testing.TB) []sinktest.Delivered {
		<-allRunning
		defer func() { allRunning <- struct{}{} }()
		return read(t)
	}
	sinktest.RunFailover(t, h)
	<-allRunning
	t.Logf("%d processes, %d kills", begun, begun/5)
}

// TestARenewedTransactionalIDDoesNotExpire uses a broker that expires transactional IDs after seconds.
func TestARenewedTransactionalIDDoesNotExpire(t *testing.T) {
	t.Parallel()
	const expires = 10 * time.Second
	b := startKafkaWith(t, map[string]string{
		"transactional.id.expiration.ms":                             itoa(int(expires.Milliseconds())),
		"transaction.remove.expired.transaction.cleanup.interval.ms": "500",
	})
	cfg := Config{Brokers: b.Brokers(), Topic: topicA, CreateTopics: CreateTopics{Enabled: true, Partitions: 1}}
	for !checkRenewal(t, cfg, expires) {
		t.Log("the ID was not renewed in time: starting over")
	}
}

// checkRenewal renews an ID until another one has expired that is not renewed, and then takes over. It returns false,
// without a result, when this ID was not renewed for so long that it may have expired too.
func checkRenewal(t *testing.T, cfg Config, expires time.Duration) bool {
	t.Helper()
	s, next := openSink(t, cfg), openSink(t, cfg)
	lane := laneOf(t, s, pod("a", 1))
	last := time.Now()
	use := func(what func() error) bool { // restarts the expiry at some moment of the call
		begins := time.Now()
		err := what()
		inTime := time.Since(last) < expires*3/4
		if last = begins; inTime && err != nil {
			t.Fatal(err)
		}
		return inTime
	}
	if !use(func() error { return fenceAsTest(t, s, lane) }) {
		return false
	}
	f := s.fence.Load()
	first := f.current.Producer
	keep := func() error { return f.renewEpoch(t.Context()) }
	other := cluster.NewTransactional(s.cluster, "another")
	began, err := other.InitProducerID(t.Context(), cluster.NoProducer)
	if err != nil {
		t.Fatal(err)
	}
	for v, now := 1, began; now.Producer == began.Producer; { // until an ID that is not renewed has expired
		for untouched := time.Now(); time.Since(untouched) < expires+2*time.Second; v++ {
			publishUntilAccepted(t, s, lane, pods("a", v, v+1))
			if !use(keep) {
				return false
			}
			if err := ratelimit.Sleep(t.Context(), 200*time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
		if now, err = other.InitProducerID(t.Context(), now); err != nil {
			t.Fatal(err)
		}
	}
	if !use(keep) || !use(func() error { return fenceAsTest(t, next, lane) }) {
		return false
	}
	if f.current.Producer != first {
		t.Errorf("the producer ID was %d and is %d", first, f.current.Producer)
	}
	if got := next.fence.Load().current.Producer; got != first {
		t.Errorf("a successor has the producer ID %d, want %d", got, first)
	}
	return true
}

// TestAFailoverUsesATopicAsItIsNow: lanes that were recorded of a deleted topic of the same name have no route, and are
// gone. So are those of a topic that does not exist any more, and those that 0.9.0 has recorded without the ID of a topic.
func TestAFailoverUsesATopicAsItIsNow(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1))
	const before, now = 6, 3
	cfg := Config{Brokers: brokers, Topic: topicA, CheckTopics: checkOff}
	createTopicWhenDeleted(t, cfg.Brokers, topicA, before)
	createTopicWhenDeleted(t, cfg.Brokers, "k8s.deleted", 2)
	older, state := openSink(t, cfg), replicatedLanes{}
	state.takeOver(t, older)
	former := append(topicLanes(topicA, before), topicLanes("k8s.deleted", 2)...)
	for _, lane := range former {
		publishUntilAccepted(t, older, lane, pods("a", 1, 4))
	}
	for lane := range state {
		if _, ok := parseRecordedLane(lane); ok {
			former = append(former, lane)
		}
	}
	deleteTopic(t, cfg.Brokers, "k8s.deleted")
	deleteTopic(t, cfg.Brokers, topicA)
	createTopicWhenDeleted(t, cfg.Brokers, topicA, now)

	layout, _, err := older.cluster.DescribeTopic(t.Context(), topicA)
	if err != nil {
		t.Fatal(err)
	}
	present, recorded := topicLanes(topicA, now), slices.Clone(former)
	for _, lane := range present {
		recorded = append(recorded, recordedLane(lane, layout.ID))
	}
	for v := 1; v < 9; v += 2 { // each failover, as long as they are recorded
		s := openSink(t, cfg)
		mustFence(t, s, recorded...)
		lane := laneOf(t, s, pod("a", 1))
		if !slices.Contains(present, lane) {
			t.Fatalf("a change goes to the lane %s, and the topic has %d partitions", lane, now)
		}
		from := map[sinks.Lane]sinks.LanePosition{}
		for _, l := range recorded {
			from[l] = 0
		}
		held := map[sinks.Lane]int{}
		if err := tailOf(t, s, from, func(l sinks.Lane, _ sinks.Emitted) error { held[l]++; return nil }); err != nil {
			t.Fatal(err)
		}
		if n := held[recordedLane(lane, layout.ID)]; n != v-1 {
			t.Errorf("the tail of %s has %d messages, want %d", lane, n, v-1)
		}
		gone := s.GoneLanes(t.Context(), recorded)
		slices.Sort(gone)
		slices.Sort(former)
		if !slices.Equal(gone, former) {
			t.Errorf("gone are %v, want %v", gone, former)
		}
		mustPublish(t, s, lane, pods("a", v, v+2))
		if due := s.PendingRepartitions(); len(due) > 0 {
			t.Errorf("the lanes are replaced: %v", due)
		}
		for l := range s.LaneProgress() {
			if slices.Contains(former, l) {
				t.Errorf("lane %s is gone, and has progress", l)
			}
		}
	}
	wantVersions(t, readTopics(t, cfg.Brokers, topicA), 1, 9)
}

// createTopicWhenDeleted creates a topic as soon as the one of this name is deleted, and waits until the broker shows it.
func createTopicWhenDeleted(t *testing.T, brokers []string, topic string, partitions int) {
	t.Helper()
	withClient(t, brokers, func(ctx context.Context, c *kafka.Client) error {
		for {
			r, err := c.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: partitions, ReplicationFactor: 1}}})
			if err != nil || !errors.Is(r.Errors[topic], kafka.TopicAlreadyExists) {
				err = cmp.Or(err, r.Errors[topic])
				for shown := 0; err == nil && shown != partitions; {
					var m *kafka.MetadataResponse
					if m, err = c.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}}); err == nil && len(m.Topics) == 1 {
						shown = len(m.Topics[0].Partitions)
					}
				}
				return err
			}
			if err := ratelimit.Sleep(ctx, 50*time.Millisecond); err != nil {
				return err
			}
		}
	})
}

// TestALaneIsNotGoneWhileABrokerDoesNotAnswer: it may be the one that knows of the topic.
func TestALaneIsNotGoneWhileABrokerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	c, brokers := startFakeCluster(t, kfake.NumBrokers(3))
	s, gone := openSink(t, Config{Brokers: brokers, Topic: topicA, CheckTopics: checkOff}), topicLanes("k8s.deleted", 2)
	mustFence(t, s, gone...)
	resume := freezeBroker(t, c, 0)
	got := s.GoneLanes(t.Context(), gone)
	resume()
	if len(got) > 0 {
		t.Errorf("gone are %v, and a broker did not answer", got)
	}
	if got := s.GoneLanes(t.Context(), gone); len(got) != len(gone) {
		t.Errorf("gone are %v, want %v", got, gone)
	}
}
