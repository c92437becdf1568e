package connection

import (
	"context"
	"fmt"
	"io"
	"time"

	kproto "github.com/segmentio/kafka-go/protocol"

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
	// Half of our own timeout: the broker gives up first, and answers with an error.
	message := protocol.ProduceRequest{TimeoutMillis: int32(c.dialer.Timeout.Milliseconds() / 2)}
	for _, one := range r.calls {
		message.Batches = append(message.Batches, one.batch)
	}
	r.message = message
	return r
}

// foreignRequest is a request that kafka-go has no type for.
type foreignRequest interface {
	Write(w io.Writer, correlation int32, clientID string) error
	Read(r io.Reader, correlation int32) (kproto.Message, error)
}

var _ foreignRequest = protocol.ForeignRequest{}

func (r *request) writeTo(w io.Writer, clientID string) error {
	if own, ok := r.message.(foreignRequest); ok {
		return own.Write(w, r.id, clientID)
	}
	return kproto.WriteRequest(w, r.version, r.id, clientID, r.message)
}

// readAnswers reads the answer and hands its parts to the calls. The broker could work on it from since on. throttled is
// called with the throttle time, if any, before the calls have their answers: they send more then.
func (r *request) readAnswers(from io.Reader, since time.Time, throttled func(time.Duration)) error {
	m, err := r.readMessage(from)
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
	answered := r.readProduced(m)
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

func (r *request) readProduced(m kproto.Message) map[topicPartition]answer {
	names := map[protocol.TopicID]string{}
	for _, one := range r.calls {
		names[one.batch.TopicID] = one.batch.Topic
	}
	answered := map[topicPartition]answer{}
	for _, a := range protocol.ProduceAnswers(m) {
		if a.Topic == "" {
			a.Topic = names[a.TopicID]
		}
		answered[topicPartition{a.Topic, a.Partition}] = answer{err: a.Err, baseOffset: a.BaseOffset, logStart: a.LogStart}
	}
	return answered
}

func (r *request) readMessage(from io.Reader) (kproto.Message, error) {
	if own, ok := r.message.(foreignRequest); ok {
		return own.Read(from, r.id)
	}
	id, m, err := kproto.ReadResponse(from, r.message.ApiKey(), r.version)
	if err == nil && id != r.id {
		err = fmt.Errorf("answer %d to request %d", id, r.id)
	}
	return m, err
}
