package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

const (
	// maxInFlight is how many batches of a partition are sent before the first is answered. A broker remembers the sequence
	// numbers of the last five batches of a producer, and recognizes a copy of these only (KIP-98, KAFKA-5494).
	maxInFlight = 5
	// timestampPause is how long a lane sends batches without timestamps after a broker has refused one.
	timestampPause = time.Minute
)

// inFlightBatch is a batch that is not settled. Its bytes do not change while the connection may still read them.
type inFlightBatch struct {
	bytes          []byte // nil between calls if they were not retained
	offsets        []uint64
	records        int                 // as the broker counts them: one or two for each offset
	rawBytes       int                 // size of the records before compression
	codec          int32               // index of the codec, see compressionChoice
	sentAt         time.Time           // the timestamp of its records; zero when they have none
	maybeWritten   bool                // an attempt ended without an answer about it: only the same numbers are safe to send
	bytesShared    bool                // an attempt ended without any answer: the connection may still read bytes
	pending        *connection.Pending // the attempt that is under way; nil: there is none
	written        connection.Written  // as the answer to the last attempt reports it
	corruptAnswers int                 // how often the broker found it corrupt
}

// size returns the size of the encoded batch as the broker compares it with max.message.bytes.
func (f *inFlightBatch) size() int { return len(f.bytes) }

// awaitAnswer waits for the answer to the attempt under way, and ends the attempt.
func (f *inFlightBatch) awaitAnswer(ctx context.Context) error {
	answer := f.pending.Wait(ctx)
	f.written, f.pending = f.pending.Written, nil
	if v := protocol.ClassifyError(answer); v == protocol.Unsettled || v == protocol.Accepted {
		f.maybeWritten = true
	}
	f.bytesShared = f.bytesShared || !protocol.IsBrokerError(answer) && answer != nil
	return answer
}

// publishWindow is the unsettled batches of one lane, in the order of their sequence numbers. The first maxInFlight at most
// are under way, all to one broker over one connection, which keeps their order. Not safe for concurrent use.
type publishWindow struct {
	partition *partitionClient
	buffers   *bufferPool
	retained  *byteBudget // shared by all lanes

	batches      []*inFlightBatch
	topic        protocol.TopicID // that may take the batches
	leader       int32            // the broker that the batches under way were sent to
	purpose      cluster.Purpose  // of the connection that carries them
	limit        int              // batches under way at most, as far as the network is concerned: 1 or maxInFlight
	untimedUntil time.Time        // until then batches have no timestamp, because the broker refused one
}

// errRecreated is the error of batches that are numbered for another topic than the one that has its name now.
var errRecreated = errors.New("the topic was recreated")

func isOtherTopic(layout *cluster.Layout, id protocol.TopicID) bool {
	return layout != nil && layout.Err == nil && layout.ID != id
}

// sendUnsent sends those of the first depth batches that are not under way, and stores the layout that it used in
// try. It calls sent for each. An error means that the first batch was not sent.
func (w *publishWindow) sendUnsent(try *deliveryAttempt, depth int, sent func()) error {
	try.layout = w.partition.topic.layout.Load()
	to, err := try.layout.Lead(w.partition.index)
	underWay := w.batches[0].pending != nil
	if underWay && (to.Broker != w.leader || isOtherTopic(try.layout, w.topic)) {
		return nil // the leader has moved: wait until the batches sent to the old one are answered
	}
	if err != nil {
		return err
	}
	if isOtherTopic(try.layout, w.topic) {
		return errRecreated
	}
	w.leader = to.Broker
	for i, f := range w.sendableBatches(depth) {
		if f.pending != nil {
			continue
		}
		w.stampBatch(f)
		sent()
		if f.pending, err = w.partition.produce(w.leader, w.topic, f.bytes, w.purpose); err != nil {
			if i > 0 {
				return nil // the call that begins with this batch reports it
			}
			return err
		}
	}
	return nil
}

// sendableBatches returns the first depth batches, or fewer if one of them has no bytes.
func (w *publishWindow) sendableBatches(depth int) []*inFlightBatch {
	n := 0
	for n < min(len(w.batches), depth) && w.batches[n].bytes != nil {
		n++
	}
	return w.batches[:n]
}

