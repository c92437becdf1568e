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

// maxKeptBuffer is the largest encoding buffer, in bytes, that is kept for the next message.
const maxKeptBuffer = 1 << 20

// Sink delivers to one stream. It is safe for concurrent use as [sinks.Sink] says.
type Sink struct {
	cfg            Config
	format         format.Format
	log            *slog.Logger
	subject        *sinks.Template
	pattern        string   // wildcard subject that covers the template
	routedPatterns []string // those that cover what routes name

	lanes   laneLayout
	buffers sync.Pool // *[]byte, for encoded changes
	outage  connection.Outage

	streamEnd  streamEnd
	progress   idProgress
	fenced     atomic.Bool          // Fence was called: a stream that is made has a place for the fence
	term       atomic.Pointer[term] // since Fence has succeeded
	inFlight   atomic.Int64         // messages on their way by ID
	omitted    atomic.Uint64        // control records that a bucket has no place for
	acceptsTTL atomic.Bool          // the stream takes messages that expire (AllowMsgTTL)

	coreWarning sync.Once
	verified    atomic.Bool   // the stream was looked up and nothing has spoken against it since
	verifyLock  chan struct{} // capacity 1; held by who looks the stream up

	mu             sync.Mutex
	link           *connection.Link               // nil before the first use
	ackedAhead     map[sinks.Lane]map[uint64]bool // see takeAckedAhead
	warnings       map[string]string              // by what they are about
	snapshotStarts map[string]uint64              // where a bucket ended when the snapshots began that have not ended
}

var _ interface {
	sinks.Router
	sinks.Repartitioner
	sinks.Concurrent
	sinks.Batched
	sinks.Warner
	sinks.RecordOmitter
	sinks.Pinger
	sinks.Stateful
	sinks.Fenced
	sinks.StateOpener
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
		return nil, atPath("subject", err)
	}
	s := &Sink{
		cfg: cfg, format: f, log: log, subject: subject, pattern: subjectPattern(subject),
		lanes: laneLayout{count: cfg.Lanes}, buffers: sync.Pool{New: func() any { return new([]byte) }},
		verifyLock: make(chan struct{}, 1), ackedAhead: map[sinks.Lane]map[uint64]bool{}, warnings: map[string]string{},
		snapshotStarts: map[string]uint64{},
	}
	for _, text := range cfg.Routed {
		t, err := sinks.ParseTemplate(text)
		if err != nil {
			return nil, atPath("subject", err)
		}
		s.routedPatterns = append(s.routedPatterns, subjectPattern(t))
	}
	s.streamEnd.batchPrefix, s.streamEnd.epoch = randomName(), randomName()
	s.verified.Store(cfg.Mode == modeCore) // there is no stream
	return s, nil
}

// Concurrency is how many lanes are worth publishing at once, while there are many.
func (s *Sink) Concurrency() int { return maxConcurrentLanes }

// BatchLimits is what is on its way at once.
func (s *Sink) BatchLimits() (messages int, bytes int64) { return maxBatch, s.cfg.MaxInFlightBytes }

// OmittedRecords counts the control records, such as gaps, that had no place in a bucket (mode kv).
func (s *Sink) OmittedRecords() uint64 { return s.omitted.Load() }

// Ping waits for a connection, no longer than ackTimeout, and the first time looks the stream up, or creates it.
func (s *Sink) Ping(ctx context.Context) error {
	s.coreWarning.Do(func() {
		if s.cfg.Mode == modeCore {
			s.log.Warn("NATS in mode core keeps nothing: what is sent while nobody listens is lost, and counts as delivered; use mode jetstream to keep it")
		}
	})
	_, err := s.verifiedLink(ctx)
	return err
}

// Publish sends the messages in the way that the stream allows, and returns when they are acknowledged.
func (s *Sink) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	if !s.lanes.containsLane(lane) {
		return 0, fmt.Errorf("lane %q is not one of this sink, which has %d lanes", lane, s.cfg.Lanes)
	}
	if len(batch) == 0 {
		return 0, nil
	}
	l, err := s.verifiedLink(ctx)
	if err != nil {
		return 0, err
	}
	t := s.term.Load()
	if t != nil {
		if err := s.admitPublish(ctx, l, t, lane); err != nil {
			return 0, err
		}
	}
	publish := s.publishByMode
	if s.cfg.Repair {
		publish = s.publishAndRepair
	}
	n, err := publish(ctx, l, lane, batch)
	if t != nil {
		t.recordPublish(lane, s.ackedSequence(lane), err)
	}
	for i := range batch[:n] {
		if s.omitsChange(batch[i].Change) {
			s.omitted.Add(1)
		}
	}
	var denied *connection.DeniedError
	if lane == singleLane && errors.As(err, &denied) && connection.IsStreamSubject(denied.Subject) && !s.cfg.Exact {
		s.lanes.requestSplit()
	}
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, connection.ErrUnanswered) {
		s.verified.Store(false) // the stream may be gone, or edited: look it up again, or create it again
	}
	return n, err
}

