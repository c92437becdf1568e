package connection

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// maxInFlight is how many requests are sent before the first is answered. Batches that arrive meanwhile share the next
// request.
const maxInFlight = 5

// Connection is a connection to one broker. It is used until it fails, and not opened again. All methods are safe for
// concurrent use; they wait for nothing but their own answer.
type Connection struct {
	dialer        *Dialer
	address       string
	throttle      Throttle
	cancel        context.CancelCauseFunc
	done          chan struct{} // closed when its goroutines have ended
	mutedUntil    atomic.Int64  // when the broker reads again, in Unix nanoseconds; 0: it was not throttled
	awaitingSince atomic.Int64  // when the wait for the next answer began, in Unix nanoseconds; 0: none is due

	mu     sync.Mutex
	queue  []*call       // in the order of sending
	queued chan struct{} // holds a token after queue has grown
	ready  bool          // the session was established
	err    error         // why it failed; nil while it has not
}

// call waits for one answer, to a request or to a batch that shares a request with others.
type call struct {
	request kmsg.Request // nil for a batch
	batch   protocol.RecordBatch
	answer  chan answer // buffered: the reader does not wait for the caller
}

type answer struct {
	message kmsg.Response
	err     error
	Written
}

func (c *call) failWith(err error) { c.answer <- answer{err: err} }

// request is what is sent at once: one call, or many with a batch each.
type request struct {
	calls   []*call
	message kmsg.Request // of the version that the broker has
	id      int32
}

func (r *request) failAll(err error) {
	for _, c := range r.calls {
		c.failWith(err)
	}
}

// ErrClosed is the error of a connection that was closed.
var ErrClosed = errors.New("the connection to the broker is closed")

// Open starts to connect to a broker and returns at once. The connection fails when ctx ends.
func Open(ctx context.Context, d *Dialer, address string, t Throttle) *Connection {
	c := &Connection{dialer: d, address: address, throttle: t, queued: make(chan struct{}, 1), done: make(chan struct{})}
	ctx, c.cancel = context.WithCancelCause(ctx)
	go c.run(ctx)
	return c
}

// WaitUntilReady returns when no quota delays requests on this connection, or ctx ends.
func (c *Connection) WaitUntilReady(ctx context.Context) error { return c.throttle.WaitUntilReady(ctx) }

// MutedFor returns for how long the broker has announced to read nothing from this connection.
func (c *Connection) MutedFor() time.Duration { return time.Until(time.Unix(0, c.mutedUntil.Load())) }

// State reports whether the session was ever established, and why the connection has failed; nil while it has not.
func (c *Connection) State() (up bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ready, c.err
}

// IsStuck reports whether an answer has been due for longer than d.
func (c *Connection) IsStuck(d time.Duration) bool {
	waits := c.awaitingSince.Load()
	return waits != 0 && time.Since(time.Unix(0, waits)) > d
}

// Wait returns when the goroutines of the connection have ended, or ctx ends.
func (c *Connection) Wait(ctx context.Context) error {
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// RoundTrip sends a request in the newest version that the broker has of those in use, and waits for the answer, or for the
// end of ctx.
func (c *Connection) RoundTrip(ctx context.Context, r kmsg.Request) (kmsg.Response, error) {
	one := &call{request: r, answer: make(chan answer, 1)}
	c.enqueue(one)
	select {
	case a := <-one.answer:
		return a.message, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *Connection) enqueue(one *call) {
	c.mu.Lock()
	err := c.err
	if err == nil {
		c.queue = append(c.queue, one)
	}
	c.mu.Unlock()
	if err != nil {
		one.failWith(err)
		return
	}
	select {
	case c.queued <- struct{}{}:
	default:
	}
}

// run connects, serves the queue until something fails, and fails all calls that are left.
func (c *Connection) run(ctx context.Context) {
	defer close(c.done)
	s, err := c.dialer.openSession(ctx, c.address)
	if err != nil {
		c.Fail(err)
		c.failQueued(context.Cause(ctx))
		return
	}
	c.mu.Lock()
	c.ready = true
	c.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = s.Close() }) // reads and writes fail
	defer stop()

	sent := make(chan *request, maxInFlight)
	free := make(chan struct{}, maxInFlight) // holds a token for each unanswered request
	var reader sync.WaitGroup
	reader.Go(func() {
		for r := range sent {
			if err := c.readResponse(s, r); err != nil {
				c.Fail(err)
				r.failAll(context.Cause(ctx))
			}
			<-free
		}
	})
	c.Fail(c.sendRequests(ctx, s, sent, free))
	close(sent)
	reader.Wait()
	c.failQueued(context.Cause(ctx))
}

