package cluster

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// QueryEpochEnds sets Lead, Shape and EpochEnd of spans: where the log of the leader, replicated or not, has the end of the
// epoch AskedEpoch, or of the newest one before that (KIP-320). It finds the leaders and reports errors as ReadSpans does.
func (r *Reader) QueryEpochEnds(ctx context.Context, spans []*Span) error {
	return r.askLeaders(ctx, spans, func(ctx context.Context, leader int32, all []*Span) error {
		for start := 0; start < len(all); start += maxPartitionsPerRequest {
			r.queryEpochEnds(ctx, leader, all[start:min(len(all), start+maxPartitionsPerRequest)])
		}
		return nil // the spans have the errors
	})
}

// queryEpochEnds is QueryEpochEnds for partitions of one leader.
func (r *Reader) queryEpochEnds(ctx context.Context, leader int32, spans []*Span) {
	request := kmsg.NewPtrOffsetForLeaderEpochRequest()
	request.SetVersion(3)
	for topic, all := range spansByTopic(spans) {
		t := kmsg.OffsetForLeaderEpochRequestTopic{Topic: topic}
		for _, s := range all {
			p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			p.Partition, p.CurrentLeaderEpoch, p.LeaderEpoch = s.Index, s.Lead.Epoch, s.AskedEpoch
			t.Partitions = append(t.Partitions, p)
		}
		request.Topics = append(request.Topics, t)
	}
	limited, cancel := r.limitRequest(ctx)
	defer cancel()
	answer, err := requestForeign[*kmsg.OffsetForLeaderEpochResponse](limited, r.cluster, leader, forRequests, request)
	if err != nil {
		_ = failSpans(spans, err)
		return
	}
	unanswered := spansByPartition(spans)
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			s := unanswered[Partition{t.Topic, p.Partition}]
			if s == nil {
				_ = failSpans(spans, protocol.ErrMalformed)
				return
			}
			delete(unanswered, s.Partition)
			if s.EpochEnd = p.EndOffset; p.ErrorCode != 0 {
				s.Err = fmt.Errorf("asking %s for its history: %w", s.Partition, protocol.CodeError(p.ErrorCode, ""))
			}
		}
	}
	for _, s := range unanswered {
		s.Err = protocol.ErrMalformed
	}
}

// LogEndOffset returns the end of the leader's log, replicated or not.
func (r *Reader) LogEndOffset(ctx context.Context, by Lead, p Partition) (int64, error) {
	one := &Span{Partition: p, Lead: by, AskedEpoch: by.Epoch}
	r.queryEpochEnds(ctx, by.Broker, []*Span{one})
	return one.EpochEnd, one.Err
}

// OriginAt asks the leader of a partition for the origin of the batch that contains an offset. found is false if compaction
// has removed that.
func (r *Reader) OriginAt(ctx context.Context, by Lead, p Partition, offset int64) (o protocol.Origin, found bool, err error) {
	request := newFetchRequest([]*Span{{Partition: p, Lead: by, Next: offset}})
	request.MaxBytes, request.Topics[0].Partitions[0].PartitionMaxBytes = 1, 1 // one batch, however large
	limited, cancel := r.limitRequest(ctx)
	defer cancel()
	answer, err := requestForeign[*kmsg.FetchResponse](limited, r.cluster, by.Broker, forReading, request)
	if err == nil {
		err = protocol.CodeError(answer.ErrorCode, "")
	}
	if err != nil {
		return o, false, err
	}
	if len(answer.Topics) != 1 || len(answer.Topics[0].Partitions) != 1 {
		return o, false, protocol.ErrMalformed
	}
	one := answer.Topics[0].Partitions[0]
	if err := protocol.CodeError(one.ErrorCode, ""); err != nil {
		return o, false, fmt.Errorf("reading %s: %w", p, err)
	}
	batches := protocol.Batches(one.RecordBatches)
	if len(batches) == 0 {
		return o, false, protocol.ErrMalformed
	}
	o, found = batches.OriginAt(offset)
	return o, found, nil
}
