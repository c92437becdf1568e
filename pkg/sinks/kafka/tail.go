package kafka

import (
	"context"
	"errors"
	"maps"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// ReadTail implements [sinks.Fenced]. The first time, one broker is waited for as long as the others may wait for it; later
// reads are of lanes that wait, and have all the time that a request has.
func (s *Sink) ReadTail(ctx context.Context, lanes map[sinks.Lane]sinks.LanePosition, emitted func(sinks.Lane, sinks.Emitted) error) (
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
		maps.DeleteFunc(lanes, func(lane sinks.Lane, _ sinks.LanePosition) bool { return failed[lane] != nil })
	}
	waiting, err = readTail(ctx, reader, f, lanes, emitted)
	if err == nil {
		maps.Copy(waiting, failed)
	}
	return waiting, err
}

// readTail reads lanes from their positions to their ends, and returns those that it could not read. Lanes to one partition,
// as before and after a topic grew, are read one after the other. With a fence only records under the producer IDs of its
// group count: another deployment may write objects of the same names to the topic, and a forged record has another producer
// ID. It also records the ends then, which saves a request before the first batch of each lane.
func readTail(ctx context.Context, reader *cluster.Reader, f *fence, lanes map[sinks.Lane]sinks.LanePosition,
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
			span := &cluster.Span{Partition: l.Partition, NextIn: l.of.ID, Next: int64(lanes[lane]), Each: func(r *protocol.Record) error {
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
				f.recordEnd(one, round[lane], int64(lanes[lane]))
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

// recordEnd records the end of a partition that was read from where a lane had got to. A lane that had got further shows
// that the partition went back.
func (f *fence) recordEnd(read *cluster.Span, l topicLane, from int64) {
	id := read.Shape.ID
	if id == l.of.ID && from > read.End {
		f.acks.recordCovered(read.Partition, id, from)
	}
	if known := f.partition(read.Partition); known.progressIn(id) == nil {
		f.startPartition(read.Partition, id, read.End, known.isUnfencedIn(id))
	}
}

// planRounds divides lanes into rounds, each with at most one lane to a partition. Lanes that can hold nothing are left out.
func planRounds(f *fence, lanes map[sinks.Lane]sinks.LanePosition) (rounds []map[sinks.Lane]topicLane) {
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
func (f *fence) fenceLanes(ctx context.Context, lanes map[sinks.Lane]sinks.LanePosition) (failed map[sinks.Lane]error, err error) {
	failed = map[sinks.Lane]error{}
	unfenced := map[sinks.Lane]cluster.Partition{}
	for lane := range lanes {
		if l, ok := parseRecordedLane(lane); ok && f.partition(l.Partition).state == partitionUnfenced {
			unfenced[lane] = l.Partition
		}
	}
	results := make(chan error, len(unfenced))
	for lane, p := range unfenced { // all are in one round, or in two
		go func() {
			_, err := f.fencePartition(ctx, p)
			f.mu.Lock()
			defer f.mu.Unlock()
			if err != nil {
				failed[lane] = err
			}
			results <- err
		}()
	}
	for range unfenced {
		var deposed *sinks.DeposedError
		if one := <-results; errors.As(one, &deposed) {
			err = one
		}
	}
	return failed, err
}
