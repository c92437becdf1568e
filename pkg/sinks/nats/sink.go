package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/state"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// Sink delivers to one stream or one bucket. It chooses how a Publish is sent and delegates the
// rest to parts with state and locks of their own; DESIGN.md describes them. It is safe for concurrent use as far as
// [sinks.Sink] requires.
type Sink struct {
	laneLayout

	cfg       Config
	log       *slog.Logger
	connector connector
	warnings  *warnings
	features  *streamFeatures
	verifier  *streamVerifier
	encoder   *encoder
	end       *streamEnd
	batches   *batchPublisher
	ids       *idPublisher
	fence     *fence

	omitted atomic.Uint64 // control records that a bucket cannot hold
	limit   atomic.Pointer[sizeLimit]
}

var _ interface {
	sinks.Router
	sinks.Repartitioner
	sinks.Concurrent
	sinks.Batched
	sinks.ConditionReporter
	sinks.Pinger
	sinks.SizeAnnouncer
	sinks.Stateful
	sinks.Fenced
	sinks.StateOpener
} = (*Sink)(nil)

// New returns a sink that writes changes in the format f. It reads no file, dials nothing and starts no goroutine; the first
// use does. Its errors are those of [Config.Validate].
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
	patterns := []string{subjectPattern(subject)}
	for _, text := range cfg.Routed {
		t, err := sinks.ParseTemplate(text)
		if err != nil {
			return nil, atPath("subject", err)
		}
		patterns = append(patterns, subjectPattern(t))
	}
	return buildSink(cfg, f, subject, patterns, log), nil
}

// buildSink connects the parts of a sink.
func buildSink(cfg Config, f format.Format, subject *sinks.Template, patterns []string, log *slog.Logger) *Sink {
	w := &warnings{log: log.With("stream", cfg.Stream), topics: map[string]*condition.Condition{}}
	features := &streamFeatures{stream: cfg.Stream, warnings: w}
	e := &encoder{cfg: cfg, format: f, subject: subject, features: features,
		buffers: sync.Pool{New: func() any { return new([]byte) }}}
	end := &streamEnd{epoch: randomName()}
	ids := &idPublisher{cfg: cfg, encoder: e}
	closer := &batchCloser{stream: cfg.Stream, pattern: patterns[0], ackTimeout: cfg.AckTimeout}
	fence := &fence{cfg: cfg, features: features, warnings: w, closer: closer, end: end, progress: &ids.progress}
	batches := &batchPublisher{cfg: cfg, encoder: e, features: features, closer: closer, end: end, fence: fence,
		prefix: randomName()}
	verifier := &streamVerifier{cfg: cfg, log: log, patterns: patterns, features: features, warnings: w, end: end,
		lock: make(chan struct{}, 1), afterCheck: batches.readEndOfBatches}
	return &Sink{laneLayout: laneLayout{count: cfg.Lanes}, cfg: cfg, log: log, connector: connector{cfg: cfg}, warnings: w,
		features: features, verifier: verifier, encoder: e, end: end, batches: batches, ids: ids, fence: fence}
}

// BatchLimits implements [sinks.Batched]: as many messages and bytes as may be in flight.
func (s *Sink) BatchLimits() (messages int, bytes int64) { return maxBatch, s.cfg.MaxInFlightBytes }

// OmittedRecords returns how many control records, such as gaps, were accepted and left out: a bucket cannot hold them.
func (s *Sink) OmittedRecords() uint64 { return s.omitted.Load() }

// Conditions implements [sinks.ConditionReporter].
func (s *Sink) Conditions() []condition.Status { return s.warnings.conditions() }

// Ping implements [sinks.Pinger]. It waits for a connection no longer than ackTimeout, and looks the stream up, or creates
// it, if that was not done yet.
func (s *Sink) Ping(ctx context.Context) error {
	_, err := s.verifiedLink(ctx)
	return err
}

// SizeLimit implements [sinks.SizeAnnouncer] with max_msg_size of the stream and max_payload of the server.
func (s *Sink) SizeLimit(ctx context.Context, _ sinks.Lane) (check func(sinks.Message) error, err error) {
	limit := s.limit.Load()
	if limit == nil || time.Since(limit.readAt) >= limitAge {
		l, err := s.connector.connectedLink(ctx)
		if err != nil {
			return nil, err
		}
		found, err := s.cfg.streamClient(l).RequireInfo(ctx)
		if err != nil {
			return nil, err
		}
		limit = &sizeLimit{int(l.Conn().MaxPayload()), time.Now()}
		if most := int(found.Config.MaxMsgSize); most > 0 {
			limit.bytes = min(limit.bytes, most)
		}
		s.limit.Store(limit)
	}
	return func(m sinks.Message) error {
		if m.IsClearlyWithin(limit.bytes) {
			return nil
		}
		msg := s.encoder.newMessage()
		buffer := s.encoder.encodeChange(msg, m)
		defer s.encoder.releaseBuffer(msg, buffer)
		if size := msg.Size() - len(msg.Subject) - len(msg.Reply); size > limit.bytes {
			return &sinks.RejectedError{TooLarge: true,
				Reason: fmt.Sprintf("%d bytes exceed max_payload of the server or max_msg_size of stream %q, %d", size, s.cfg.Stream, limit.bytes)}
		}
		return nil
	}, nil
}

