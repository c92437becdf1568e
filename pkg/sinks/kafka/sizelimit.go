package kafka

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// limitAge is how long a limit counts after it was read: a topic may be edited, and what was too large is tried again then.
const limitAge = 10 * time.Second

// sizeLimit is max.message.bytes of a topic. What exceeds it is rejected before it gets numbers: the batches around it stay
// under way.
type sizeLimit struct {
	bytes  int
	readAt time.Time
}

// exceedsLimit reports whether the topic refuses a batch of this size for certain.
func (t *topic) exceedsLimit(size int) bool {
	known := t.limit.Load()
	return known != nil && size > known.bytes && time.Since(known.readAt) < limitAge
}

// readLimit reads the limit of a topic. A user without the right to describe configurations does not know it.
func (c *topicCatalog) readLimit(ctx context.Context, t *topic) error {
	settings, err := c.cluster.TopicSettings(ctx, t.name)
	if err != nil {
		return err
	}
	bytes, err := strconv.Atoi(settings["max.message.bytes"])
	if err != nil {
		return err
	}
	t.limit.Store(&sizeLimit{bytes, time.Now()})
	return nil
}

// tooLargeError rejects a record whose batch has this size.
func (t *topic) tooLargeError(size int, cause error) error {
	return &sinks.RejectedError{TooLarge: true, Err: cause,
		Reason: fmt.Sprintf("a record of %d bytes (compressed) exceeds max.message.bytes of topic %q", size, t.name)}
}

// SizeLimit implements [sinks.SizeAnnouncer] with max.message.bytes of the lane's topic.
func (s *Sink) SizeLimit(ctx context.Context, name sinks.Lane) (fits func(sinks.Message) bool, err error) {
	if _, waiting := topicOfWaitingLane(name); waiting {
		return nil, nil
	}
	l, err := s.lanes.laneByName(name)
	if err != nil {
		return nil, err
	}
	if err := s.topics.readLimit(ctx, l.partition.topic); err != nil {
		return nil, err
	}
	return func(m sinks.Message) bool {
		size, err := l.encoder.encodedSize(ctx, m)
		return err == nil && !l.partition.topic.exceedsLimit(size)
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
