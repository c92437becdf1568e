package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
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
	topic   string // the template
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
	return &StoredReader{cluster: c, reader: cluster.NewReader(c), topic: cfg.Topic}, nil
}

// Targets implements [sinks.StoredReader].
func (r *StoredReader) Targets(ctx context.Context, routed ...string) (targets []string, err error) {
	var patterns []*regexp.Regexp
	for _, template := range append(routed, r.topic) {
		pattern, err := regexp.Compile("^" + placeholder.ReplaceAllString(regexp.QuoteMeta(template), ".+") + "$")
		if err != nil || !strings.Contains(template, "{") {
			targets = append(targets, template)
			continue
		}
		patterns = append(patterns, pattern)
	}
	if len(patterns) == 0 {
		return targets, nil
	}
	all, err := r.cluster.Topics(ctx)
	for _, topic := range all {
		if slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(topic) }) && !slices.Contains(targets, topic) {
			targets = append(targets, topic)
		}
	}
	return targets, err
}

// placeholder matches one of a template that was quoted.
var placeholder = regexp.MustCompile(`\\{[^}]*\\}`)

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
	read := r.reader.ReadSpans
	if each == nil {
		read = r.reader.QueryAll
	}
	err := read(ctx, spans)
	for _, s := range spans {
		if err == nil {
			err = s.Err
		}
	}
	return err
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

// ReadTail implements [sinks.Fenced]. The first time, one broker is waited for as long as the others may wait for it; later
// reads are of lanes that wait, and have all the time that a request has.
func (s *Sink) ReadTail(ctx context.Context, lanes map[sinks.Lane]sinks.Tail, emitted func(sinks.Lane, sinks.Emitted) error) (
	waiting map[sinks.Lane]error, err error,
) {
	f, reader, failed := s.fence.Load(), s.reader, map[sinks.Lane]error{}
	if !f.isReplicated() {
		f = nil
	} else {
		if failed, err = f.fenceLanes(ctx, lanes); err != nil {
			return nil, err
		}
		if !f.tailsRead.Swap(true) {
			reader = reader.WithTimeout(leaderTimeout)
		}
		lanes = maps.Clone(lanes)
		maps.DeleteFunc(lanes, func(lane sinks.Lane, _ sinks.Tail) bool { return failed[lane] != nil })
	}
	waiting, err = readTail(ctx, reader, f, lanes, true, 1, emitted)
	if err == nil && f != nil {
		f.leaveOutMissing(ctx, waiting)
		maps.Copy(waiting, failed)
	}
	return waiting, err
}

// leaveOutMissing removes the lanes to partitions that do not exist any more: they hold nothing.
func (f *fence) leaveOutMissing(ctx context.Context, waiting map[sinks.Lane]error) {
	var unknown []*cluster.Span
	for lane, err := range waiting {
		if l, _ := parseRecordedLane(lane); errors.Is(err, kafka.UnknownTopicOrPartition) || errors.Is(err, cluster.ErrNoPartition) {
			unknown = append(unknown, &cluster.Span{Partition: l.Partition})
		}
	}
	var check leaderCheck
	check.addMissing(ctx, f.cluster, unknown)
	maps.DeleteFunc(waiting, func(lane sinks.Lane, _ error) bool {
		l, _ := parseRecordedLane(lane)
		return slices.Contains(check.missing, l.Partition)
	})
}