// publishByMode chooses the way: in batches if the stream takes them and nobody else writes to it. Dead letters are beside the order.
// What may have been sent by ID is sent by ID again, since nothing else tells what is stored of it.
func (s *Sink) publishByMode(ctx context.Context, l *connection.Link, lane sinks.Lane, batch []sinks.Message) (n int, err error) {
	switch {
	case s.cfg.Mode == modeCore:
		return s.publishCore(ctx, l, batch)
	case batch[0].Change.DeadLetter != nil:
		return s.publishByID(ctx, l, lane, batch)
	case lane == singleLane && s.streamEnd.batchesPossible.Load() && (s.cfg.Exact || !s.progress.mayHaveSent(batch[0].Offset)):
		if n, err = s.publishInBatches(ctx, l, batch); n == len(batch) || err != nil {
			return n, err
		}
		batch = batch[n:] // another writer was found just now
	}
	if s.cfg.Exact {
		return n, s.exactUnavailable()
	}
	s.streamEnd.wroteByID.Store(true)
	before := s.countStored(batch, 0) // in batches, by this process or the one before
	if batch = batch[before:]; len(batch) == 0 {
		return n + before, nil
	}
	more, err := s.publishByID(ctx, l, lane, batch)
	if errors.As(err, new(*sinks.LostError)) {
		s.streamEnd.invalidateEnd()
	}
	return n + before + more, err
}

// exactUnavailable says why changes that are to be there exactly once cannot be published.
func (s *Sink) exactUnavailable() error {
	s.verified.Store(false) // somebody may edit the stream
	why := "it does not take batches; set allow_batched on it, which needs nats-server 2.14 or later"
	if writers := s.warningAbout("writers"); writers != "" {
		why = writers
	}
	return &sinks.UnavailableError{Reason: fmt.Sprintf("nats.exact cannot be kept with stream %q: %s", s.cfg.Stream, why)}
}

// encodeChange makes msg the message of m. recycle takes back what it returns.
func (s *Sink) encodeChange(msg *message, m sinks.Message) *[]byte {
	c := m.Change
	msg.scratch = s.appendSubject(msg.scratch[:0], m)
	msg.Subject = string(msg.scratch)
	msg.setFormatHeaders(c)
	buffer := s.buffers.Get().(*[]byte)
	msg.Data = (*buffer)[:0]
	if s.cfg.Mode != modeKV || !msg.setPurgeMarker(c, s.acceptsTTL.Load()) {
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
	return subject.AppendName(dst, m.Change, AppendToken)
}

// releaseBuffer keeps the buffer of a message that is on its way for the next one.
func (s *Sink) releaseBuffer(msg *message, buffer *[]byte) {
	if *buffer = msg.Data; cap(msg.Data) <= maxKeptBuffer {
		s.buffers.Put(buffer)
	}
	msg.Data = nil
}

// updateWarning notes how the stream may lose changes, or is used in a lesser way, and logs it when it is new; "" takes it back.
func (s *Sink) updateWarning(about, text string) {
	s.mu.Lock()
	known := s.warnings[about] == text
	s.warnings[about] = text
	s.mu.Unlock()
	if !known && text != "" {
		s.log.Warn("NATS stream is not as it should be", "stream", s.cfg.Stream, "reason", text)
	}
}

func (s *Sink) warningAbout(about string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.warnings[about]
}

// Warnings is [sinks.Cautious.Warnings].
func (s *Sink) Warnings() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, about := range slices.Sorted(maps.Keys(s.warnings)) {
		if text := s.warnings[about]; text != "" {
			all = append(all, text)
		}
	}
	return all
}

// verifiedLink returns a connection that stands, and has the stream looked up once. It waits for both no longer than
// ackTimeout, so that the first call after an outage goes through when the server is back, and not some time later.
func (s *Sink) verifiedLink(ctx context.Context) (*connection.Link, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l, err := s.connectedLink(ctx)
	if err != nil {
		return nil, err
	}
	if s.verified.Load() {
		return l, nil
	}
	bounded, cancel := context.WithTimeout(ctx, s.cfg.AckTimeout)
	defer cancel()
	if err := s.ensureVerified(bounded, l); err != nil {
		if ctx.Err() == nil && bounded.Err() != nil {
			err = fmt.Errorf("JetStream does not answer about stream %q within %v", s.cfg.Stream, s.cfg.AckTimeout)
		}
		return nil, err
	}
	return l, nil
}

// OpenState is [sinks.StateKeeper.OpenState].
func (s *Sink) OpenState(name string, contents func(part, parts int) []sinks.StateEntry) (sinks.StateStore, error) {
	if i := strings.IndexFunc(name, func(r rune) bool { return r > 0x7f || !isPlainByte(byte(r)) }); name == "" || i >= 0 {
		return nil, fmt.Errorf("the state's name %q cannot be that of a stream: letters, digits, _ and - only", name)
	}
	if name == s.cfg.Stream {
		return nil, fmt.Errorf("the state needs a stream of its own, and %q is that of the changes", name)
	}
	return state.Open(state.Options{Name: name, Replicas: s.cfg.Create.Replicas, ReplicasOf: s.cfg.Stream, Log: s.log, Connect: s.connectedLink, Contents: contents}), nil
}

// connectedLink returns a connection that stands. It waits no longer than ackTimeout.
func (s *Sink) connectedLink(ctx context.Context) (*connection.Link, error) {
	l := s.currentLink()
	return l, l.WaitConnected(ctx)
}

// currentLink returns the link, a new one if there is none or the old one cannot come back.
func (s *Sink) currentLink() *connection.Link {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == nil || s.link.IsDead() {
		s.link = s.dialLink()
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
