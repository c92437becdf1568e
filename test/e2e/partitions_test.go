package e2e

import (
	"context"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// TestPartitionsAddedAfterKillRepeatNothing kills an exporter while objects are written, and adds partitions to its topic
// before the next one starts: that finds what is delivered where it was sent.
func TestPartitionsAddedAfterKillRepeatNothing(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	s := newFixture(t, kinds, func(settings *exporter.Settings) { settings.Sinks = settings.WholeSinks()[:1] })
	s.buses = s.buses[:1] // nothing is in NATS
	client, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.Brokers()...))
	s.must(err)
	t.Cleanup(client.Close)
	topic := s.name + ".configmaps"
	s.must(s.exporter.Start(t.Context()))
	s.must(s.load(20, kinds).Wait())
	s.awaitAll()
	for partitions := int32(6); partitions <= 12; partitions += 2 {
		load := s.run(workload.Plan{Objects: 1 << 30, Updates: 3, Rate: 4 * pipelineRate}, kinds)
		load.AwaitOperations(300)
		s.must(s.exporter.Kill())
		load.Stop()
		s.must(growTopic(t.Context(), client, topic, partitions))
		s.must(s.exporter.Start(t.Context()))
		s.awaitAll()
	}
	seen := map[string]bool{}
	for _, r := range s.buses[0].records {
		if seen[r.ID] {
			t.Errorf("%s is there twice", r.ID)
		}
		seen[r.ID] = true
	}
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
