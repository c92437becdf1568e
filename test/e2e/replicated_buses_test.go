package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

// replicatedBuses are a Kafka and a NATS of several servers, which one test has for itself.
type replicatedBuses struct {
	t         *testing.T
	brokers   kafka.Brokers
	servers   natsserver.Servers
	kafka     *kgo.Client
	jetstream jetstream.JetStream

	deadBroker *kafka.Broker
	deadServer *natsserver.Server
}

func startReplicated(t *testing.T, n int) *replicatedBuses {
	t.Helper()
	servers(t) // builds what is to be built
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	b := &replicatedBuses{t: t}
	var err error
	if b.brokers, err = kafka.StartCluster(ctx, filepath.Join(t.TempDir(), "kafka"), n, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.end(b.brokers.Kill()) })
	if b.servers, err = natsserver.StartCluster(ctx, filepath.Join(t.TempDir(), "nats"), n, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.end(b.servers.Kill()) })
	if b.kafka, err = kgo.NewClient(kgo.SeedBrokers(b.brokers.Brokers()...)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.kafka.Close)
	connection, err := nats.Connect(b.servers.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(connection.Close)
	if b.jetstream, err = jetstream.New(connection); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *replicatedBuses) end(err error) {
	if err != nil {
		b.t.Error(err)
	}
}

// settings lets an exporter deliver to these buses, with as many replicas as they have servers.
func (b *replicatedBuses) settings(s *exporter.Settings) {
	s.KafkaBrokers, s.NATSURL = b.brokers.Brokers(), b.servers.URL()
	s.NATS = map[string]any{"create": map[string]any{"enabled": true, "replicas": len(b.servers)}}
}

// killLeaders kills the broker and the server that lead the state of a fixture, or its changes in the bus that has no state.
func (b *replicatedBuses) killLeaders(fixture string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), arriveWithin)
	defer cancel()
	for b.deadBroker == nil || b.deadServer == nil {
		var err error
		if b.deadBroker == nil {
			b.deadBroker, err = b.leadingBroker(ctx, fixture)
		}
		if b.deadServer == nil && err == nil {
			b.deadServer, err = b.leadingServer(ctx, fixture)
		}
		if ctx.Err() != nil {
			b.t.Fatalf("the buses have no leaders: %v", err)
		}
		await.Pause(b.t, lookEvery)
	}
	if err := errors.Join(b.deadBroker.Kill(), b.deadServer.Kill()); err != nil {
		b.t.Fatal(err)
	}
}

// restart brings back what killLeaders has killed, unless the test has ended.
func (b *replicatedBuses) restart() (err error) {
	if b.t.Context().Err() == nil {
		err = errors.Join(b.deadBroker.Restart(b.t.Context()), b.deadServer.Restart(b.t.Context()), b.servers.WaitHealthy(b.t.Context()))
	}
	b.deadBroker, b.deadServer = nil, nil
	return err
}

func (b *replicatedBuses) leadingBroker(ctx context.Context, fixture string) (*kafka.Broker, error) {
	answer, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, b.kafka)
	if err != nil {
		return nil, err
	}
	leaders := map[string]int32{}
	for _, topic := range answer.Topics {
		if topic.Topic != nil && len(topic.Partitions) > 0 {
			leaders[*topic.Topic] = topic.Partitions[0].Leader
		}
	}
	for _, topic := range []string{fixture + "-state", fixture + ".configmaps"} {
		for _, broker := range b.brokers {
			if leader, ok := leaders[topic]; ok && int32(broker.ID()) == leader {
				return broker, nil
			}
		}
	}
	return nil, fmt.Errorf("no broker leads the topics of %s: %v", fixture, leaders)
}

// needs reports whether a failover of a fixture needs a broker at once: it leads the state, coordinates the transactional ID
// of the sink or of the state, or controls the cluster.
func (b *replicatedBuses) needs(broker *kafka.Broker, fixture string) bool {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), arriveWithin)
	defer cancel()
	leader, err := b.leadingBroker(ctx, fixture)
	if err != nil {
		b.t.Fatal(err)
	}
	quorum := kmsg.NewPtrDescribeQuorumRequest()
	topic := kmsg.NewDescribeQuorumRequestTopic()
	topic.Topic, topic.Partitions = "__cluster_metadata", append(topic.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
	quorum.Topics = append(quorum.Topics, topic)
	answer, err := quorum.RequestWith(ctx, b.kafka)
	if err != nil {
		b.t.Fatal(err)
	}
	needed := []int32{int32(leader.ID()), answer.Topics[0].Partitions[0].LeaderID}
	state := fixture + "-state"
	for _, id := range []string{state + "-kafka", state + "-state-" + state} {
		find := kmsg.NewPtrFindCoordinatorRequest()
		find.CoordinatorType, find.CoordinatorKey = 1, id
		if coordinator, err := find.RequestWith(ctx, b.kafka); err == nil {
			needed = append(needed, coordinator.NodeID)
		}
	}
	return slices.Contains(needed, int32(broker.ID()))
}

// leads reports whether a server leads the state of a fixture or its changes.
func (b *replicatedBuses) leads(server *natsserver.Server, fixture string) bool {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), arriveWithin)
	defer cancel()
	for _, name := range []string{fixture + "-state", fixture} {
		stream, err := b.findStream(ctx, name)
		if err != nil {
			continue
		}
		if cluster := stream.CachedInfo().Cluster; cluster != nil && cluster.Leader == server.Name() {
			return true
		}
	}
	return false
}

// findStream asks once: a stream that changes its leader may drop the request, and the library waits until ctx ends.
func (b *replicatedBuses) findStream(ctx context.Context, name string) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return b.jetstream.Stream(ctx, name)
}

func (b *replicatedBuses) leadingServer(ctx context.Context, fixture string) (*natsserver.Server, error) {
	var last error
	for _, name := range []string{fixture + "-state", fixture} {
		stream, err := b.findStream(ctx, name)
		if err != nil {
			last = err
			continue
		}
		for _, server := range b.servers {
			if cluster := stream.CachedInfo().Cluster; cluster != nil && server.Name() == cluster.Leader {
				return server, nil
			}
		}
	}
	return nil, fmt.Errorf("no server leads the streams of %s: %w", fixture, last)
}
