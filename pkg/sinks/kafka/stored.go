package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// StoredReader reads topics back. It has connections of its own, in no consumer group, and under a client ID that ends in
// "-reader", so that quotas of the sink do not apply to it.
type StoredReader struct {
	cluster *cluster.Cluster
	reader  *cluster.Reader
}

var _ sinks.StoredReader = (*StoredReader)(nil)

// OpenStoredReader returns a reader of the cluster in cfg. It reads the files that cfg names and opens no connection. The
// caller closes it.
func OpenStoredReader(cfg Config) (*StoredReader, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	options := cfg.clusterOptions()
	options.ClientID += "-reader"
	c, err := cluster.New(options, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return &StoredReader{cluster: c, reader: cluster.NewReader(c)}, nil
}

// TopicName returns the topic of a change by a template, as the sink does.
func TopicName(template *sinks.Template, c *event.Change) (string, error) {
	name := template.AppendName(nil, c, appendEscaped)
	return string(name), checkTopicName(name)
}

// StoredLanes implements [sinks.StoredReader].
func (r *StoredReader) StoredLanes(ctx context.Context, topic string) ([]sinks.StoredLane, error) {
	layout, _, err := r.cluster.DescribeTopic(ctx, topic)
	switch {
	case errors.Is(err, kafka.UnknownTopicOrPartition):
		return nil, condition.Problem{
			Code: condition.SinkTargetMissing, Cause: fmt.Sprintf("topic %q does not exist", topic),
			Remedy: "start the exporter, or check kafka.topic",
		}.Wrap(err)
	case errors.Is(err, kafka.TopicAuthorizationFailed):
		return nil, condition.Problem{
			Code: condition.SinkUnauthorized, Cause: fmt.Sprintf("no right to describe topic %q", topic),
			Remedy: "grant READ and DESCRIBE on it",
		}.Wrap(err)
	case err != nil:
		return nil, r.cluster.SinkError(ctx, topic, err)
	}
	spans := make([]*cluster.Span, len(layout.Leads))
	for i := range spans {
		spans[i] = &cluster.Span{Partition: cluster.Partition{Topic: topic, Index: int32(i)}}
	}
	if err := r.readEach(ctx, spans, nil); err != nil {
		return nil, err
	}
	settings, err := r.cluster.TopicSettings(ctx, topic)
	replaces := err != nil || strings.Contains(settings["cleanup.policy"], "compact")
	lanes := make([]sinks.StoredLane, len(spans))
	for i, s := range spans {
		lanes[i] = sinks.StoredLane{
			Target: topic, Index: i, Count: len(spans), First: s.First, End: s.End, Replaces: replaces, Truncated: s.First > 0,
		}
	}
	return lanes, nil
}

// readEach reads spans and returns the first error. Without each, only their extents are queried.
func (r *StoredReader) readEach(ctx context.Context, spans []*cluster.Span, each func(int, *protocol.Record) error) error {
	var mu sync.Mutex
	for i, s := range spans {
		s.Each = func(record *protocol.Record) error {
			mu.Lock()
			defer mu.Unlock()
			return each(i, record)
		}
	}
	err := r.readOrQuery(ctx, spans, each != nil)
	for _, s := range spans {
		if err == nil {
			err = s.Err
		}
	}
	return err
}

func (r *StoredReader) readOrQuery(ctx context.Context, spans []*cluster.Span, reads bool) error {
	if reads {
		return r.reader.ReadSpans(ctx, spans)
	}
	return r.reader.QueryAll(ctx, spans)
}

// ReadStored implements [sinks.StoredReader].
func (r *StoredReader) ReadStored(ctx context.Context, spans []sinks.StoredSpan, each func(sinks.StoredRecord) error) error {
	var reads []*cluster.Span
	var lanes []int // of reads, the index in spans
	for i, s := range spans {
		if s.From < s.To {
			reads = append(reads, &cluster.Span{
				Partition: cluster.Partition{Topic: s.Target, Index: int32(s.Index)}, Next: s.From, Until: s.To,
			})
			lanes = append(lanes, i)
		}
	}
	return r.readEach(ctx, reads, func(i int, record *protocol.Record) error {
		lane := lanes[i]
		if record.Offset >= spans[lane].To {
			return nil
		}
		return each(sinks.StoredRecord{Lane: lane, Position: record.Offset, Key: string(record.Key), Value: record.Value, Header: factHeader(record)})
	})
}

// factHeader returns the lookup of headers for [format.ReadStored]. They have the names that it uses.
func factHeader(r *protocol.Record) func(name string) string {
	return func(name string) string {
		if name == format.HeaderKey {
			return string(r.Key)
		}
		return r.HeaderValue(name)
	}
}

// Close implements [sinks.StoredReader].
func (r *StoredReader) Close(ctx context.Context) error { return r.cluster.Close(ctx) }