// limitAge is how long a limit counts after it was read: a stream may be edited.
const limitAge = 10 * time.Second

// sizeLimit is how many bytes a message may have.
type sizeLimit struct {
	bytes  int
	readAt time.Time
}

// Publish implements [sinks.Sink]. It sends the messages in the way that the stream allows, and returns when they are
// acknowledged.
func (s *Sink) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	if !s.containsLane(lane) {
		return 0, fmt.Errorf("lane %q does not belong to this sink, which has %d lanes", lane, s.cfg.Lanes)
	}
	if len(batch) == 0 {
		return 0, nil
	}
	l, err := s.verifiedLink(ctx)
	if err != nil {
		return 0, err
	}
	t := s.fence.current.Load()
	if t != nil {
		if err := s.fence.admitPublish(ctx, l, t, lane); err != nil {
			return 0, err
		}
	}
	n, err := s.publishHeld(ctx, l, lane, batch)
	if t != nil && err == nil {
		t.recordLane(s.fence.recordedLane(t, lane), sinks.LanePosition(s.fence.ackedSequence(lane))+1)
	}
	return n, s.handlePublishError(ctx, l, lane, err)
}

// publishHeld publishes the changes that the destination can hold, and accepts the others in their turn.
func (s *Sink) publishHeld(ctx context.Context, l *connection.Link, lane sinks.Lane, batch []sinks.Message) (n int, err error) {
	if s.cfg.Mode != modeKV {
		return s.publishOrdered(ctx, l, lane, batch)
	}
	var held []sinks.Message
	var places []int // of these in batch
	for i, m := range batch {
		if !s.encoder.omitsChange(m.Change) {
			held, places = append(held, m), append(places, i)
		}
	}
	if places = append(places, len(batch)); len(held) > 0 {
		n, err = s.publishOrdered(ctx, l, lane, held)
	}
	s.omitted.Add(uint64(places[n] - n))
	return places[n], err
}

// handlePublishError names what the user may not publish to, splits the single lane if a subject was refused, and has the
// stream looked up again if it does not answer: it may have been edited or deleted, which the returned error then says.
func (s *Sink) handlePublishError(ctx context.Context, l *connection.Link, lane sinks.Lane, err error) error {
	var denied *connection.DeniedError
	if errors.As(err, &denied) && connection.IsStreamSubject(denied.Subject) {
		err = &connection.DeniedError{Subject: denied.Subject, Needs: s.verifier.patternOf(denied.Subject), Err: denied}
		if lane == singleLane {
			s.requestSplit()
		}
	}
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, connection.ErrUnanswered) {
		s.features.invalidate()
	}
	if errors.Is(err, nats.ErrNoResponders) {
		return cmp.Or(s.verifier.ensureVerified(ctx, l), err)
	}
	return err
}

// publishOrdered sends changes in batches if the stream takes them and has no other writer, and by message ID those that are
// left. Dead letters have no order.
func (s *Sink) publishOrdered(ctx context.Context, l *connection.Link, lane sinks.Lane, batch []sinks.Message) (n int, err error) {
	if err := s.batches.compareTerm(ctx, l); err != nil {
		return 0, err
	}
	if batch[0].Change.DeadLetter != nil {
		return s.ids.publish(ctx, l, lane, batch)
	}
	// Only the ID reveals which of the changes are stored that may have been sent by ID.
	if s.fence.usesBatches(lane) && batch[0].Offset > s.ids.progress.attemptedThrough.Load() {
		if n, err = s.batches.publish(ctx, l, batch); n == len(batch) || err != nil {
			return n, err
		}
	}
	more, err := s.publishByID(ctx, l, lane, batch[n:])
	return n + more, err
}

// publishByID sends the changes by message ID that no batch has stored, of this process or of the one before.
func (s *Sink) publishByID(ctx context.Context, l *connection.Link, lane sinks.Lane, batch []sinks.Message) (int, error) {
	if last, _, known := s.end.currentEnd(); !s.end.wroteByID.Swap(true) && known {
		s.ids.progress.newest.Store(last)
	}
	stored := s.batches.countStored(batch, 0)
	n, err := s.ids.publish(ctx, l, lane, batch[stored:])
	if errors.As(err, new(*sinks.LostError)) {
		s.end.invalidate()
		found, again := s.cfg.streamClient(l).RequireInfo(ctx)
		if again == nil { // of another stream nothing is left, whatever the sequences are
			s.end.recordSighting(found)
			again = s.batches.compareTerm(ctx, l)
		}
		if !errors.As(again, new(*connection.DeniedError)) {
			err = cmp.Or(again, err)
		}
	}
	return stored + n, err
}