// readTail reads lanes from their positions to their ends, and returns those that it could not read. Lanes to one partition,
// as before and after a topic grew, are read one after the other. With a fence only records under the producer IDs of its
// group count: another deployment may write objects of the same names to the topic, and a forged record has another producer
// ID. It also records the ends then, which saves a request before the first batch of each lane. takeOver: other processes
// have published what is found, and what lies before it. first is the lowest offset in the journal of what may be found.
func readTail(ctx context.Context, reader *cluster.Reader, f *fence, lanes map[sinks.Lane]sinks.Tail, takeOver bool, first uint64,
	emitted func(sinks.Lane, sinks.Emitted) error,
) (failed map[sinks.Lane]error, err error) {
	var calling sync.Mutex // brokers are read concurrently, and emitted is called by one goroutine at a time
	rounds := planRounds(f, lanes)
	unreadable := map[cluster.Partition]error{}
	for _, round := range rounds {
		var spans []*cluster.Span
		laneOfSpan := map[*cluster.Span]sinks.Lane{}
		for lane, l := range round {
			if unreadable[l.Partition] != nil {
				continue
			}
			span := &cluster.Span{Partition: l.Partition, NextIn: l.of.ID, Next: int64(lanes[lane].From), Each: func(r *protocol.Record) error {
				e, ours := format.ReadEmitted(r.Value, factHeader(r))
				if !ours {
					return nil
				}
				calling.Lock()
				defer calling.Unlock()
				return emitted(lane, sinks.Emitted{EmittedRecord: e, Position: sinks.LanePosition(r.Offset)})
			}}
			if f != nil {
				span.Producers = f.producers
			}
			laneOfSpan[span] = lane
			spans = append(spans, span)
		}
		if err := reader.ReadSpans(ctx, spans); err != nil {
			return nil, err
		}
		for _, one := range spans {
			if one.Err != nil {
				unreadable[one.Partition] = one.Err
			} else if lane := laneOfSpan[one]; f != nil && one.Known {
				f.recordEnd(one, round[lane], lanes[lane], takeOver, first)
			}
		}
	}
	failed = map[sinks.Lane]error{}
	for _, round := range rounds {
		for lane, l := range round {
			if err := unreadable[l.Partition]; err != nil {
				failed[lane] = err
			}
		}
	}
	return failed, nil
}

// recordEnd records the end of a partition of which a tail was read, and what that was.
func (f *fence) recordEnd(read *cluster.Span, l topicLane, tail sinks.Tail, takeOver bool, first uint64) {
	id := read.Shape.ID
	place := ackPlace{read.Partition, cluster.TopicShape{ID: id, Partitions: l.of.Partitions}, read.Lead.Epoch}
	isKnown := takeOver && id == l.of.ID
	if isKnown {
		f.acks.recordPosition(place, int64(tail.From), false)
	}
	if read.Origin.End > 0 {
		f.acks.recordTail(place, read.Origin, first)
	}
	if isKnown && int64(tail.Reached) > read.End {
		f.acks.recordPosition(place, int64(tail.Reached), true)
	}
	if known := f.partition(read.Partition); known.progressIn(id) == nil {
		f.startPartition(read.Partition, id, read.End, known.isUnfencedIn(id))
	}
}

// planRounds divides lanes into rounds, each with at most one lane to a partition. Lanes that can hold nothing are left out.
func planRounds(f *fence, lanes map[sinks.Lane]sinks.Tail) (rounds []map[sinks.Lane]topicLane) {
	times := map[cluster.Partition]int{}
	for lane := range lanes {
		l, ok := parseRecordedLane(lane)
		if !ok || f != nil && f.partition(l.Partition).state == partitionMissing {
			continue
		}
		n := times[l.Partition]
		if n == len(rounds) {
			rounds = append(rounds, map[sinks.Lane]topicLane{})
		}
		rounds[n][lane] = l
		times[l.Partition]++
	}
	return rounds
}

// fenceLanes fences those of the lanes that Fence could not fence, and returns the ones that still cannot be.
func (f *fence) fenceLanes(ctx context.Context, lanes map[sinks.Lane]sinks.Tail) (failed map[sinks.Lane]error, err error) {
	failed = map[sinks.Lane]error{}
	unfenced := map[sinks.Lane]cluster.Partition{}
	for lane := range lanes {
		if l, ok := parseRecordedLane(lane); ok && f.partition(l.Partition).state == partitionUnfenced {
			unfenced[lane] = l.Partition
		}
	}
	if len(unfenced) == 0 {
		return failed, nil
	}
	fenced, err := f.fenceRounds.Submit(ctx, slices.Collect(maps.Values(unfenced)))
	for lane, p := range unfenced {
		if err := cmp.Or(err, fenced.failed[p]); err != nil {
			failed[lane] = err
		}
	}
	if errors.As(err, new(*sinks.DeposedError)) {
		return nil, err
	}
	return failed, nil
}