// awaitFirst waits for the answer to the first batch. Unless that is accepted, it waits for the others as well: the broker's
// answers about those follow from the first, and matter only in that they may be written.
func (w *publishWindow) awaitFirst(ctx context.Context) error {
	first := w.batches[0]
	answer := first.awaitAnswer(ctx)
	w.adaptLimit(answer, first.written.BrokerTime)
	if protocol.ClassifyError(answer) == protocol.Accepted {
		return nil
	}
	for _, f := range w.batches[1:] {
		if f.pending != nil {
			_ = f.awaitAnswer(ctx) // what matters is recorded in f
		}
	}
	if isReplicaLag(answer) || errors.Is(answer, kafka.RequestTimedOut) {
		w.purpose = cluster.ForSlowReplicas
	}
	return answer
}

// isReplicaLag reports whether a broker could not write because other replicas do not follow.
func isReplicaLag(err error) bool {
	return errors.Is(err, kafka.NotEnoughReplicas) || errors.Is(err, kafka.NotEnoughReplicasAfterAppend)
}

// adaptLimit decides from the last answer how many batches to have under way: several only where each takes so little that
// all of them are answered well before the request timeout. After a failure it is one.
func (w *publishWindow) adaptLimit(err error, each time.Duration) {
	w.limit = 1
	if err == nil && each < w.partition.requestTimeout/(2*maxInFlight) {
		w.limit = maxInFlight
	}
}

// stampBatch sets the timestamp of the records to now, or to none while the broker refuses ours.
func (w *publishWindow) stampBatch(f *inFlightBatch) {
	if f.bytesShared {
		f.bytes, f.bytesShared = slices.Clone(f.bytes), false
	}
	if f.sentAt = time.Now(); f.sentAt.Before(w.untimedUntil) {
		f.sentAt = time.Time{}
	}
	record.SetTimestamp(f.bytes, f.sentAt)
}

func (w *publishWindow) dropBatches() {
	for _, f := range w.batches {
		w.releaseBuffer(f)
	}
	w.batches = nil
}

// sequenceAfter returns the sequence behind all batches, of which the first one is at next.
func (w *publishWindow) sequenceAfter(next record.ProducerSequence) record.ProducerSequence {
	for _, f := range w.batches {
		next.Sequence = record.SequenceAfter(next.Sequence, f.records)
	}
	return next
}

// releaseBuffer returns the buffer of a batch to the pool, unless the connection may still read it.
func (w *publishWindow) releaseBuffer(f *inFlightBatch) {
	if !f.bytesShared && f.pending == nil {
		w.buffers.putBuffer(f.bytes)
	}
}

// retainBytes keeps the bytes of the batches between two calls, within the budget of all lanes. Beyond it only the
// boundaries of a batch are kept, from which it is encoded again. // I6
func (w *publishWindow) retainBytes() {
	for _, f := range w.batches {
		if !w.retained.tryReserve(len(f.bytes)) {
			f.bytes = nil
		}
	}
}

// reclaimBytes returns to the budget what retainBytes reserved.
func (w *publishWindow) reclaimBytes() {
	for _, f := range w.batches {
		w.retained.releaseBytes(len(f.bytes))
	}
}

// codecsByPreference are tried in this order where the configuration names none. Brokers of other makes lack zstd, and some
// know gzip alone.
var codecsByPreference = []string{defaultCompression, "lz4", "gzip", "none"}

// compressionChoice is how the batches of a sink may be compressed: by the codec that was configured, or by the first of
// several that a topic accepts. It is safe for concurrent use.
type compressionChoice struct {
	codecs    []string
	condition *condition.Condition // some topic accepts only a later codec than the first
	reported  atomic.Bool
}

func newCompressionChoice(configured string, log *slog.Logger) *compressionChoice {
	c := &compressionChoice{codecs: codecsByPreference, condition: condition.New(log, "", condition.Problem{})}
	if configured != "" {
		c.codecs = []string{configured}
	}
	return c
}

// codec returns the codec of an index, as a topic has it.
func (c *compressionChoice) codec(index int32) record.Codec { return record.Codecs[c.codecs[index]] }

