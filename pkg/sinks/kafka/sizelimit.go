package kafka

import (
	"context"
	"math"
	"strconv"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// SizeLimit implements [sinks.SizeAnnouncer] with max.message.bytes of the lane's topic, which a user without the right to
// describe configurations does not know.
func (s *Sink) SizeLimit(ctx context.Context, name sinks.Lane) (fits func(sinks.Message) bool, err error) {
	if _, waiting := topicOfWaitingLane(name); waiting {
		return nil, nil
	}
	l, err := s.lanes.laneByName(name)
	if err != nil {
		return nil, err
	}
	settings, err := s.cluster.TopicSettings(ctx, l.partition.topic.name)
	if err != nil {
		return nil, err
	}
	limit, err := strconv.Atoi(settings["max.message.bytes"])
	if err != nil {
		return nil, err
	}
	return func(m sinks.Message) bool {
		size, err := l.encoder.encodedSize(ctx, m)
		return err == nil && size <= limit
	}, nil
}

// encodedSize returns the size of a batch with this message alone, as the broker compares it with max.message.bytes.
func (b *batchEncoder) encodedSize(ctx context.Context, m sinks.Message) (int, error) {
	e, err := b.encoders.acquireEncoder(ctx, b.codecs.codec(b.topic.codec.Load()))
	if err != nil {
		return 0, err
	}
	defer b.encoders.releaseEncoder(e)
	bytes, _, _, err := e.Encode(nil, []sinks.Message{m}, math.MaxInt, math.MaxInt, record.ProducerSequence{})
	return len(bytes) - record.LengthPrefix, err
}
