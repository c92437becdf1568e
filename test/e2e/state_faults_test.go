package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// stateBus is the bus of a state, and what operators do to it.
type stateBus struct {
	name    string
	other   *received // the bus that has no state
	kill    func() error
	restart func(context.Context) error
	files   string // the directory of the state's topic or stream, to be touched while the bus is stopped
	purge   func(context.Context) error
	remove  func(context.Context) error
	// bound lets the topic or stream take no more than it has, or nothing as large as an entry; unbound undoes it.
	bound, unbound func(context.Context) error
	full           string // the exporter's log line about it
}

// forEachStateBus runs a test with the state in Kafka, and in NATS.
func forEachStateBus(t *testing.T, kinds []workload.Kind, test func(*replicas, stateBus), changes ...func(*exporter.Settings)) {
	servers(t)
	t.Run("state in kafka", func(t *testing.T) {
		p := newPair(t, kinds, "kafka", changes...)
		test(p, p.stateInKafka())
	})
	t.Run("state in nats", func(t *testing.T) {
		p := newPair(t, kinds, "nats", changes...)
		test(p, p.stateInNATS())
	})
}

func (p *replicas) stateInKafka() stateBus {
	p.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(p.kafka.Brokers()...))
	p.must(err)
	p.t.Cleanup(client.Close)
	topic := p.name + "-state"
	limit := func(bytes string) func(context.Context) error {
		return func(ctx context.Context) error { return setTopic(ctx, client, topic, "max.message.bytes", bytes) }
	}
	return stateBus{
		name: "kafka", other: p.buses[1], kill: p.kafka.Kill, restart: p.kafka.Restart,
		files:  filepath.Join(p.dir, "kafka", "data", topic+"-0"),
		purge:  func(ctx context.Context) error { return purgeTopic(ctx, client, topic) },
		remove: func(ctx context.Context) error { return deleteTopic(ctx, client, topic) },
		bound:  limit("80"), unbound: limit("2097152"), full: "set it to 2097152",
	}
}

func setTopic(ctx context.Context, client *kgo.Client, topic, key, value string) error {
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	config.Name, config.Value = key, &value
	resource.Configs = append(resource.Configs, config)
	request.Resources = append(request.Resources, resource)
	answer, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(answer.Resources[0].ErrorCode)
}

// purgeTopic removes all records of a topic of one partition. A compacted topic refuses that as it is, and until its broker
// knows of the change, which is later than the answer to it.
func purgeTopic(ctx context.Context, client *kgo.Client, topic string) error {
	if err := setTopic(ctx, client, topic, "cleanup.policy", "compact,delete"); err != nil {
		return err
	}
	request := kmsg.NewPtrDeleteRecordsRequest()
	one := kmsg.NewDeleteRecordsRequestTopic()
	one.Topic = topic
	all := kmsg.NewDeleteRecordsRequestTopicPartition()
	all.Offset = -1
	one.Partitions = append(one.Partitions, all)
	request.Topics, request.TimeoutMillis = append(request.Topics, one), 10_000
	patient, cancel := context.WithTimeout(ctx, arriveWithin)
	defer cancel()
	err := workload.Persist(patient, func() error {
		answer, err := request.RequestWith(patient, client)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(answer.Topics[0].Partitions[0].ErrorCode)
	})
	return errors.Join(err, setTopic(ctx, client, topic, "cleanup.policy", "compact"))
}

func createTopic(ctx context.Context, client *kgo.Client, topic string, partitions int32, configs map[string]string) error {
	request := kmsg.NewPtrCreateTopicsRequest()
	one := kmsg.NewCreateTopicsRequestTopic()
	one.Topic, one.NumPartitions, one.ReplicationFactor = topic, partitions, -1
	for key, value := range configs {
		config := kmsg.NewCreateTopicsRequestTopicConfig()
		config.Name, config.Value = key, &value
		one.Configs = append(one.Configs, config)
	}
	request.Topics = append(request.Topics, one)
	answer, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(answer.Topics[0].ErrorCode)
}

