package e2e

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// TestAFrozenBrokerStopsItsOwnLanesOnlyOverFailovers freezes one of three brokers, whose partitions have no other replica,
// and which neither the state nor the fence needs. The lanes of the others flow before a failover, and after the active one
// is frozen, killed or stopped. When the broker runs again, everything is there, once and in order.
func TestAFrozenBrokerStopsItsOwnLanesOnlyOverFailovers(t *testing.T) {
	require.Long(t)
	kinds := []workload.Kind{workload.ConfigMaps, workload.Pods, workload.Services}
	brokers := startSingleReplicas(t)
	p := newReplicas(t, 3, kinds, "kafka", func(s *exporter.Settings) { s.KafkaBrokers = brokers.Brokers() })
	p.start()
	p.must(p.load(20, kinds).Wait())
	p.awaitSettled()
	load := p.run(workload.Plan{Objects: 1 << 30, Updates: 3, Rate: failoverRate}, kinds)
	spare := p.spareBroker(brokers)
	p.must(spare.Process().Freeze())
	resume := sync.OnceFunc(func() { p.must(spare.Process().Resume()) })
	t.Cleanup(resume)
	p.awaitFlow("before a failover")
	for _, way := range []struct {
		name           string
		away, comeBack func(*exporter.Exporter) error
	}{
		{"SIGSTOP", (*exporter.Exporter).Pause, (*exporter.Exporter).Resume},
		{"SIGKILL", (*exporter.Exporter).Kill, p.launchWithoutVolume},
		{"SIGTERM", (*exporter.Exporter).Stop, p.launchWithoutVolume},
	} {
		active := p.active()
		p.down[active] = true
		p.must(way.away(active))
		p.awaitFlow("after " + way.name)
		p.must(way.comeBack(active))
		p.down[active] = false
	}
	resume()
	load.Stop()
	p.awaitAll()
	p.judge(oracle.Rules{})
}

func (p *replicas) launchWithoutVolume(e *exporter.Exporter) error {
	p.removeVolume(e)
	return e.Launch(p.t.Context())
}

// startSingleReplicas starts three brokers that never give a partition to another one: each has one replica.
func startSingleReplicas(t *testing.T) kafka.Brokers {
	t.Helper()
	servers(t)
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	brokers, err := kafka.StartCluster(ctx, filepath.Join(t.TempDir(), "kafka"), 3, map[string]string{
		"broker.session.timeout.ms": "600000", "default.replication.factor": "1", "min.insync.replicas": "1",
		"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1", "transaction.state.log.num.partitions": "1",
	})
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

// spareBroker is one that leads neither the state nor the log of the transactions.
func (p *replicas) spareBroker(brokers kafka.Brokers) *kafka.Broker {
	p.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers.Brokers()...))
	p.must(err)
	defer client.Close()
	answer, err := kmsg.NewPtrMetadataRequest().RequestWith(p.t.Context(), client)
	p.must(err)
	needed := map[int32]bool{}
	for _, topic := range answer.Topics {
		if *topic.Topic == p.name+"-state" || *topic.Topic == "__transaction_state" {
			needed[topic.Partitions[0].Leader] = true
		}
	}
	return brokers[slices.IndexFunc(brokers, func(b *kafka.Broker) bool { return !needed[int32(b.ID())] })]
}

// awaitFlow waits until the active one delivers to Kafka more than the lanes of a broker that stands still keep back.
func (p *replicas) awaitFlow(when string) {
	p.t.Helper()
	const toKafka = `kubecdc_sink_delivered_total{sink="kafka"`
	active := p.active()
	delivered := func() (n int) {
		for _, one := range series(metricsOf(p.t, active), toKafka) {
			n += one
		}
		return n
	}
	first := delivered()
	for deadline := time.Now().Add(arriveWithin); delivered() < first+2*failoverRate; await.Pause(p.t, lookEvery/4) {
		if time.Now().After(deadline) {
			_, ready, _ := active.Get(p.t.Context(), "/readyz")
			p.t.Fatalf("%s: %d changes in %v while one broker of three stands still\n%s", when, delivered()-first, arriveWithin, ready)
		}
	}
}
