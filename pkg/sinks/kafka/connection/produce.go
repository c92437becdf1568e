package connection

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// maxRequestBytes bounds the batches that share one request. A larger batch is sent alone.
const maxRequestBytes = 4 << 20

// Pending is a batch that was sent or is queued.
type Pending struct {
	call
	brokerTime time.Duration
	baseOffset int64
	logStart   int64
}

// Produce queues a batch behind all earlier ones and returns at once. Batches of one partition are in different requests,
// in order. A broker processes the requests of a connection one after the other
// (kafka.apache.org/protocol#protocol_network), so none overtakes another.
func (c *Connection) Produce(b protocol.RecordBatch) *Pending {
	p := &Pending{call: call{batch: b, answer: make(chan answer, 1)}}
	c.enqueue(&p.call)
	return p
}

// BrokerTime is how long the broker took for the request with the batch, after Wait has returned its answer.
func (p *Pending) BrokerTime() time.Duration { return p.brokerTime }

// BaseOffset is the offset of the first record after Wait has returned nil; below zero if the broker does not report it.
func (p *Pending) BaseOffset() int64 { return p.baseOffset }

// LogStart is the offset of the oldest record in the partition then; zero or below if the broker does not report it.
func (p *Pending) LogStart() int64 { return p.logStart }

// Wait returns the answer for the batch: nil when it is durable, the error of the broker, or the failure of the connection.
// When ctx ends it returns that error, and may be called again. It must not be called after the answer.
func (p *Pending) Wait(ctx context.Context) error {
	select {
	case a := <-p.answer:
		p.brokerTime, p.baseOffset, p.logStart = a.brokerTime, a.baseOffset, a.logStart
		return a.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

type topicPartition struct {
	topic     string
	partition int32
}

func (c *call) target() topicPartition { return topicPartition{c.batch.Topic, c.batch.Partition} }

// dequeueBatches removes from the queue what goes into one request: the first batch of each partition. Requires c.mu.
func (c *Connection) dequeueBatches() *request {
	r, size := &request{}, 0
	passed := map[topicPartition]bool{} // later batches of these are for later requests
	later := c.queue[:0]
	byID := c.queue[0].batch.HasTopicID() // a request names all topics in one way
	for _, one := range c.queue {
		fits := one.request == nil && !passed[one.target()] && byID == one.batch.HasTopicID() &&
			(size == 0 || size+len(one.batch.Bytes) <= maxRequestBytes)
		if one.request == nil {
			passed[one.target()] = true
		}
		if !fits {
			later = append(later, one)
			continue
		}
		r.calls = append(r.calls, one)
		size += len(one.batch.Bytes)
	}
	clear(c.queue[len(later):])
	c.queue = later
	return r
}

// readAnswers reads the answer and hands its parts to the calls. The broker could work on it from since on. throttled is
// called with the throttle time, if any, before the calls have their answers: they send more then.
func (r *request) readAnswers(from *bufio.Reader, since time.Time, throttled func(time.Duration)) error {
	m, err := protocol.ReadResponse(from, r.message, r.id)
	if err != nil {
		return err
	}
	if wait := protocol.ThrottleTime(m); wait > 0 {
		throttled(wait)
	}
	if r.calls[0].request != nil {
		r.calls[0].answer <- answer{message: m}
		return nil
	}
	answered := r.readProduced(m.(*kmsg.ProduceResponse))
	for _, one := range r.calls {
		if _, ok := answered[one.target()]; !ok {
			return fmt.Errorf("the response lacks partition %d of topic %q", one.batch.Partition, one.batch.Topic)
		}
	}
	for _, one := range r.calls {
		a := answered[one.target()]
		a.brokerTime = time.Since(since)
		one.answer <- a
	}
	return nil
}

// readProduced returns the answers for batches. A response names topics as the request does: by name, or by ID.
func (r *request) readProduced(m *kmsg.ProduceResponse) map[topicPartition]answer {
	names := map[protocol.TopicID]string{}
	for _, one := range r.calls {
		names[one.batch.TopicID] = one.batch.Topic
	}
	answered := map[topicPartition]answer{}
	for _, t := range m.Topics {
		topic := cmp.Or(t.Topic, names[t.TopicID])
		for _, p := range t.Partitions {
			answered[topicPartition{topic, p.Partition}] = answer{
				err: protocol.CodeError(p.ErrorCode, nil), baseOffset: p.BaseOffset, logStart: p.LogStartOffset,
			}
		}
	}
	return answered
}
