package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// maxConcurrency is where more lanes at once stopped to pay off on one connection.
	maxConcurrency = 256
	// awayPause is the time between two calls that wait for the connection, or for a stream's leader. They cost next to
	// nothing, and one of them should be there when NATS is back, however long it was away.
	awayPause = 250 * time.Millisecond
	// keepBuffer is the largest encoding buffer, in bytes, that is kept for the next message.
	keepBuffer = 1 << 20
)

// Sink delivers to one stream. It is safe for concurrent use as [sinks.Sink] says.
type Sink struct {
	cfg     Config
	format  format.Format
	log     *slog.Logger
	subject *sinks.Template
	pattern string   // wildcard subject that covers the template
	routed  []string // those that cover what routes name

	names    []sinks.Lane       // by number
	numbers  map[sinks.Lane]int // the way back
	waiters  []*waiter          // one a lane, and one for questions about the stream
	ledgers  []*ledger          // one a lane, when exact
	inFlight *budget
	buffers  sync.Pool // *[]byte, for encoded changes
	absence  absence

	progress progress
	omitted  atomic.Uint64 // control records that a bucket has no place for
	expiring atomic.Bool   // the stream takes messages that expire (AllowMsgTTL)

	warned    sync.Once
	verified  atomic.Bool   // the stream was looked up and nothing has spoken against it since
	verifying chan struct{} // capacity 1; held by who looks the stream up

	mu   sync.Mutex
	link *link // nil before the first use
}

var _ interface {
	sinks.Router
	sinks.Concurrent
	sinks.Omitting
	sinks.Pinger
	sinks.Stateful
} = (*Sink)(nil)

// New makes a sink that writes changes in the format f. It reads no file, dials nothing and starts nothing: the first use does. Its errors are those of
// [Config.Validate].
func New(cfg Config, f format.Format, log *slog.Logger) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.SetDefaults()
	cfg.Subject, cfg.Stream = cfg.SubjectTemplate(), cfg.StreamName()
	subject, err := sinks.ParseTemplate(cfg.Subject)
	if err != nil {
		return nil, at("subject", err)
	}
	s := &Sink{
		cfg: cfg, format: f, log: log, subject: subject, pattern: pattern(subject),
		numbers: make(map[sinks.Lane]int, cfg.Lanes), inFlight: newBudget(cfg.MaxInFlightBytes),
		buffers:   sync.Pool{New: func() any { return new([]byte) }},
		verifying: make(chan struct{}, 1),
	}
	for _, text := range cfg.Routed {
		t, err := sinks.ParseTemplate(text)
		if err != nil {
			return nil, at("subject", err)
		}
		s.routed = append(s.routed, pattern(t))
	}
	s.verified.Store(cfg.Mode == modeCore) // there is no stream
	s.progress.lanes = uint64(cfg.Lanes)
	for i := range cfg.Lanes {
		name := sinks.Lane(fmt.Sprintf("%d/%d", i, cfg.Lanes))
		s.names, s.numbers[name] = append(s.names, name), i
	}
	if cfg.Exact {
		s.ledgers = newLedgers(cfg.Lanes)
	}
	for range cfg.Lanes + 1 {
		s.waiters = append(s.waiters, newWaiter())
	}
	return s, nil
}

// Concurrency is how many Publish calls should be allowed to run at once. Each waits for one acknowledgement at a time,
// so that is the number of messages in flight.
func (s *Sink) Concurrency() int { return min(s.cfg.Lanes, maxConcurrency) }

// Omitted counts the control records, such as gaps, that had no place in a bucket (mode kv).
func (s *Sink) Omitted() uint64 { return s.omitted.Load() }

// Ping waits for a connection, no longer than ackTimeout, and the first time looks the stream up, or creates it.
func (s *Sink) Ping(ctx context.Context) error {
	s.warned.Do(func() {
		if s.cfg.Mode == modeCore {
			s.log.Warn("NATS in mode core keeps nothing: what is sent while nobody listens is lost, and counts as delivered; use mode jetstream to keep it")
		}
	})
	_, err := s.ready(ctx)
	return err
}

// Lane hashes the key of the object. It asks nobody and never fails.
func (s *Sink) Lane(c *event.Change) (sinks.Lane, error) {
	return s.names[sinks.KeyHash(c)%uint64(len(s.names))], nil
}

// LaneTo is Lane: all subjects share the lanes.
func (s *Sink) LaneTo(c *event.Change, _ *sinks.Template) (sinks.Lane, error) {
	return s.Lane(c)
}

// Publish sends one message after the other, each when the one before is acknowledged. // I3
func (s *Sink) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	number, known := s.numbers[lane]
	if !known {
		return 0, fmt.Errorf("lane %q is not one of this sink, which has %d lanes", lane, len(s.names))
	}
	if len(batch) == 0 {
		return 0, nil
	}
	l, err := s.ready(ctx)
	if err != nil {
		return 0, err
	}
	if s.cfg.Mode == modeCore {
		return s.fire(ctx, l, number, batch)
	}
	msg := newMessage(s.cfg, s.format)
	for i := range batch {
		if s.cfg.Mode == modeKV && batch[i].Change.Type.Control() {
			s.omitted.Add(1)
			continue
		}
		err := s.publish(ctx, l, number, msg, batch[i])
		if errors.Is(err, nats.ErrNoResponders) {
			s.verified.Store(false) // the stream may be gone: look it up again, or create it again
		}
		if err != nil {
			return i, err
		}
	}
	return len(batch), nil
}

