package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	broker "github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/wire"
)

// fastest is the level of zstd that the sink uses: zstd.SpeedFastest. The default of franz-go is a higher one.
const fastest = 1

// measureKafka compares on a broker that is near and on one that is far, with each codec, in many lanes and in one.
func (l load) measureKafka(ctx context.Context, dir string, out io.Writer) error {
	fmt.Fprintf(out, "Kafka, %d changes of %d bytes, %d rounds, one broker on this machine\n\n", l.messages, body, l.rounds)
	fmt.Fprintf(out, "%-22s %-6s %10s %12s %12s %7s %5s %20s\n", "network", "codec", "partitions", "franz-go /s", "lanes /s", "ratio", "bar", "CPU us/change, both")
	for _, n := range []struct {
		name  string
		delay time.Duration
		bars  map[string]float64
	}{
		{"loopback", 0, map[string]float64{"zstd": 0.9, "none": 0.75}},
		{"10 ms there and back", 5 * time.Millisecond, map[string]float64{"zstd": 0.8, "none": 0.8}},
	} {
		err := onBroker(ctx, filepath.Join(dir, strconv.FormatInt(int64(n.delay), 10)), n.delay, func(b *broker.Broker, address string) error {
			for _, partitions := range []int{6, 1} {
				for _, codec := range []string{"zstd", "none"} {
					all, err := l.compareKafka(ctx, b, address, codec, partitions)
					if err != nil {
						return fmt.Errorf("%s, %s, %d partitions: %w", n.name, codec, partitions, err)
					}
					franz, lanes := all[0], all[1]
					fmt.Fprintf(out, "%-22s %-6s %10d %12.0f %12.0f %7.2f %5.2f %11.1f and %.1f\n", n.name, codec, partitions, median(franz.rates), median(lanes.rates),
						median(ratios(lanes.rates, franz.rates)), n.bars[codec], median(franz.costs), median(lanes.costs))
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	fmt.Fprintln(out)
	return nil
}

// onBroker runs a broker that is reached over a network with a delay in each direction.
func onBroker(ctx context.Context, dir string, delay time.Duration, measure func(b *broker.Broker, address string) error) (err error) {
	options := broker.Options{Dir: dir, Properties: map[string]string{"log.retention.bytes": "100000000", "log.segment.bytes": "50000000",
		"log.retention.check.interval.ms": "2000"}, JVM: []string{"-Xms512m", "-Xmx1g", "-XX:+UseSerialGC"}}
	var way *wire.Wire
	if delay > 0 {
		if way, err = wire.New(delay); err != nil {
			return err
		}
		options.Properties["advertised.listeners"] = "PLAINTEXT://" + way.Address()
	}
	b, err := broker.Start(ctx, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Kill()) }()
	if way == nil {
		return measure(b, b.Address())
	}
	ended := make(chan error, 1)
	go func() { ended <- way.Serve(b.Address()) }()
	defer func() { way.Close(); err = errors.Join(err, <-ended) }()
	return measure(b, way.Address())
}

// compareKafka lets franz-go and the sink write in turn, each to a topic of its own, over connections that stay.
func (l load) compareKafka(ctx context.Context, b *broker.Broker, address, codec string, partitions int) (_ []result, err error) {
	topic := fmt.Sprintf("franz-%s-%d", codec, partitions)
	other, err := openKafka(ctx, address, topic, codec, partitions) // makes the topic
	if err != nil {
		return nil, err
	}
	if err := other.Close(ctx); err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.DefaultProduceTopic(topic),
		kgo.ProducerBatchCompression(map[string]kgo.CompressionCodec{"zstd": kgo.ZstdCompression().WithLevel(fastest), "none": kgo.NoCompression()}[codec]))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	s, err := openKafka(ctx, address, fmt.Sprintf("lanes-%s-%d", codec, partitions), codec, partitions)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close(context.Background())) }()
	return l.compare(ctx, b.Process(), way{"franz-go", stays(produce(client))}, way{"the sink", stays(through(s))})
}

// stays is how a way begins that has nothing to begin.
func stays(p publish) func(context.Context) (publish, func() error, error) {
	return func(context.Context) (publish, func() error, error) { return p, func() error { return nil }, nil }
}

// openKafka returns a sink with an existing topic.
func openKafka(ctx context.Context, address, topic, codec string, partitions int) (*kafka.Sink, error) {
	s, err := kafka.New(kafka.Config{Brokers: []string{address}, Topic: topic, Compression: codec,
		CreateTopics: kafka.CreateTopics{Enabled: true, Partitions: partitions}}, format.JSON, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	if err := s.Ping(ctx); err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
}

// produce writes the same records as the sink does.
func produce(client *kgo.Client) publish {
	return func(ctx context.Context, changes []*event.Change) error {
		var once sync.Once
		var failed error
		for _, c := range changes {
			client.Produce(ctx, &kgo.Record{Key: []byte(c.Key()), Value: format.AppendJSON(nil, c), Timestamp: c.ObservedAt, Headers: []kgo.RecordHeader{
				{Key: "id", Value: []byte(c.ID())}, {Key: "type", Value: []byte(c.Type)}, {Key: "content-type", Value: []byte(format.ContentTypeJSON)},
				{Key: "cluster", Value: []byte(c.Cluster)}, {Key: "resource", Value: []byte(c.Resource.Resource)},
			}}, func(_ *kgo.Record, err error) {
				if err != nil {
					once.Do(func() { failed = err })
				}
			})
		}
		return errors.Join(client.Flush(ctx), failed)
	}
}
