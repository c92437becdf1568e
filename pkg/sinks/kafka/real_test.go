package kafka

import (
	"context"
	"maps"
	"path/filepath"
	"testing"

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
	h := contractHarness(Config{
		Brokers: b.Brokers(), Topic: "k8s.{resource}",
		CreateTopics: CreateTopics{Enabled: true, Partitions: 4, Configs: []TopicConfig{{"cleanup.policy", "delete"}}},
	})
	h.Cut = func(t testing.TB) {
		if err := b.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	h.Restore = func(t testing.TB) { restartBroker(t, b) }
	sinktest.Run(t, h)
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
