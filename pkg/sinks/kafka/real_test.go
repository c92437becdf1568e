package kafka

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	broker "github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/require"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

// startKafka starts Apache Kafka in a process that ends with the test.
func startKafka(t *testing.T) *broker.Broker { t.Helper(); return startKafkaWith(t, nil) }

// startKafkaWith is startKafka with additional properties.
func startKafkaWith(t *testing.T, properties map[string]string) *broker.Broker {
	t.Helper()
	return startKafkaIn(t, t.TempDir(), 1, broker.Options{Properties: properties})[0]
}

// runningClusters bounds how many clusters of Apache Kafka run at the same time, because of their memory.
var runningClusters = make(chan struct{}, 2)

// startKafkaIn starts n brokers with their disks in dir, which end with the test. A test has one cluster at a time.
func startKafkaIn(t *testing.T, dir string, n int, options broker.Options) broker.Brokers {
	t.Helper()
	require.Integration(t)
	require.Program(t, "java", "install Java 17 or later")
	all := map[string]string{"log.retention.ms": "-1"} // test records have old timestamps, by which Kafka deletes them
	maps.Copy(all, options.Properties)
	runningClusters <- struct{}{}
	t.Cleanup(func() { <-runningClusters })
	var brokers broker.Brokers
	var err error
	if n > 1 {
		brokers, err = broker.StartCluster(t.Context(), dir, n, all)
	} else {
		options.Dir, options.Properties = filepath.Join(dir, "broker-1"), all
		brokers = make(broker.Brokers, 1)
		brokers[0], err = broker.Start(t.Context(), options)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := brokers.Kill(); err != nil {
			t.Error(err)
		}
	})
	return brokers
}

func restartBroker(t testing.TB, b *broker.Broker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if err := b.Restart(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestContractOnApacheKafka(t *testing.T) {
	t.Parallel()
	b := startKafka(t)
	for _, compression := range []string{"zstd", "lz4", "snappy", "gzip", "none"} {
		t.Run(compression, func(t *testing.T) {
			cfg := Config{
				Brokers: b.Brokers(), Topic: "k8s." + compression + ".{resource}", Compression: compression,
				CreateTopics: CreateTopics{Enabled: true, Partitions: 4, Configs: []TopicConfig{{"cleanup.policy", "delete"}}},
			}
			h := sinktest.Harness{
				New: func(t testing.TB) sinks.Sink { return openUnclosedSink(t, cfg) },
				Read: func(t testing.TB) []sinktest.Delivered {
					return deliveredRecords(readTopicsWithPrefix(t, b.Brokers(), "k8s."+compression+"."))
				},
				Key:        (*event.Change).Key,
				ExactRetry: true, ExactRestart: true,
				Topics: []string{"k8s." + compression + ".audit.{resource}", "k8s." + compression + ".copy.{resource}"},
			}
			if compression == "zstd" { // an outage of a real broker lasts seconds: once is enough
				h.Cut = func(t testing.TB) {
					if err := b.Kill(); err != nil {
						t.Fatal(err)
					}
				}
				h.Restore = func(t testing.TB) { restartBroker(t, b) }
			}
			sinktest.Run(t, h)
		})
	}
}

func TestKilledBrokersLoseAndRepeatNothing(t *testing.T) {
	require.Long(t)
	t.Parallel()
	const partitions, each, kills = 4, 25_000, 3
	b := startKafka(t)
	s := openSink(t, Config{Brokers: b.Brokers(), Topic: topicA, RequestTimeout: 5 * time.Second, BatchBytes: 8 * minBatchBytes,
		CreateTopics: CreateTopics{Enabled: true, Partitions: partitions}})
	laneOf(t, s, pod("a", 1))

	// Bounds how many batches a lane is ahead of the kills, so that batches are left for each outage.
	progress, killed := make(chan struct{}, 200), make(chan struct{})
	var lanes sync.WaitGroup
	for p := range partitions {
		lane := laneName(topicA, int32(p), partitions)
		lanes.Go(func() {
			for from := 1; from <= each; from += 100 {
				publishUntilAccepted(t, s, lane, pods("p"+itoa(p), from, from+100))
				select {
				case progress <- struct{}{}:
				case <-killed:
				}
			}
		})
	}
	for range kills {
		for range 30 { // some batches of any lane between two kills
			<-progress
		}
		if err := b.Kill(); err != nil {
			t.Fatal(err)
		}
		restartBroker(t, b)
		for range len(progress) { // of before this kill
			<-progress
		}
	}
	close(killed)
	lanes.Wait()
	wantStreams(t, readTopics(t, b.Brokers(), topicA), partitions, each)
}

func TestARealBrokerRejectsOnlyTheLargeRecord(t *testing.T) {
	t.Parallel()
	b := startKafka(t)
	cfg := Config{Brokers: b.Brokers(), Topic: topicA, CheckTopics: checkRequire, CreateTopics: CreateTopics{
		Enabled: true, Partitions: 1, Configs: []TopicConfig{{"max.message.bytes", "30000"}},
	}}
	openWithTopic(t, cfg)
	s := openSink(t, cfg) // checks the topic of the other
	lane := laneOf(t, s, pod("a", 1))
	messages := pods("a", 1, 3000)
	large := *messages[1500].Change
	large.After = []byte(`{"x":"` + randomText(60_000) + `"}`)
	messages[1500].Change = &large
	n, err := publishUntilRejected(t, s, lane, messages)
	var rejected *sinks.RejectedError
	if n != 1500 || !errors.As(err, &rejected) || !rejected.TooLarge {
		t.Fatalf("published %d: %v; want 1500 and a rejection of the large one", n, err)
	}
	publishUntilAccepted(t, s, lane, messages[1501:])
	records := readTopics(t, b.Brokers(), topicA)
	wantVersions(t, records[:1500], 1, 1501)
	wantVersions(t, records[1500:], 1502, 3000)
}

// openWithTopic opens a sink and creates its topic.
func openWithTopic(t *testing.T, cfg Config) *Sink {
	t.Helper()
	s := openSink(t, cfg)
	waitForTopic(t, s)
	return s
}

func TestARealBrokerDropsARepeatedBatchAndFencesAnOldEpoch(t *testing.T) {
	t.Parallel()
	b := startKafka(t)
	s := openSink(t, Config{Brokers: b.Brokers(), Topic: topicA, CreateTopics: CreateTopics{Enabled: true, Partitions: 1}})
	lane := laneOf(t, s, pod("a", 1))
	publishUntilAccepted(t, s, lane, pods("a", 1, 3))
	l := s.lanes.byName[lane]
	old, err := l.encoder.encodeBatch(t.Context(), pods("a", 3, 6), l.numbers.nextSequence())
	if err != nil {
		t.Fatal(err)
	}
	leader := l.partition.topic.layout.Load().Leads[0].Broker
	for range 2 { // the second time as a repetition
		if err := produceAlone(t, s, leader, old); protocol.ClassifyError(err) != protocol.Accepted {
			t.Fatal(err)
		}
	}
	if _, err := s.fence.Load().fencePartition(t.Context(), l.partition.id()); err != nil {
		t.Fatal(err)
	}
	publishUntilAccepted(t, s, lane, pods("a", 6, 9))
	if err := produceAlone(t, s, leader, old); protocol.ClassifyError(err) == protocol.Accepted {
		t.Error("a batch of an old epoch was accepted behind newer ones")
	}
	wantVersions(t, readTopics(t, b.Brokers(), topicA), 1, 9)
}