// Fail ends the connection with an error, unless it has failed before. It is marked as failed before any caller gets that
// error: one that tries again gets another connection.
func (c *Connection) Fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	c.cancel(c.err)
}

// failQueued fails the queued calls. The connection has failed, so there are no later ones.
func (c *Connection) failQueued(err error) {
	c.mu.Lock()
	queue := c.queue
	c.queue = nil
	c.mu.Unlock()
	for _, one := range queue {
		one.failWith(err)
	}
}

// sendRequests sends what is queued, while the broker is not throttling and fewer than maxInFlight requests are unanswered,
// until sending fails.
func (c *Connection) sendRequests(ctx context.Context, s *session, sent chan<- *request, free chan struct{}) error {
	w := deadlineWriter{s, c}
	for id := int32(1); ; id++ {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		r, err := c.nextRequest(ctx, s)
		if err != nil {
			return err
		}
		if r == nil {
			if err := c.renewSession(ctx, s, free); err != nil {
				return err
			}
			continue
		}
		r.id = id
		err = protocol.WriteRequest(w, r.message, r.id, c.dialer.ClientID)
		sent <- r // does not block: free bounds its length
		if err != nil {
			return err
		}
	}
}

// renewSession authenticates again on the connection (KIP-368) when all requests are answered. The caller holds one token of
// free; all of them are released. An error is one of the connection, without the code of the broker: whether credentials are
// rejected shows when the next connection is opened.
func (c *Connection) renewSession(ctx context.Context, s *session, free chan struct{}) error {
	for range maxInFlight - 1 {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := c.dialer.renewSession(ctx, s, c.address); err != nil {
		return errors.New("authenticating again: " + err.Error())
	}
	for range maxInFlight {
		<-free
	}
	return nil
}

// nextRequest waits for something to send; nil means that the session has to be renewed first. It fails a request for which
// the broker has no sufficient version.
func (c *Connection) nextRequest(ctx context.Context, s *session) (*request, error) {
	for {
		if err := c.throttle.WaitUntilReady(ctx); err != nil {
			return nil, context.Cause(ctx)
		}
		untilRenewal := time.Until(s.renewAt)
		if untilRenewal <= 0 {
			return nil, nil
		}
		c.mu.Lock()
		r := c.dequeueRequest()
		c.mu.Unlock()
		if r == nil {
			select {
			case <-c.queued:
				continue
			case <-time.After(untilRenewal):
				continue
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		var err error
		if r.message, err = r.compose(s, c.dialer.Timeout); err == nil {
			return r, nil
		}
		r.failAll(err)
	}
}

// compose returns the message of a request in the version that the broker has. InitProducerId has the epoch to continue from
// since version 3 (KIP-360, Kafka 2.5); without it, a process that was fenced would fence its successor.
func (r *request) compose(s *session, timeout time.Duration) (kmsg.Request, error) {
	if r.calls[0].request == nil {
		var batches []protocol.RecordBatch
		for _, one := range r.calls {
			batches = append(batches, one.batch)
		}
		// Half of our own timeout: the broker gives up first, and answers with an error.
		return protocol.NewProduceRequest(s.newest[int16(kmsg.Produce)], timeout/2, batches...), nil
	}
	m, err := s.atVersion(r.calls[0].request)
	if init, ok := m.(*kmsg.InitProducerIDRequest); ok && init.TransactionalID != nil && init.Version < 3 {
		err = kafka.UnsupportedVersion
	}
	return m, err
}

// dequeueRequest removes from the queue what goes into one request; nil if it is empty. Requires c.mu.
func (c *Connection) dequeueRequest() *request {
	if len(c.queue) == 0 {
		return nil
	}
	if first := c.queue[0]; first.request != nil {
		c.queue = c.queue[1:]
		return &request{calls: []*call{first}}
	}
	return c.dequeueBatches()
}

// readResponse reads the answer to a request. An error is one of the connection; the calls of the request are not answered
// then.
func (c *Connection) readResponse(s *session, r *request) error {
	if err := s.SetReadDeadline(c.progressDeadline()); err != nil {
		return err
	}
	c.awaitingSince.Store(time.Now().UnixNano())
	defer c.awaitingSince.Store(0)
	return r.readAnswers(s.reader, c.readyTime(), func(throttled time.Duration) {
		c.mutedUntil.Store(time.Now().Add(throttled).UnixNano())
		c.throttle.RecordThrottle(throttled)
		_ = s.SetWriteDeadline(c.progressDeadline()) // of a write under way; an error means that the connection has failed, which the writer notices
	})
}

// progressDeadline is when the broker must have sent or accepted more bytes: a timeout after it reads again.
func (c *Connection) progressDeadline() time.Time {
	return c.readyTime().Add(c.dialer.Timeout)
}

// readyTime is when the broker reads requests again after its throttle time.
func (c *Connection) readyTime() time.Time {
	return time.Now().Add(max(0, c.throttle.Remaining()))
}

// deadlineWriter bounds the time for each part of a request, not for all of it: a slow network may need long for a large
// one.
type deadlineWriter struct {
	s *session
	c *Connection
}

// maxWriteBytes is the size of a part.
const maxWriteBytes = 64 << 10

func (w deadlineWriter) Write(b []byte) (n int, err error) {
	for part := range slices.Chunk(b, maxWriteBytes) {
		if err := w.s.SetWriteDeadline(w.c.progressDeadline()); err != nil {
			return n, err
		}
		written, err := w.s.Write(part)
		if n += written; err != nil {
			return n, err
		}
	}
	return n, nil
}

// Dialer configures connections to brokers. It is not changed while it is used.
type Dialer struct {
	ClientID  string
	TLS       auth.TLS
	Mechanism sasl.Mechanism // nil: none
	// Timeout bounds how long establishing a session takes, and then how long the broker takes for each answer since the last
	// one.
	Timeout time.Duration
	// DialContext opens a network connection.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// Throttle holds the throttle time of a broker (KIP-219), which connections under one quota share. It is safe for concurrent
// use.
type Throttle interface {
	// RecordThrottle records the throttle time of an answer, which is above zero.
	RecordThrottle(wait time.Duration)
	// Remaining returns how long the broker will not read requests.
	Remaining() time.Duration
	// WaitUntilReady returns when the broker reads requests, or ctx ends.
	WaitUntilReady(ctx context.Context) error
}

// session is an established connection.
type session struct {
	net.Conn
	reader  *bufio.Reader
	newest  map[int16]int16 // version that the broker has of each API
	renewAt time.Time       // when to authenticate again, before the broker ends the session
}

// atVersion returns a request in the version to use.
func (s *session) atVersion(r kmsg.Request) (kmsg.Request, error) {
	newest, offered := s.newest[r.Key()]
	if !offered {
		return nil, kafka.UnsupportedVersion
	}
	return protocol.AtVersion(r, newest), nil
}

// roundTrip sends a request and reads the answer, while nothing else uses the session.
func (s *session) roundTrip(clientID string, r kmsg.Request) (kmsg.Response, error) {
	r, err := s.atVersion(r)
	if err != nil {
		return nil, err
	}
	if err := protocol.WriteRequest(s, r, 0, clientID); err != nil {
		return nil, err
	}
	return protocol.ReadResponse(s.reader, r, 0)
}

// unlimited is the lifetime of a session that the broker does not end.
const unlimited = 1 << 62 * time.Nanosecond

// openSession connects and authenticates within the timeout.
func (d *Dialer) openSession(ctx context.Context, address string) (_ *session, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	dialing, stop := context.WithTimeout(ctx, d.Timeout/2) // so that an address that is not there is not taken for a silent broker
	defer stop()
	raw, err := d.DialContext(dialing, "tcp", address)
	if err != nil {
		return nil, err
	}
	interrupt := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) }) // in the past: pending reads and writes fail
	s, err := d.startSession(ctx, raw, address)
	if !interrupt() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = raw.Close() // err is the cause
		return nil, &condition.OpeningError{Err: err}
	}
	return s, nil
}

