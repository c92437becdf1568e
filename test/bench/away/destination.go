package away

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/segmentio/kafka-go"

	natsgo "github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	kafkasink "github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
	"github.com/kubecdc/kubecdc/test/bench/stored"
	broker "github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

// destination is a server that can be killed and started again.
type destination interface {
	Kill() error
	Restart(ctx context.Context) error

	// sink returns a sink that delivers to it, and how many lanes it serves at once; 0 leaves that to delivery.
	sink() (s sinks.Sink, workers int, err error)
	// read calls each with the ID of every change it holds, each object's in their order.
	read(ctx context.Context, each func(id string) error) error
}

// begin starts a destination.
func begin(ctx context.Context, o Options) (destination, error) {
	dir := filepath.Join(o.Dir, "server")
	if o.Kafka {
		b, err := broker.Start(ctx, broker.Options{Dir: dir})
		return kafkaBroker{b}, err
	}
	s, err := natsserver.Start(ctx, natsserver.Options{Dir: dir})
	return natsServer{s}, err
}

var quiet = slog.New(slog.DiscardHandler)

type natsServer struct{ *natsserver.Server }

const stream = "AWAY"

func (n natsServer) sink() (sinks.Sink, int, error) {
	s, err := nats.New(nats.Config{URL: n.URL(), Stream: stream, Subject: "away.{group}.{resource}.{namespace}.{name}",
		Headers: true, Create: nats.Create{Enabled: true}}, format.JSON, quiet)
	if err != nil {
		return nil, 0, err
	}
	return s, s.Concurrency(), nil
}

func (n natsServer) read(ctx context.Context, each func(id string) error) error {
	return stored.EachHeader(ctx, n.URL(), stream, func(h natsgo.Header) error { return each(h.Get("Kubecdc-Id")) })
}

type kafkaBroker struct{ *broker.Broker }

const (
	topic      = "away.pods"
	partitions = 4
)

func (k kafkaBroker) sink() (sinks.Sink, int, error) {
	s, err := kafkasink.New(kafkasink.Config{Brokers: k.Brokers(), Topic: "away.{resource}",
		CreateTopics: kafkasink.CreateTopics{Enabled: true, Partitions: partitions}}, format.JSON, quiet)
	return s, 0, err
}

func (k kafkaBroker) read(ctx context.Context, each func(id string) error) error {
	for p := range partitions {
		if err := k.readPartition(ctx, p, each); err != nil {
			return fmt.Errorf("partition %d: %w", p, err)
		}
	}
	return nil
}

func (k kafkaBroker) readPartition(ctx context.Context, partition int, each func(id string) error) error {
	conn, err := kafka.DialLeader(ctx, "tcp", k.Address(), topic, partition)
	if err != nil {
		return err
	}
	end, err := conn.ReadLastOffset()
	_ = conn.Close() // all were reported
	if err != nil || end == 0 {
		return err
	}
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: k.Brokers(), Topic: topic, Partition: partition, MaxBytes: 16 << 20})
	defer reader.Close()
	for at := int64(-1); at < end-1; {
		m, err := reader.ReadMessage(ctx)
		if err != nil {
			return err
		}
		at = m.Offset
		for _, h := range m.Headers {
			if h.Key != "id" {
				continue
			}
			if err := each(string(h.Value)); err != nil {
				return err
			}
		}
	}
	return nil
}
