package connection

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	kproto "github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/initproducerid"
)

// maxInFlight is how many requests leave before the first is answered. What comes meanwhile goes together in the next one.
const maxInFlight = 5

// Connection is a connection to one broker. It is opened once and used until it fails; then it is of no more use. All
// methods are safe for concurrent use, and none waits but for its own answer.
type Connection struct {
	dialer        *Dialer
	address       string
	cancel        context.CancelCauseFunc
	done          chan struct{} // closed when nothing of it runs any more
	awaitingSince atomic.Int64  // since when, in nanoseconds, the answer that is due is waited for; 0 while none is

	mu     sync.Mutex
	queue  []*call       // in the order in which they are to leave
	queued chan struct{} // holds a token after queue has grown
	ready  bool          // the broker has let us in
	err    error         // why it has failed
}

// call waits for one answer: to a request, or to a batch that goes with others in a request.
type call struct {
	request kproto.Message // nil for a batch
	batch   Batch
	answer  chan answer // has room for it
}

type answer struct {
	message    kproto.Message
	err        error
	brokerTime time.Duration
	baseOffset int64 // offset at which a batch was written
}

func (c *call) failWith(err error) { c.answer <- answer{err: err} }

// request is what leaves at once: one call, or many with a batch each.
type request struct {
	calls   []*call
	message kproto.Message
	id      int32
	version int16
}

func (r *request) failAll(err error) {
	for _, c := range r.calls {
		c.failWith(err)
	}
}

// ErrClosed is the failure of a connection that was closed.
var ErrClosed = errors.New("the connection to the broker is closed")

// Open begins to connect to a broker. It fails, later, when ctx ends.
func Open(ctx context.Context, d *Dialer, address string) *Connection {
	c := &Connection{dialer: d, address: address, queued: make(chan struct{}, 1), done: make(chan struct{})}
	ctx, c.cancel = context.WithCancelCause(ctx)
	go c.run(ctx)
	return c
}

// Address is where the broker is.
func (c *Connection) Address() string { return c.address }

// State says whether the broker has ever let us in, and why the connection has failed; nil while it has not.
func (c *Connection) State() (up bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ready, c.err
}

// IsStuck says whether there was no answer for so long, while one is due.
func (c *Connection) IsStuck(d time.Duration) bool {
	waits := c.awaitingSince.Load()
	return waits != 0 && time.Since(time.Unix(0, waits)) > d
}

// Wait returns when nothing of the connection runs any more, or ctx ends.
func (c *Connection) Wait(ctx context.Context) error {
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// RoundTrip sends a request and waits for the answer, or for the end of ctx.
func (c *Connection) RoundTrip(ctx context.Context, r kproto.Message) (kproto.Message, error) {
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

// run connects, serves the queue until something fails, and tells all who wait.
func (c *Connection) run(ctx context.Context) {
	defer close(c.done)
	s, err := c.dialer.openSession(ctx, c.address)
	if err != nil {
		c.failQueued(err)
		return
	}
	c.mu.Lock()
	c.ready = true
	c.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = s.Close() }) // what reads or writes fails
	defer stop()

	sent := make(chan *request, maxInFlight)
	free := make(chan struct{}, maxInFlight) // holds a token for each request that is on its way
	var reader sync.WaitGroup
	reader.Go(func() {
		for r := range sent {
			if err := c.readResponse(s, r); err != nil {
				c.cancel(err) // the first cause counts
				r.failAll(context.Cause(ctx))
			}
			<-free
		}
	})
	c.cancel(c.sendRequests(ctx, s, sent, free))
	close(sent)
	reader.Wait()
	c.failQueued(context.Cause(ctx))
}

// failQueued fails what is queued, and what comes.
func (c *Connection) failQueued(err error) {
	c.cancel(err)
	c.mu.Lock()
	c.err = err
	queue := c.queue
	c.queue = nil
	c.mu.Unlock()
	for _, one := range queue {
		one.failWith(err)
	}
}

// sendRequests sends what is queued, as soon as the broker listens and not too much is on its way, until that fails.
func (c *Connection) sendRequests(ctx context.Context, s *session, sent chan<- *request, free chan<- struct{}) error {
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
		r.id = id
		err = r.writeTo(w, c.dialer.ClientID)
		sent <- r // there is room: free says so
		if err != nil {
			return err
		}
	}
}

// nextRequest waits for something to send.
func (c *Connection) nextRequest(ctx context.Context, s *session) (*request, error) {
	for {
		if err := c.dialer.Throttle.WaitUntilReady(ctx, c.address); err != nil {
			return nil, context.Cause(ctx)
		}
		c.mu.Lock()
		r := c.dequeueRequest()
		c.mu.Unlock()
		if r == nil {
			select {
			case <-c.queued:
				continue
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		var offered bool
		if r.version, offered = s.versions[r.message.ApiKey()]; offered && !lacksFields(r.message, r.version) {
			return r, nil
		}
		r.failAll(kafka.UnsupportedVersion)
	}
}

// lacksFields says whether a version leaves out what a request is about: whose epoch is to be counted up (KIP-360, Kafka 2.5).
// Without that, a process that was turned away would turn its successor away.
func lacksFields(m kproto.Message, version int16) bool {
	r, ok := m.(*initproducerid.Request)
	return ok && r.TransactionalID != "" && version < 3
}

// dequeueRequest removes from the queue what goes into one request; nil if there is nothing. mu is held.
func (c *Connection) dequeueRequest() *request {
	if len(c.queue) == 0 {
		return nil
	}
	if first := c.queue[0]; first.request != nil {
		c.queue = c.queue[1:]
		return &request{calls: []*call{first}, message: first.request}
	}
	return c.dequeueBatches()
}

// readResponse reads the answer to a request. The error is one of the connection, and nobody is answered then.
func (c *Connection) readResponse(s *session, r *request) error {
	if err := s.SetReadDeadline(c.progressDeadline()); err != nil {
		return err
	}
	c.awaitingSince.Store(time.Now().UnixNano())
	defer c.awaitingSince.Store(0)
	return r.readAnswers(s, c.readyTime(), func(throttled time.Duration) {
		c.dialer.Throttle.RecordThrottle(c.address, throttled)
		_ = s.SetWriteDeadline(c.progressDeadline()) // of what is under way; it fails on a connection that has failed
	})
}

// progressDeadline is when the broker must have answered, or taken, something more. It is given the timeout from when it listens.
func (c *Connection) progressDeadline() time.Time {
	return c.readyTime().Add(c.dialer.Timeout)
}

// readyTime is when the broker listens.
func (c *Connection) readyTime() time.Time {
	return time.Now().Add(max(0, c.dialer.Throttle.Remaining(c.address)))
}

// deadlineWriter bounds how long a broker takes for a part of a request, not for all of it: a slow network takes its time.
type deadlineWriter struct {
	s *session
	c *Connection
}

func (w deadlineWriter) Write(b []byte) (int, error) {
	if err := w.s.SetWriteDeadline(w.c.progressDeadline()); err != nil {
		return 0, err
	}
	return w.s.Write(b)
}