// startSession does the TLS handshake, negotiates API versions and authenticates.
func (d *Dialer) startSession(ctx context.Context, raw net.Conn, address string) (*session, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if d.TLS.Enabled {
		config, err := d.TLS.ClientConfig(host) // reads the files again
		if err != nil {
			return nil, &auth.CredentialError{Err: err}
		}
		secure := tls.Client(sinks.DeferWriteErrors(raw), config)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		raw = secure
	}
	s := &session{raw, bufio.NewReader(raw), map[int16]int16{int16(kmsg.ApiVersions): 0}, time.Now().Add(unlimited)}
	answer, err := s.roundTrip(d.ClientID, kmsg.NewPtrApiVersionsRequest())
	if err != nil {
		return nil, err
	}
	offered := answer.(*kmsg.ApiVersionsResponse)
	if err := protocol.CodeError(offered.ErrorCode, nil); err != nil {
		return nil, fmt.Errorf("asking for API versions: %w", err)
	}
	for _, r := range offered.ApiKeys {
		s.newest[r.ApiKey] = r.MaxVersion
	}
	if d.Mechanism == nil {
		return s, nil
	}
	return s, d.authenticate(ctx, s, address)
}

// renewSession authenticates again within the timeout. Nothing else uses the session meanwhile.
func (d *Dialer) renewSession(ctx context.Context, s *session, address string) error {
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	if err := s.SetDeadline(time.Now().Add(d.Timeout)); err != nil {
		return err
	}
	return d.authenticate(ctx, s, address)
}

