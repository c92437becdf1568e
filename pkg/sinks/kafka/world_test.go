package kafka

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// unclosed opens a sink that the caller closes.
func unclosed(t testing.TB, cfg Config) sinks.Sink {
	t.Helper()
	s, err := New(cfg, format.JSON, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// readAll returns the records of every topic whose name begins so.
func readAll(t testing.TB, brokers []string, prefix string) []*kgo.Record {
	t.Helper()
	var topics []string
	ask(t, brokers, func(ctx context.Context, c *kafka.Client) error {
		meta, err := c.Metadata(ctx, &kafka.MetadataRequest{})
		if err != nil {
			return err
		}
		for _, topic := range meta.Topics {
			if strings.HasPrefix(topic.Name, prefix) {
				topics = append(topics, topic.Name)
			}
		}
		return nil
	})
	return read(t, brokers, topics...)
}

// ask does something to the cluster with a client of its own.
func ask(t testing.TB, brokers []string, do func(context.Context, *kafka.Client) error) {
	t.Helper()
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := do(ctx, &kafka.Client{Addr: kafka.TCP(brokers...), Transport: transport}); err != nil {
		t.Fatal(err)
	}
}

func deleteTopic(t testing.TB, brokers []string, topic string) {
	t.Helper()
	ask(t, brokers, func(ctx context.Context, c *kafka.Client) error {
		r, err := c.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
		if err != nil {
			return err
		}
		return r.Errors[topic]
	})
}

func addPartitions(t testing.TB, brokers []string, topic string, count int32) {
	t.Helper()
	ask(t, brokers, func(ctx context.Context, c *kafka.Client) error {
		r, err := c.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{{Name: topic, Count: count}}})
		if err != nil {
			return err
		}
		return r.Errors[topic]
	})
}

// holds says whether a produce request, zstd compressed, has the text in it.
func holds(t testing.TB, request kmsg.Request, text string) bool {
	batch := request.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records
	r, err := zstd.NewReader(bytes.NewReader(batch[record.HeaderSize:]), zstd.WithDecoderConcurrency(1))
	if err != nil {
		t.Error(err)
		return false
	}
	defer r.Close()
	records, err := io.ReadAll(r)
	if err != nil {
		t.Error(err)
	}
	return bytes.Contains(records, []byte(text))
}

// random is n bytes of text that does not compress.
func random(n int) string { return text(rand.New(rand.NewPCG(1, 2)), n) }

func text(source *rand.Rand, n int) string {
	const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[source.IntN(len(alphabet))]
	}
	return string(b)
}

// lines is a log that is only counted and searched.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.text.Bytes(), []byte("\n"))
}

// dials counts the connections that a sink opens from now on.
func dials(s *Sink) *atomic.Int64 {
	var opened atomic.Int64
	dial := s.cluster.Dialer.Reach
	s.cluster.Dialer.Reach = func(ctx context.Context, network, address string) (net.Conn, error) {
		opened.Add(1)
		return dial(ctx, network, address)
	}
	return &opened
}
