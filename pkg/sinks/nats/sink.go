package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/state"
)

// keepBuffer is the largest encoding buffer, in bytes, that is kept for the next message.
const keepBuffer = 1 << 20

// Sink delivers to one stream. It is safe for concurrent use as [sinks.Sink] says.
type Sink struct {
	cfg     Config
	format  format.Format
	log     *slog.Logger
	subject *sinks.Template
	pattern string   // wildcard subject that covers the template
	routed  []string // those that cover what routes name

	lanes   lanes
	buffers sync.Pool // *[]byte, for encoded changes
	absence connection.Absence

	ordered  ordered
	progress progress
	fencing  atomic.Bool            // Fence was called: a stream that is made has a place for the fence
	tenure   atomic.Pointer[tenure] // since Fence has succeeded
	flying   atomic.Int64           // messages on their way by ID
	omitted  atomic.Uint64          // control records that a bucket has no place for
	expiring atomic.Bool            // the stream takes messages that expire (AllowMsgTTL)

	warned    sync.Once
	verified  atomic.Bool   // the stream was looked up and nothing has spoken against it since
	verifying chan struct{} // capacity 1; held by who looks the stream up

	mu        sync.Mutex
	link      *connection.Link               // nil before the first use
	ahead     map[sinks.Lane]map[uint64]bool // see takeAhead
	cautions  map[string]string              // by what they are about
	snapshots map[string]uint64              // where a bucket ended when the snapshots began that have not ended
}

var _ interface {
	sinks.Router
	sinks.Repartitioner
	sinks.Concurrent
	sinks.Batched
	sinks.Cautious
	sinks.Omitting
	sinks.Pinger
	sinks.Stateful
	sinks.Fenced
	sinks.StateKeeper
} = (*Sink)(nil)

// New makes a sink that writes changes in the format f. It reads no file, dials nothing and starts nothing: the first use
// does. Its errors are those of [Config.Validate].
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
		lanes: lanes{number: cfg.Lanes}, buffers: sync.Pool{New: func() any { return new([]byte) }},
		verifying: make(chan struct{}, 1), ahead: map[sinks.Lane]map[uint64]bool{}, cautions: map[string]string{},
		snapshots: map[string]uint64{},
	}
	for _, text := range cfg.Routed {
		t, err := sinks.ParseTemplate(text)
		if err != nil {
			return nil, at("subject", err)
		}
		s.routed = append(s.routed, pattern(t))
	}
	s.ordered.life, s.ordered.epoch = newName(), newName()
	s.verified.Store(cfg.Mode == modeCore) // there is no stream
	return s, nil
}

// Concurrency is how many lanes are worth publishing at once, while there are many.
func (s *Sink) Concurrency() int { return concurrency }

// BatchLimits is what is on its way at once.
func (s *Sink) BatchLimits() (messages int, bytes int64) { return maxBatch, s.cfg.MaxInFlightBytes }

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

// Publish sends the messages in the way that the stream allows, and returns when they are acknowledged.
func (s *Sink) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	if !s.lanes.has(lane) {
		return 0, fmt.Errorf("lane %q is not one of this sink, which has %d lanes", lane, s.cfg.Lanes)
	}
	if len(batch) == 0 {
		return 0, nil
	}
	l, err := s.ready(ctx)
	if err != nil {
		return 0, err
	}
	t := s.tenure.Load()
	if t != nil {
		if err := s.admit(ctx, l, t, lane); err != nil {
			return 0, err
		}
	}
	publish := s.send
	if s.cfg.Repair {
		publish = s.publishAndRepair
	}
	n, err := publish(ctx, l, lane, batch)
	if t != nil {
		t.published(lane, s.reached(lane), err)
	}
	for i := range batch[:n] {
		if s.omits(batch[i].Change) {
			s.omitted.Add(1)
		}
	}
	var denied *connection.DeniedError
	if lane == whole && errors.As(err, &denied) && connection.ToStream(denied.Subject) && !s.cfg.Exact {
		s.lanes.deny()
	}
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, connection.ErrUnanswered) {
		s.verified.Store(false) // the stream may be gone, or edited: look it up again, or create it again
	}
	return n, err
}

// send chooses the way: in batches if the stream takes them and nobody else writes to it. Dead letters are beside the order.
// What may have been sent by ID is sent by ID again, since nothing else tells what is stored of it.
func (s *Sink) send(ctx context.Context, l *connection.Link, lane sinks.Lane, batch []sinks.Message) (n int, err error) {
	switch {
	case s.cfg.Mode == modeCore:
		return s.fire(ctx, l, batch)
	case batch[0].Change.DeadLetter != nil:
		return s.byID(ctx, l, lane, batch)
	case lane == whole && s.ordered.possible.Load() && (s.cfg.Exact || !s.progress.sent(batch[0].Offset)):
		if n, err = s.inOrder(ctx, l, batch); n == len(batch) || err != nil {
			return n, err
		}
		batch = batch[n:] // another writer was found just now
	}
	if s.cfg.Exact {
		return n, s.inexact()
	}
	s.ordered.beside.Store(true)
	before := s.settled(batch, 0) // in batches, by this process or the one before
	if batch = batch[before:]; len(batch) == 0 {
		return n + before, nil
	}
	more, err := s.byID(ctx, l, lane, batch)
	if errors.As(err, new(*sinks.LostError)) {
		s.ordered.forgetEnd()
	}
	return n + before + more, err
}

