package kafka

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

// testTimeout bounds waits for a condition. It is never slept.
const testTimeout = 3 * time.Minute

func TestMain(m *testing.M) { leaks.Main(m) }

// startFakeCluster starts a fake cluster that verifies checksums, sizes and sequence numbers as Kafka does.
func startFakeCluster(t testing.TB, opts ...kfake.Opt) (*kfake.Cluster, []string) {
	t.Helper()
	c, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, c.ListenAddrs()
}

// openSink opens a sink that is closed at the end of the test.
func openSink(t testing.TB, cfg Config) *Sink {
	t.Helper()
	return openSinkWith(t, cfg, format.JSON, slog.New(slog.DiscardHandler))
}

// openSinkWith is openSink with a format and a log. Without a configured timeout it has one that no slow machine reaches:
// many tests look at the batches in flight, and there is only one when an answer takes a tenth of the timeout.
func openSinkWith(t testing.TB, cfg Config, f format.Format, log *slog.Logger) *Sink {
	t.Helper()
	cfg.RequestTimeout = cmp.Or(cfg.RequestTimeout, 10*time.Minute)
	s, err := New(cfg, f, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeSink(t, s) })
	return s
}

func closeSink(t testing.TB, s *Sink) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

// endOffsets returns the end of every partition of a topic; empty if the topic does not exist. It waits while a partition
// has no leader, after a broker has stopped or returned.
func endOffsets(t testing.TB, brokers []string, topic string) map[int]int64 {
	t.Helper()
	last := map[int]int64{}
	withClient(t, brokers, func(ctx context.Context, client *kafka.Client) error {
		meta, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
		if err != nil {
			return err
		}
		pause := time.NewTicker(50 * time.Millisecond)
		defer pause.Stop()
		for _, p := range meta.Topics[0].Partitions {
			for {
				last[p.ID], err = endOffset(ctx, client, topic, p.ID)
				var refusal kafka.Error
				if err == nil || !errors.As(err, &refusal) || !refusal.Temporary() || ctx.Err() != nil {
					break
				}
				<-pause.C
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return last
}

func endOffset(ctx context.Context, client *kafka.Client, topic string, partition int) (int64, error) {
	r, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: {kafka.LastOffsetOf(partition)}}})
	if err != nil {
		return 0, err
	}
	end := r.Topics[topic][0]
	return end.LastOffset, end.Error
}

// readTopics returns every record of some topics, in order within each partition, by a client that is not the sink's
// library.
func readTopics(t testing.TB, brokers []string, topics ...string) []*kgo.Record {
	t.Helper()
	from := map[string]map[int32]kgo.Offset{}
	missing := int64(0)
	for _, topic := range topics {
		from[topic] = map[int32]kgo.Offset{}
		for partition, end := range endOffsets(t, brokers, topic) {
			from[topic][int32(partition)] = kgo.NewOffset().AtStart()
			missing += end
		}
	}
	if missing == 0 {
		return nil
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumePartitions(from), kgo.KeepControlRecords())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	var records []*kgo.Record // including the markers of fences
	for int64(len(records)) < missing {
		fetched := client.PollFetches(ctx)
		if err := fetched.Err(); err != nil {
			t.Fatalf("read %d of %d records of %s: %v", len(records), missing, topics, err)
		}
		records = append(records, fetched.Records()...)
	}
	return slices.DeleteFunc(records, func(r *kgo.Record) bool { return r.Attrs.IsControl() })
}

func recordHeader(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// podVersion returns the version of the pod in a record.
func podVersion(t testing.TB, r *kgo.Record) int {
	at, err := time.Parse(time.RFC3339Nano, recordHeader(r, "observedAt"))
	if err != nil {
		t.Fatal(err)
	}
	return int(at.Sub(baseTime).Milliseconds())
}

func deliveredRecords(records []*kgo.Record) []sinktest.Delivered {
	var ds []sinktest.Delivered
	for _, r := range records {
		ds = append(ds, sinktest.Delivered{ID: recordHeader(r, "id"), Key: string(r.Key), Value: r.Value, Topic: r.Topic})
	}
	return ds
}

// baseTime is the time of observation of version 0 of every pod. It is recent, because a restarted broker drops producers
// that have written nothing for a day.
var baseTime = time.Now().UTC().Truncate(time.Millisecond)

// pod is version v of the pod of that name.
func pod(name string, v int) *event.Change {
	return &event.Change{
		Type: event.Updated, Delta: event.DeltaUpdated, Cluster: "test", Namespace: "default", Name: name, UID: "uid-" + name,
		Resource:        event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
		ResourceVersion: itoa(v), ObservedAt: baseTime.Add(time.Duration(v) * time.Millisecond),
		After: []byte(`{"kind":"Pod","v":` + itoa(v) + `}`),
	}
}

// pods are versions from to (exclusive) of one pod, with their version as offset.
func pods(name string, from, to int) []sinks.Message {
	var ms []sinks.Message
	for v := from; v < to; v++ {
		ms = append(ms, sinks.Message{Offset: uint64(v), Change: pod(name, v)})
	}
	return ms
}

// wantVersions fails the test unless the records are versions from to (exclusive) in order, each once.
func wantVersions(t testing.TB, records []*kgo.Record, from, to int) {
	t.Helper()
	if len(records) != to-from {
		t.Errorf("%d records, want %d", len(records), to-from)
	}
	for i, r := range records {
		if id := pod("a", from+i).ID(); recordHeader(r, "id") != id {
			t.Fatalf("record %d is %s, want %s", i, recordHeader(r, "id"), id)
		}
	}
}