func growTopic(ctx context.Context, client *kgo.Client, topic string, partitions int32) error {
	request := kmsg.NewPtrCreatePartitionsRequest()
	one := kmsg.NewCreatePartitionsRequestTopic()
	one.Topic, one.Count = topic, partitions
	request.Topics = append(request.Topics, one)
	answer, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(answer.Topics[0].ErrorCode)
}

func deleteTopic(ctx context.Context, client *kgo.Client, topic string) error {
	request := kmsg.NewPtrDeleteTopicsRequest()
	one := kmsg.NewDeleteTopicsRequestTopic()
	one.Topic = &topic
	request.Topics, request.TopicNames = append(request.Topics, one), append(request.TopicNames, topic)
	answer, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(answer.Topics[0].ErrorCode)
}

func (p *replicas) stateInNATS() stateBus {
	p.t.Helper()
	js, hangUp, err := bus.Operate(p.nats.URL())
	p.must(err)
	p.t.Cleanup(hangUp)
	name := p.name + "-state"
	limit := func(more int64) func(context.Context) error {
		return func(ctx context.Context) error {
			stream, err := js.Stream(ctx, name)
			if err != nil {
				return err
			}
			config := stream.CachedInfo().Config
			config.MaxBytes = -1
			if more > 0 {
				config.MaxBytes = int64(stream.CachedInfo().State.Bytes) + more
			}
			_, err = js.UpdateStream(ctx, config)
			return err
		}
	}
	return stateBus{
		name: "nats", other: p.buses[0], kill: p.nats.Kill, restart: p.nats.Restart,
		files: filepath.Join(p.dir, "nats", "store", "jetstream", "$G", "streams", name),
		purge: func(ctx context.Context) error {
			stream, err := js.Stream(ctx, name)
			if err != nil {
				return err
			}
			return stream.Purge(ctx)
		},
		remove: func(ctx context.Context) error { return js.DeleteStream(ctx, name) },
		bound:  limit(1), unbound: limit(0), full: "maximum bytes exceeded",
	}
}

// checkContinues checks that the pair is none the worse: what is written arrives, the next one takes over from the state,
// and nothing is lost, repeated, reordered or invented.
func (p *replicas) checkContinues(kinds []workload.Kind, rules oracle.Rules) {
	p.t.Helper()
	p.must(p.load(50, kinds).Wait())
	p.removeReplica(p.awaitSettled())
	p.active()
	p.must(p.load(50, kinds).Wait())
	p.awaitAll()
	p.judge(rules)
}

// TestActiveDeliversDuringStateBusOutage delivers to the other bus, reports that the state lags, and takes changed
// rules up. Changes of a lane that the state does not name yet wait for the state.
func TestActiveDeliversDuringStateBusOutage(t *testing.T) {
	require.Long(t)
	kinds := []workload.Kind{workload.ConfigMaps, workload.Pods}
	forEachStateBus(t, kinds, func(p *replicas, b stateBus) {
		for _, e := range p.all {
			p.must(e.Configure(func(s *exporter.Settings) { s.Select = s.Select[:1] }))
		}
		all := p.resources
		p.resources = all[:1]
		p.start()
		p.must(p.load(100, kinds[:1]).Wait())
		p.awaitAll()
		active := p.active()
		p.must(b.kill())
		p.must(p.load(50, kinds[:1]).Wait())
		p.awaitHistory(b.other)
		p.awaitAnswerOf(active, "/readyz", "[-]sink/"+b.name+" ")
		p.awaitAnswerOf(p.other(active), "/readyz", "[!]replica StateUnreachable: read the replicated state: ")
		for _, e := range p.all {
			p.must(e.Configure(func(s *exporter.Settings) { s.Select = []string{selection(all[0]), selection(all[1])} }))
			p.awaitAnswerOf(e, "/metrics", "\nkubecdc_config_reloads_total{result=\"taken\"} 1\n")
		}
		p.must(p.load(50, kinds).Wait())
		p.awaitHistory(b.other)
		const lag = "kubecdc_state_lag_seconds"
		for deadline := time.Now().Add(arriveWithin); series(metricsOf(p.t, active), lag)[lag] < 1; await.Pause(p.t, lookEvery) {
			if time.Now().After(deadline) {
				p.t.Fatal("it does not say that the state lags")
			}
		}
		p.must(b.restart(p.t.Context()))
		p.resources = all
		p.checkContinues(kinds, oracle.Rules{})
	}, keepLease)
}