// inexact says why changes that are to be there exactly once cannot be published.
func (s *Sink) inexact() error {
	s.verified.Store(false) // somebody may edit the stream
	why := "it does not take batches; set allow_batched on it, which needs nats-server 2.14 or later"
	if writers := s.cautioned("writers"); writers != "" {
		why = writers
	}
	return &sinks.UnavailableError{Reason: fmt.Sprintf("nats.exact cannot be kept with stream %q: %s", s.cfg.Stream, why)}
}

// fill makes msg the message of m. recycle takes back what it returns.
func (s *Sink) fill(msg *message, m sinks.Message) *[]byte {
	c := m.Change
	msg.scratch = s.appendSubject(msg.scratch[:0], m)
	msg.Subject = string(msg.scratch)
	msg.describe(c)
	buffer := s.buffers.Get().(*[]byte)
	msg.Data = (*buffer)[:0]
	if s.cfg.Mode != modeKV || !msg.mark(c, s.expiring.Load()) {
		msg.Data = s.format.AppendValue(msg.Data, c)
	}
	return buffer
}

// appendSubject appends the subject of a message.
func (s *Sink) appendSubject(dst []byte, m sinks.Message) []byte {
	subject := s.subject
	if m.Topic != nil {
		subject = m.Topic
	}
	return subject.Append(dst, m.Change, AppendToken)
}

// recycle keeps the buffer of a message that is on its way for the next one.
func (s *Sink) recycle(msg *message, buffer *[]byte) {
	if *buffer = msg.Data; cap(msg.Data) <= keepBuffer {
		s.buffers.Put(buffer)
	}
	msg.Data = nil
}

// caution notes how the stream may lose changes, or is used in a lesser way, and logs it when it is new; "" takes it back.
func (s *Sink) caution(about, text string) {
	s.mu.Lock()
	known := s.cautions[about] == text
	s.cautions[about] = text
	s.mu.Unlock()
	if !known && text != "" {
		s.log.Warn("NATS stream is not as it should be", "stream", s.cfg.Stream, "reason", text)
	}
}

func (s *Sink) cautioned(about string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cautions[about]
}

// Cautions is [sinks.Cautious.Cautions].
func (s *Sink) Cautions() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, about := range slices.Sorted(maps.Keys(s.cautions)) {
		if text := s.cautions[about]; text != "" {
			all = append(all, text)
		}
	}
	return all
}

// ready returns a connection that stands, and has the stream looked up once. It waits for both no longer than
// ackTimeout, so that the first call after an outage goes through when the server is back, and not some time later.
func (s *Sink) ready(ctx context.Context) (*connection.Link, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l, err := s.reach(ctx)
	if err != nil {
		return nil, err
	}
	if s.verified.Load() {
		return l, nil
	}
	bounded, cancel := context.WithTimeout(ctx, s.cfg.AckTimeout)
	defer cancel()
	if err := s.verify(bounded, l); err != nil {
		if ctx.Err() == nil && bounded.Err() != nil {
			err = fmt.Errorf("JetStream does not answer about stream %q within %v", s.cfg.Stream, s.cfg.AckTimeout)
		}
		return nil, err
	}
	return l, nil
}

// OpenState is [sinks.StateKeeper.OpenState].
func (s *Sink) OpenState(name string, contents func(part, parts int) []sinks.StateEntry) (sinks.StateStore, error) {
	if i := strings.IndexFunc(name, func(r rune) bool { return r > 0x7f || !plain(byte(r)) }); name == "" || i >= 0 {
		return nil, fmt.Errorf("the state's name %q cannot be that of a stream: letters, digits, _ and - only", name)
	}
	if name == s.cfg.Stream {
		return nil, fmt.Errorf("the state needs a stream of its own, and %q is that of the changes", name)
	}
	return state.Open(state.Options{Name: name, Replicas: s.cfg.Create.Replicas, Like: s.cfg.Stream, Log: s.log, Reach: s.reach, Contents: contents}), nil
}

// reach returns a connection that stands. It waits no longer than ackTimeout.
func (s *Sink) reach(ctx context.Context) (*connection.Link, error) {
	l := s.current()
	return l, l.Stands(ctx)
}

// current returns the link, a new one if there is none or the old one cannot come back.
func (s *Sink) current() *connection.Link {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == nil || s.link.Dead() {
		s.link = s.connect()
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
	if err := l.Close(ctx); err != nil {
		return fmt.Errorf("close the connection to NATS: %w", err)
	}
	return nil
}