// authenticate does the SASL exchange, and sets when it has to be repeated.
func (d *Dialer) authenticate(ctx context.Context, s *session, address string) error {
	answer, err := s.roundTrip(d.ClientID, &kmsg.SASLHandshakeRequest{Mechanism: d.Mechanism.Name()})
	if err != nil {
		return err
	}
	if err := protocol.CodeError(answer.(*kmsg.SASLHandshakeResponse).ErrorCode, nil); err != nil {
		return err
	}
	startedAt, lifetime := time.Now(), int64(0)
	state, token, err := d.Mechanism.Authenticate(ctx, address)
	for done := false; err == nil && !done; {
		answer, err = s.roundTrip(d.ClientID, &kmsg.SASLAuthenticateRequest{SASLAuthBytes: token})
		if errors.Is(err, io.EOF) { // older brokers close the connection instead of answering
			return kafka.SASLAuthenticationFailed
		}
		if err != nil {
			return err
		}
		r := answer.(*kmsg.SASLAuthenticateResponse)
		if err := protocol.CodeError(r.ErrorCode, r.ErrorMessage); err != nil {
			return err
		}
		lifetime = r.SessionLifetimeMillis
		done, token, err = state.Challenge(r.SASLAuthBytes)
	}
	if s.renewAt = startedAt.Add(unlimited); lifetime > 0 {
		s.renewAt = startedAt.Add(time.Duration(lifetime) * time.Millisecond / 10 * 9)
	}
	return err
}

// maxRequestBytes bounds the batches that share one request. A larger batch is sent alone.
const maxRequestBytes = 4 << 20

// Pending is a batch that was sent or is queued. Written is set after Wait has returned the answer.
type Pending struct {
	call
	Written
}

// Written is what a broker has reported about a batch.
type Written struct {
	BrokerTime time.Duration // how long it took for the request with the batch
	BaseOffset int64         // of the first record, if the batch was written; below zero if it is not reported
	LogStart   int64         // of the oldest record in the partition then; zero or below if it is not reported
}

// Produce queues a batch behind all earlier ones and returns at once. Batches of one partition are in different requests,
// in order. A broker processes the requests of a connection one after the other
// (kafka.apache.org/protocol#protocol_network), so none overtakes another.
func (c *Connection) Produce(b protocol.RecordBatch) *Pending {
	p := &Pending{call: call{batch: b, answer: make(chan answer, 1)}}
	c.enqueue(&p.call)
	return p
}

// Wait returns the answer for the batch: nil when it is durable, the error of the broker, or the failure of the connection.
// When ctx ends it returns that error, and may be called again. It must not be called after the answer.
func (p *Pending) Wait(ctx context.Context) error {
	select {
	case a := <-p.answer:
		p.Written = a.Written
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
		a.BrokerTime = time.Since(since)
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
				err: protocol.CodeError(p.ErrorCode, nil), Written: Written{BaseOffset: p.BaseOffset, LogStart: p.LogStartOffset},
			}
		}
	}
	return answered
}