// TestLostStateIsRewritten purges, deletes and restores the state under the active one, each time while objects are
// written; it logs that once and writes it again. The next one takes over from it.
func TestLostStateIsRewritten(t *testing.T) {
	require.Long(t)
	const lost = "the replicated state was lost in the bus, and is written again"
	kinds := []workload.Kind{workload.ConfigMaps, workload.Pods}
	forEachStateBus(t, kinds, func(p *replicas, b stateBus) {
		p.start()
		p.must(p.load(50, kinds).Wait())
		p.awaitAll()
		type damage func(context.Context) error
		for n, prepared := range []func() damage{
			func() damage { return b.purge }, func() damage { return b.remove }, func() damage { return p.restore(b, 50, kinds) },
		} {
			active, damage := p.active(), prepared()
			p.awaitCovered(active)
			load := p.run(workload.Plan{Objects: 1 << 30, Updates: 3, Rate: pipelineRate}, kinds)
			before := strings.Count(readFile(p.t, active.Log()), lost)
			p.must(damage(p.t.Context()))
			for deadline := time.Now().Add(arriveWithin); strings.Count(readFile(p.t, active.Log()), lost) == before; await.Pause(p.t, lookEvery) {
				if time.Now().After(deadline) {
					p.t.Fatalf("damage %d is not noticed after %v", n, arriveWithin)
				}
			}
			load.Stop()
			p.awaitSettled()
			p.removeReplica(active)
			p.active()
			p.must(active.Launch(p.t.Context()))
			p.down[active] = false
		}
		p.checkContinues(kinds, oracle.Rules{})
	}, keepLease)
}

// restore returns what puts the state back to what it is now, some changes later, by the files of its bus.
func (p *replicas) restore(b stateBus, objects int, kinds []workload.Kind) func(context.Context) error {
	p.t.Helper()
	earlier := filepath.Join(p.t.TempDir(), "earlier")
	p.awaitCovered(p.active())
	p.must(errors.Join(b.kill(), os.CopyFS(earlier, os.DirFS(b.files)), b.restart(p.t.Context()), p.load(objects, kinds).Wait()))
	p.awaitAll()
	return func(ctx context.Context) error {
		return errors.Join(b.kill(), os.RemoveAll(b.files), os.CopyFS(b.files, os.DirFS(earlier)), b.restart(ctx))
	}
}

// TestFullStateIsReportedAndRecovers bounds the topic or stream of the state so that it takes nothing more: the changes go
// on, the state lags, and follows by itself when there is room.
func TestFullStateIsReportedAndRecovers(t *testing.T) {
	require.Long(t)
	kinds := []workload.Kind{workload.ConfigMaps, workload.Pods}
	forEachStateBus(t, kinds, func(p *replicas, b stateBus) {
		p.start()
		p.must(p.load(50, kinds).Wait())
		p.awaitAll()
		active := p.active()
		p.must(b.bound(p.t.Context()))
		p.must(p.load(50, kinds).Wait())
		p.awaitAll()
		p.awaitAnswerOf(active, "/readyz", "[!]replica ")
		p.awaitAnswerOf(active, "/readyz", b.full)
		p.awaitAnswerOf(active, "/metrics", "\nkubecdc_active 1\n")
		p.must(b.unbound(p.t.Context()))
		p.checkContinues(kinds, oracle.Rules{})
	}, keepLease)
}
