// Command kafkalanes measures what the Kafka sink's lanes deliver against franz-go, the fastest client there is for Go, on
// the same broker in the same run: changes of 4 KB, with zstd at the same level and without, straight and with a network
// between that is slow. Rates on shared machines differ from run to run; the ratio of neighbouring rounds is what counts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	"github.com/kubecdc/kubecdc/test/bench/paired"
	broker "github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/wire"
)

const (
	objects = 4096
	body    = 4000 // bytes of an object

	// fastest is the level of zstd that the sink uses: zstd.SpeedFastest. The default of franz-go is a higher one.
	fastest = 1
)

func main() {
	messages := flag.Int("messages", 30_000, "messages in each round")
	rounds := flag.Int("rounds", 5, "rounds of each way")
	partitions := flag.Int("partitions", 6, "partitions of each topic, which are as many lanes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, load{*messages, *rounds, *partitions}, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kafkalanes:", err)
		os.Exit(1)
	}
}

// load is what is written.
type load struct{ messages, rounds, partitions int }

func run(ctx context.Context, l load, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "kafkalanes")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	fmt.Fprintf(out, "Kafka, %d changes of %d bytes, %d rounds, %d partitions on one broker on this machine\n\n", l.messages, body, l.rounds, l.partitions)
	fmt.Fprintf(out, "%-22s %-6s %12s %12s %7s %5s %20s\n", "network", "codec", "franz-go /s", "lanes /s", "ratio", "bar", "CPU us/change, both")
	for _, n := range []struct {
		name  string
		delay time.Duration
		bars  map[string]float64
	}{
		{"loopback", 0, map[string]float64{"zstd": 0.9, "none": 0.75}},
		{"10 ms there and back", 5 * time.Millisecond, map[string]float64{"zstd": 0.8, "none": 0.8}},
	} {
		if err := onBroker(ctx, filepath.Join(dir, strconv.FormatInt(int64(n.delay), 10)), n.delay, func(b *broker.Broker, address string) error {
			for _, codec := range []string{"zstd", "none"} {
				franz, lanes, err := l.compare(ctx, b, address, codec)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", n.name, codec, err)
				}
				fmt.Fprintf(out, "%-22s %-6s %12.0f %12.0f %7.2f %5.2f %11.1f and %.1f\n", n.name, codec, paired.Median(franz.rates), paired.Median(lanes.rates),
					paired.Median(paired.Ratios(lanes.rates, franz.rates)), n.bars[codec], paired.Median(franz.costs), paired.Median(lanes.costs))
			}
			return nil
		}); err != nil {
			return err
		}
	}
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

// result is what the rounds of one way have come to: changes a second, and processor time for each, of client and broker.
type result struct{ rates, costs []float64 }

// compare lets both ways write in turn, each to a topic of its own.
func (l load) compare(ctx context.Context, b *broker.Broker, address, codec string) (franz, lanes result, err error) {
	s, err := l.open(ctx, address, "lanes-"+codec, codec)
	if err != nil {
		return franz, lanes, err
	}
	defer func() { err = errors.Join(err, s.Close(context.Background())) }()
	other, err := l.open(ctx, address, "franz-"+codec, codec) // makes the topic
	if err != nil {
		return franz, lanes, err
	}
	if err := other.Close(ctx); err != nil {
		return franz, lanes, err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.DefaultProduceTopic("franz-"+codec),
		kgo.ProducerBatchCompression(map[string]kgo.CompressionCodec{"zstd": kgo.ZstdCompression().WithLevel(fastest), "none": kgo.NoCompression()}[codec]))
	if err != nil {
		return franz, lanes, err
	}
	defer client.Close()
	for round := range l.rounds + 1 { // the first warms up
		changes := changesOf(round, l.messages)
		for _, way := range []struct {
			publish func(context.Context, []*event.Change) error
			to      *result
		}{{produce(client), &franz}, {publish(s), &lanes}} {
			began, before := time.Now(), paired.CPU(b.Process())
			if err := way.publish(ctx, changes); err != nil {
				return franz, lanes, err
			}
			if round > 0 {
				way.to.rates = append(way.to.rates, float64(l.messages)/time.Since(began).Seconds())
				way.to.costs = append(way.to.costs, float64((paired.CPU(b.Process())-before).Microseconds())/float64(l.messages))
			}
		}
	}
	return franz, lanes, nil
}

// open returns a sink with an existing topic.
func (l load) open(ctx context.Context, address, topic, codec string) (*kafka.Sink, error) {
	s, err := kafka.New(kafka.Config{Brokers: []string{address}, Topic: topic, Compression: codec,
		CreateTopics: kafka.CreateTopics{Enabled: true, Partitions: l.partitions}}, format.JSON, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	if err := s.Ping(ctx); err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
}

// produce writes the same records as the sink does.
func produce(client *kgo.Client) func(context.Context, []*event.Change) error {
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

// publish writes as delivery does: each lane in batches, all lanes at once.
func publish(s *kafka.Sink) func(context.Context, []*event.Change) error {
	return func(ctx context.Context, changes []*event.Change) error {
		byLane := map[sinks.Lane][]sinks.Message{}
		for i, c := range changes {
			lane, err := s.Lane(c)
			if err != nil {
				return err
			}
			byLane[lane] = append(byLane[lane], sinks.Message{Offset: uint64(i + 1), Change: c})
		}
		most, bytes := s.BatchLimits() // of one Publish, as delivery has it
		var workers sync.WaitGroup
		failed := make(chan error, len(byLane))
		for lane, messages := range byLane {
			workers.Go(func() {
				for len(messages) > 0 {
					n, err := s.Publish(ctx, lane, messages[:min(len(messages), most, int(bytes)/changes[0].Size())])
					if err != nil {
						failed <- err
						return
					}
					messages = messages[n:]
				}
			})
		}
		workers.Wait()
		close(failed)
		return <-failed
	}
}

// changesOf makes new versions of the same objects, interleaved as time would. A third of a body is as random as names,
// hashes and addresses are; the rest repeats.
func changesOf(round, n int) []*event.Change {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	source := rand.New(rand.NewPCG(uint64(round), 1))
	changes := make([]*event.Change, n)
	for i := range changes {
		after := append(make([]byte, 0, body+64), `{"kind":"Pod","apiVersion":"v1","spec":{`...)
		for field := 0; len(after) < body; field++ {
			after = append(strconv.AppendInt(append(after, `"terminationMessagePath`...), int64(field), 10), `":"/dev/`...)
			for range 16 {
				after = append(after, alphabet[source.IntN(len(alphabet))])
			}
			after = append(after, `",`...)
		}
		after = append(after[:len(after)-1], `}}`...)
		changes[i] = &event.Change{Type: event.Updated, Cluster: "bench", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
			Namespace: "shop", Name: fmt.Sprint("web-", i%objects), UID: fmt.Sprint(i % objects),
			ResourceVersion: fmt.Sprint(round*n + i), ObservedAt: time.Now(), After: after}
	}
	return changes
}