// verifiedLink returns a connected link, and makes sure that the stream was looked up. It waits for each no longer than
// ackTimeout, so that a call that waits out an outage succeeds as soon as the server is back.
func (s *Sink) verifiedLink(ctx context.Context) (*connection.Link, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l, err := s.connector.connectedLink(ctx)
	if err != nil {
		return nil, err
	}
	return l, s.verifier.ensureVerified(ctx, l)
}

// Fence implements [sinks.Fenced].
func (s *Sink) Fence(ctx context.Context, claim sinks.Claim, lanes []sinks.Lane) (map[sinks.Lane]error, error) {
	l, err := s.verifiedLink(ctx)
	if err != nil {
		return nil, err
	}
	next := &term{claim: claim, lanes: map[sinks.Lane]sinks.LanePosition{}}
	next.owner.Store(&stream.Owner{})
	for _, lane := range lanes {
		next.lanes[lane] = 0
	}
	if err := s.fence.fenceStream(ctx, l, next); err != nil {
		return nil, err
	}
	// What an earlier term or a stored state knew about the stream is forgotten: ReadTail returns what is in it.
	s.ids.ackedAhead.Clear()
	s.batches.startTerm(next.found, next.endSequence)
	s.ids.progress.startTerm(next.endSequence)
	s.encoder.deployment.Store(&next.claim.Deployment)
	s.fence.current.Store(next)
	return nil, nil
}

// LaneProgress implements [sinks.Fenced]. Until a loss is accepted, the state keeps how far lanes had got.
func (s *Sink) LaneProgress() map[sinks.Lane]sinks.LanePosition {
	if t := s.fence.current.Load(); t != nil && !s.end.wentBack() && s.end.lostError() == nil {
		return t.laneProgress()
	}
	return nil
}

// ReadTail implements [sinks.Fenced]. All lanes are in one stream, which is read once: no lane waits alone.
func (s *Sink) ReadTail(ctx context.Context, lanes map[sinks.Lane]sinks.Tail, emitted func(sinks.Lane, sinks.Emitted) error) (
	map[sinks.Lane]error, error,
) {
	t := s.fence.current.Load()
	if t == nil {
		return nil, nil
	}
	there := maps.Clone(lanes)
	for lane, tail := range lanes {
		_, life := sinks.SplitRecordedLane(lane)
		former := life != "" && life != s.fence.life(t)
		if former {
			delete(there, lane)
		}
		if !former || strings.HasPrefix(life, s.cfg.Stream+".") { // a stream that is not used any more keeps what it has
			s.end.recordCovered(uint64(max(tail.Reached, 1))-1, former)
		}
	}
	tails, first := planTails(there, t.endSequence)
	if first > t.endSequence {
		return nil, nil
	}
	l, err := s.connector.connectedLink(ctx)
	if err != nil {
		return nil, err
	}
	return nil, readTails(ctx, s.cfg, l, t, tails, first, s.features.allowsDirect.Load(), emitted)
}

// GoneLanes implements [sinks.Fenced]. Gone are the lanes of former streams, and those that 0.9.0 has recorded without the
// life of the stream, unless they show a loss that is not accepted yet.
func (s *Sink) GoneLanes(_ context.Context, lanes []sinks.Lane) (gone []sinks.Lane) {
	t := s.fence.current.Load()
	if t == nil || s.end.wentBack() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, lane := range lanes {
		if _, life := sinks.SplitRecordedLane(lane); life != s.fence.life(t) {
			gone = append(gone, lane)
			delete(t.lanes, lane)
		}
	}
	return gone
}

// OpenState implements [sinks.StateOpener].
func (s *Sink) OpenState(name string) (sinks.StateStore, error) {
	if i := strings.IndexFunc(name, isIllegalInName); name == "" || i >= 0 {
		return nil, fmt.Errorf("the state's name %q is not valid for a stream: use letters, digits, _ and - only", name)
	}
	if name == s.cfg.Stream {
		return nil, fmt.Errorf("the state needs its own stream, and %q is the stream of the changes", name)
	}
	return state.Open(state.Options{Name: name, Replicas: s.cfg.Create.Replicas, ReplicasOf: s.cfg.Stream, Log: s.log,
		Connect: s.connector.connectedLink}), nil
}

// Close ends the connection. A later process publishes the messages in flight again.
func (s *Sink) Close(ctx context.Context) error { return s.connector.closeLink(ctx) }
