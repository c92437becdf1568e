package kafka

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
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

// openUnclosedSink opens a sink that the caller closes.
func openUnclosedSink(t testing.TB, cfg Config) sinks.Sink {
	t.Helper()
	s, err := New(cfg, format.JSON, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// readTopicsWithPrefix returns the records of every topic with this prefix.
func readTopicsWithPrefix(t testing.TB, brokers []string, prefix string) []*kgo.Record {
	t.Helper()
	var topics []string
	withClient(t, brokers, func(ctx context.Context, c *kafka.Client) error {
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
	return readTopics(t, brokers, topics...)
}

// withClient calls do with a client of its own.
func withClient(t testing.TB, brokers []string, do func(context.Context, *kafka.Client) error) {
	t.Helper()
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if err := do(ctx, &kafka.Client{Addr: kafka.TCP(brokers...), Transport: transport}); err != nil {
		t.Fatal(err)
	}
}

func deleteTopic(t testing.TB, brokers []string, topic string) {
	t.Helper()
	withClient(t, brokers, func(ctx context.Context, c *kafka.Client) error {
		r, err := c.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
		if err != nil {
			return err
		}
		return r.Errors[topic]
	})
}

func addPartitions(t testing.TB, brokers []string, topic string, count int32) {
	t.Helper()
	withClient(t, brokers, func(ctx context.Context, c *kafka.Client) error {
		r, err := c.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{{Name: topic, Count: count}}})
		if err != nil {
			return err
		}
		return r.Errors[topic]
	})
}

// requestContains reports whether a zstd-compressed produce request contains a text.
func requestContains(t testing.TB, request kmsg.Request, text string) bool {
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

// randomText returns n bytes of text that does not compress.
func randomText(n int) string {
	source := rand.New(rand.NewPCG(1, 2))
	const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[source.IntN(len(alphabet))]
	}
	return string(b)
}

// countDials counts the connections that a sink opens from now on.
func countDials(s *Sink) *atomic.Int64 {
	var opened atomic.Int64
	dial := s.cluster.Dialer.DialContext
	s.cluster.Dialer.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		opened.Add(1)
		return dial(ctx, network, address)
	}
	return &opened
}