// recordRefusal makes the batches of a topic use the codec behind the one that was refused. An error means that there is
// none.
func (c *compressionChoice) recordRefusal(t *topic, refused int32, cause error) error {
	if int(refused) < len(c.codecs)-1 {
		t.codec.CompareAndSwap(refused, refused+1) // otherwise another lane has found it out
		return nil
	}
	p := condition.Problem{
		Code: condition.SinkMisconfigured, Cause: fmt.Sprintf("topic %q refuses batches with the compression %s", t.name, c.codecs[refused]),
		Remedy: "remove kafka.compression, so that the sink finds one that is accepted, or set it to gzip or none",
	}
	if len(c.codecs) > 1 {
		p.Cause = fmt.Sprintf("topic %q refuses batches, compressed or not", t.name)
		p.Remedy = "raise message.format.version of the topic to 0.11 or newer; a broker without producer IDs needs kafka.idempotence: false"
	}
	return p.Wrap(cause)
}

// recordAccepted reports, once, that a topic has accepted only a later codec than the first.
func (c *compressionChoice) recordAccepted(t *topic, accepted int32) {
	if accepted > 0 && c.reported.CompareAndSwap(false, true) {
		c.condition.Update(condition.Problem{
			Code: condition.SinkCompressionRefused, Cause: fmt.Sprintf("topic %q accepts %s, and refuses %s", t.name, c.codecs[accepted], c.codecs[0]),
			Remedy: "set kafka.compression: " + c.codecs[accepted],
		})
	}
}

// limitAge is how long a limit counts after it was found: a topic may be edited, and what was too large is tried again then.
const limitAge = 10 * time.Second

// sizeLimit is max.message.bytes of a topic, or less than a record that it has refused where that may not be read. What
// exceeds it is rejected before it gets numbers: the batches around it stay under way.
type sizeLimit struct {
	bytes   int // math.MaxInt: not known
	foundAt time.Time
}

func (l *sizeLimit) isCurrent() bool { return l != nil && time.Since(l.foundAt) < limitAge }

// currentLimit returns the size above which the topic refuses a batch for certain; math.MaxInt if none is known.
func (t *topic) currentLimit() int {
	if known := t.limit.Load(); known.isCurrent() {
		return known.bytes
	}
	return math.MaxInt
}

// readLimit reads the limit of a topic. A user without the right to describe configurations does not know it.
func (c *topicCatalog) readLimit(ctx context.Context, t *topic) {
	limit := math.MaxInt
	if settings, err := c.cluster.TopicSettings(ctx, t.name); err == nil {
		if n, err := strconv.Atoi(settings["max.message.bytes"]); err == nil {
			limit = n
		}
	}
	t.limit.Store(&sizeLimit{limit, time.Now()})
}

// tooLargeError rejects a record whose batch has this size.
func (t *topic) tooLargeError(size int, cause error) error {
	return &sinks.RejectedError{TooLarge: true, Err: cause,
		Reason: fmt.Sprintf("a record of %d bytes (compressed) exceeds max.message.bytes of topic %q", size, t.name)}
}

// SizeLimit implements [sinks.SizeAnnouncer] with max.message.bytes of the lane's topic.
func (s *Sink) SizeLimit(ctx context.Context, name sinks.Lane) (check func(sinks.Message) error, err error) {
	t := s.topics.topicByName(topicOfLane(name))
	if !t.limit.Load().isCurrent() {
		s.topics.readLimit(ctx, t)
	}
	limit := t.currentLimit()
	if limit == math.MaxInt {
		return nil, nil
	}
	return func(m sinks.Message) error {
		if m.IsClearlyWithin(limit) {
			return nil
		}
		size, err := s.lanes.encodedSize(ctx, t, m)
		if err != nil || size <= limit {
			return err
		}
		return t.tooLargeError(size, nil)
	}, nil
}

// encodedSize returns the size of a batch with this message alone, as the broker compares it with max.message.bytes.
func (s *laneSet) encodedSize(ctx context.Context, t *topic, m sinks.Message) (int, error) {
	e, err := s.encoders.acquireEncoder(ctx, s.codecs.codec(t.codec.Load()), t)
	if err != nil {
		return 0, err
	}
	defer s.encoders.releaseEncoder(e)
	bytes, _, _, err := e.Encode(nil, []sinks.Message{m}, math.MaxInt, math.MaxInt, record.ProducerSequence{})
	return len(bytes), err
}