// publish sends one change and waits for its acknowledgement.
func (s *Sink) publish(ctx context.Context, l *link, number int, msg *message, m sinks.Message) error {
	c := m.Change
	bytes, err := s.inFlight.take(ctx, int64(c.Size()))
	if err != nil {
		return err
	}
	defer s.inFlight.give(bytes)

	buffer := s.fill(msg, m)
	defer s.recycle(msg, buffer)
	msg.Header[nats.MsgIdHdr][0] = s.progress.id(m)
	if s.cfg.Exact {
		err = s.exactly(ctx, l, number, msg.Msg, c)
	} else {
		_, err = s.attempt(ctx, l, number, msg.Msg)
	}
	return err
}

// fill makes msg the message of m. recycle takes back what it returns.
func (s *Sink) fill(msg *message, m sinks.Message) *[]byte {
	var room [512]byte
	c, subject := m.Change, s.subject
	if m.Topic != nil {
		subject = m.Topic
	}
	msg.Subject = string(subject.Append(room[:0], c, AppendToken))
	msg.setHeaders(c)
	buffer := s.buffers.Get().(*[]byte)
	msg.Data = (*buffer)[:0]
	if s.cfg.Mode != modeKV || !msg.mark(c, s.expiring.Load()) {
		msg.Data = s.format.AppendValue(msg.Data, c)
	}
	return buffer
}

// recycle keeps the buffer of a message that is on its way for the next one.
func (s *Sink) recycle(msg *message, buffer *[]byte) {
	if *buffer = msg.Data; cap(msg.Data) <= keepBuffer {
		s.buffers.Put(buffer)
	}
	msg.Data = nil
}

// attempt sends a message to the stream and waits for its acknowledgement.
func (s *Sink) attempt(ctx context.Context, l *link, number int, msg *nats.Msg) (receipt, error) {
	before, err := s.progress.before()
	if err != nil {
		return receipt{}, err
	}
	a, err := s.send(ctx, l, number, msg)
	if err != nil {
		return receipt{}, err
	}
	r, err := acknowledged(s.cfg.Stream, msg.Subject, a)
	if err == nil && !r.Duplicate {
		err = s.progress.acknowledged(s.cfg.Stream, before, r.Sequence)
	}
	return r, err
}

// send sends a message of waiter number i and waits for what comes back. The library has copied the message when
// it returns.
func (s *Sink) send(ctx context.Context, l *link, i int, msg *nats.Msg) (answer, error) {
	w := s.waiters[i]
	msg.Reply = l.replyTo(i, w.begin(msg.Subject))
	defer w.end()
	err := l.nc.PublishMsg(msg)
	if disconnected(err) {
		return answer{}, s.unconnected(ctx, err)
	}
	if err != nil {
		return answer{}, unsent(err, l.nc, len(msg.Data))
	}
	timeout := time.NewTimer(s.cfg.AckTimeout)
	defer timeout.Stop()
	select {
	case a := <-w.answers:
		return a, a.err
	case <-timeout.C:
		return answer{}, fmt.Errorf("no answer for %q within %v", msg.Subject, s.cfg.AckTimeout)
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
}

// ready returns a connection that stands, and has the stream looked up once. It waits for both no longer than
// ackTimeout, so that the first call after an outage goes through when the server is back, and not some time later.
func (s *Sink) ready(ctx context.Context) (*link, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l := s.current()
	bounded, cancel := context.WithTimeout(ctx, s.cfg.AckTimeout)
	defer cancel()
	if err := l.await(bounded); err != nil {
		return nil, s.unconnected(ctx, err)
	}
	if s.verified.Load() {
		return l, nil
	}
	if err := s.verify(bounded, l); err != nil {
		if ctx.Err() == nil && bounded.Err() != nil {
			err = fmt.Errorf("JetStream does not answer about stream %q within %v", s.cfg.Stream, s.cfg.AckTimeout)
		}
		return nil, err
	}
	return l, nil
}

// unconnected says why there is no connection, unless the caller does not want to know any more.
func (s *Sink) unconnected(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	reason := s.absence.why()
	if reason == "" { // it came back in this very moment
		reason = err.Error()
	}
	return &sinks.UnavailableError{Reason: "not connected to NATS: " + reason, After: awayPause, Err: err}
}

// current returns the link, a new one if there is none or the old one cannot come back.
func (s *Sink) current() *link {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == nil || s.link.dead() {
		s.link = dial(s.cfg, &s.absence, s.waiters)
	}
	return s.link
}

// Close ends the connection. What was in flight is published again by a later process.
func (s *Sink) Close(ctx context.Context) error {
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l == nil {
		return nil
	}
	if err := l.close(ctx); err != nil {
		return fmt.Errorf("close the connection to NATS: %w", err)
	}
	return nil
}
