package kafka

import (
	"context"
	"sync"

	kproto "github.com/segmentio/kafka-go/protocol"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// ReadTail implements [sinks.Fenced].
func (s *Sink) ReadTail(ctx context.Context, lanes map[sinks.Lane]sinks.LanePosition, emitted func(sinks.Lane, sinks.Emitted) error) error {
	return readTail(ctx, s.reader, s.fence.Load(), lanes, emitted)
}

// readTail reads lanes from their positions to their ends. Lanes to one partition, as before and after a topic grew, are
// read one after the other. With a fence only records under the producer IDs of its group count: another deployment may
// write objects of the same names to the topic, and a forged record has another producer ID. It also records the ends then,
// which saves a request before the first batch of each lane.
func readTail(ctx context.Context, reader *cluster.Reader, f *fence, lanes map[sinks.Lane]sinks.LanePosition,
	emitted func(sinks.Lane, sinks.Emitted) error,
) error {
	var calling sync.Mutex // brokers are read concurrently, and emitted is called by one goroutine at a time
	var rounds [][]*cluster.Span
	times := map[cluster.Partition]int{}
	for lane, from := range lanes {
		p, ok := partitionOfLane(lane)
		if !ok || f != nil && !f.mayHoldRecords(p) {
			continue
		}
		round := times[p]
		if times[p]++; round == len(rounds) {
			rounds = append(rounds, nil)
		}
		span := &cluster.Span{Partition: p, Next: int64(from), Each: func(r *kproto.Record) error {
			e, ours, err := readEmitted(r)
			if err != nil || !ours {
				return err
			}
			calling.Lock()
			defer calling.Unlock()
			return emitted(lane, sinks.Emitted{EmittedRecord: e, Position: sinks.LanePosition(r.Offset)})
		}}
		if f != nil {
			span.Producers = f.producers
		}
		rounds[round] = append(rounds[round], span)
	}
	for _, spans := range rounds {
		if err := reader.ReadSpans(ctx, spans); err != nil {
			return err
		}
		for _, one := range spans {
			if f != nil && one.Known && f.progressOf(one.Partition) == nil {
				f.startPartition(one.Partition, one.End)
			}
		}
	}
	return nil
}

// readEmitted returns which change a record is about; ours is false for records that are not changes.
func readEmitted(r *kproto.Record) (e event.EmittedRecord, ours bool, err error) {
	value, err := protocol.ReadBytes(r.Value)
	if err != nil {
		return e, false, err
	}
	key, err := protocol.ReadBytes(r.Key)
	if err != nil {
		return e, false, err
	}
	e, ours = format.ReadEmitted(value, func(name string) string {
		if name == format.HeaderKey {
			return string(key)
		}
		return protocol.HeaderValue(r, name) // the headers have the names that ReadEmitted uses
	})
	return e, ours, nil
}
