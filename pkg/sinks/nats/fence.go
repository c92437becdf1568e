package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// term is the time in which this process may publish, from Fence on.
//
// The fence is a message of a subject of its own in the stream of the changes. It says whose the stream is, and moves its
// end: the first message of each batch names the end, so that no other process begins a batch any more. What the process
// before had begun is ended first. Whoever is refused, or learns the end anew, looks at the fence before anything else.
//
// Where changes go by message ID nothing refuses a single message. There the fence is looked at before each Publish, and
// what an older process had on its way then is stored.
type term struct {
	claim        sinks.Claim
	endSequence  uint64 // the stream's last sequence when it began
	directAccess bool   // the stream allows direct access

	mu            sync.Mutex
	owner         stream.Owner // zero where the stream has no place for a fence
	deposed       error        // for good
	laneStarts    map[sinks.Lane]sinks.LanePosition
	recordedLanes map[sinks.Lane]bool
}

// ownerRecord is what this process has put into the stream; the zero value where there is no place for it.
func (t *term) ownerRecord() stream.Owner {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.owner
}

func (t *term) setOwner(owner stream.Owner) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.owner = owner
}

// markDeposed ends it: another process publishes.
func (t *term) markDeposed(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deposed = err
	return err
}

// fencePrefix begins the subjects of fences: beside what any template can give.
func (c Config) fencePrefix() string {
	if c.Mode == modeKV {
		return bucketSubject + c.Bucket + ".kubecdc.fence."
	}
	return "kubecdc.fence." + c.Stream + "."
}

// fenceSubject is where the fence of a sink is: others may publish to the same stream.
func (c Config) fenceSubject(claim sinks.Claim) string {
	subject := append(AppendToken([]byte(c.fencePrefix()), cmp.Or(claim.Group, "-")), '.')
	return string(AppendToken(subject, cmp.Or(claim.Sink, "-")))
}

// fenceRecord describes the fence, for a stream that is configured so.
func (s *Sink) fenceRecord(l *connection.Link, claim sinks.Claim) stream.Ownership {
	o := stream.Ownership{Client: s.streamClient(l), Subject: s.cfg.fenceSubject(claim), Description: "the right to publish"}
	if s.acceptsTTL.Load() {
		o.Header = nats.Header{nats.MsgTTLHdr: {"never"}}
	}
	return o
}

// Fence is [sinks.Fenced.Fence].
func (s *Sink) Fence(ctx context.Context, claim sinks.Claim, lanes []sinks.Lane) error {
	s.fenced.Store(true)
	l, err := s.verifiedLink(ctx)
	if err != nil {
		return err
	}
	next := &term{claim: claim, laneStarts: map[sinks.Lane]sinks.LanePosition{}, recordedLanes: map[sinks.Lane]bool{}}
	for _, lane := range lanes {
		next.recordedLanes[lane] = true
	}
	if s.cfg.Mode != modeCore {
		if err := s.fenceStream(ctx, l, next); err != nil {
			return err
		}
	}
	s.startTerm(next)
	return nil
}

// fenceStream turns older processes away, as far as the stream can.
func (s *Sink) fenceStream(ctx context.Context, l *connection.Link, next *term) error {
	found, err := s.streamClient(l).RequireInfo(ctx)
	if err != nil {
		return err
	}
	s.updateWarning("writers", "")
	s.recordFeatures(found.Config)
	next.directAccess, next.endSequence = found.Config.AllowDirect, found.State.LastSeq
	covered := slices.ContainsFunc(found.Config.Subjects, func(subject string) bool { return stream.Covers(subject, s.cfg.fencePrefix()+">") })
	switch batches := s.streamEnd.batchesPossible.Load(); {
	case !covered && batches:
		return &sinks.UnavailableError{Reason: fmt.Sprintf("stream %q has no place for the fence that turns older exporters away: add the "+
			"subject %q to it: nats stream edit %s --subjects %s",
			s.cfg.Stream, s.cfg.fencePrefix()+">", s.cfg.Stream, strings.Join(append(found.Config.Subjects, s.cfg.fencePrefix()+">"), ","))}
	case !covered:
		return nil
	case !batches:
		next.owner, err = s.fenceRecord(l, next.claim).Claim(ctx, next.claim, stream.Owner{})
		next.endSequence = max(next.endSequence, next.owner.Sequence)
		return err
	}
	return s.fenceOrderedStream(ctx, l, next)
}

// fenceOrderedStream ends what the process before has begun, and moves the stream's end. What had begun between the two is found,
// and ended, too.
func (s *Sink) fenceOrderedStream(ctx context.Context, l *connection.Link, next *term) error {
	ended := ""
	for range maxBatchStarts {
		found, err := s.streamClient(l).RequireInfo(ctx)
		if err != nil {
			return err
		}
		first := found.State.FirstSeq
		if ended, err = s.closeNewestBatch(ctx, l, s.cfg.fenceSubject(next.claim), first, found.State.LastSeq, ended); err != nil {
			return err
		}
		if next.owner, err = s.fenceRecord(l, next.claim).Claim(ctx, next.claim, next.owner); err != nil {
			return err
		}
		newest, err := s.newestBatchID(ctx, l, first, next.owner.Sequence-1)
		if err != nil {
			return err
		}
		if newest == "" || newest == ended {
			next.endSequence = next.owner.Sequence
			return nil
		}
	}
	return fmt.Errorf("stream %q: an older exporter begins a batch whenever its last one is ended", s.cfg.Stream)
}

// closeNewestBatch ends the newest batch between two sequences of the stream, and returns its ID. Nothing of one that is ended is
// stored any more. subject is one that the stream takes.
func (s *Sink) closeNewestBatch(ctx context.Context, l *connection.Link, subject string, first, end uint64, ended string) (string, error) {
	id, err := s.newestBatchID(ctx, l, first, end)
	if err != nil || id == "" || id == ended {
		return ended, err
	}
	return id, s.closeBatchByID(ctx, l, id, subject)
}

// newestBatchID is the ID of the newest batch of an exporter between two sequences; "" when there is none near the end.
func (s *Sink) newestBatchID(ctx context.Context, l *connection.Link, first, end uint64) (id string, err error) {
	m, err := s.streamClient(l).FindNewest(ctx, first, end, func(m stream.Message) bool { _, ours := storedOffsetOf(m); return ours })
	place, _ := storedOffsetOf(m)
	return place.batch, err
}

// startTerm forgets what an earlier one, or a stored state, has left: what is in the stream is in the tails.
func (s *Sink) startTerm(next *term) {
	s.mu.Lock()
	clear(s.ackedAhead)
	clear(s.snapshotStarts)
	s.mu.Unlock()
	s.streamEnd.restartAt(next.endSequence)
	s.progress.restartAt(next.endSequence)
	s.term.Store(next)
}

// restartAt begins a new epoch in a stream that ends there.
func (o *streamEnd) restartAt(end uint64) {
	o.wroteByID.Store(false)
	o.nextBatchSize, o.inDoubt = 0, nil
	o.mu.Lock()
	defer o.mu.Unlock()
	o.epoch, o.newestOffset, o.saveState, o.epochSaved = randomName(), 0, nil, true
	o.endKnown, o.lastSequence, o.storedThrough, o.lost = true, end, 0, nil
}

func (p *idProgress) restartAt(end uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.newest, p.attemptedThrough, p.checkpoints, p.lost, p.resendThrough, p.lossCount = end, 0, nil, nil, 0, 0
}

// checkOwnership says nil while no other process has claimed the stream, which ends there.
func (s *Sink) checkOwnership(ctx context.Context, l *connection.Link, end uint64) error {
	t := s.term.Load()
	if t == nil || t.ownerRecord().Sequence == 0 {
		return nil
	}
	o, mine := s.fenceRecord(l, t.claim), t.ownerRecord()
	found, err := o.Current(ctx)
	if err == nil && !found.SameProcess(mine) { // a server may have said so that does not lead any more
		if _, err = s.streamClient(l).RequireInfo(ctx); err == nil {
			found, err = o.Current(ctx)
		}
	}
	last, _, _ := s.streamEnd.currentEnd()
	switch {
	case err != nil:
		return err
	case found.SameProcess(mine):
		return nil
	case o.IsNewer(found, mine):
		return t.markDeposed(o.DeposedError(found, nil))
	case end >= last: // it has not gone back
		return t.markDeposed(&sinks.DeposedError{Reason: fmt.Sprintf("the fence of stream %q, subject %q, is gone: it was purged, or is older than max_age; "+
			"nobody knows who may publish until it is claimed anew", s.cfg.Stream, o.Subject)})
	}
	again, err := o.Claim(ctx, t.claim, mine) // the stream went back, or was made anew, and the fence with it
	if errors.As(err, new(*sinks.DeposedError)) {
		return t.markDeposed(err)
	}
	if err == nil {
		t.setOwner(again)
	}
	return err
}

// usesBatches says whether a lane goes to the stream in ordered batches.
func (s *Sink) usesBatches(lane sinks.Lane) bool {
	return lane == singleLane && s.streamEnd.batchesPossible.Load()
}

// ackedSequence is a sequence that no message of a lane, which is not acknowledged yet, is before.
func (s *Sink) ackedSequence(lane sinks.Lane) uint64 {
	if s.usesBatches(lane) {
		last, _, _ := s.streamEnd.currentEnd()
		return last
	}
	s.progress.mu.Lock()
	defer s.progress.mu.Unlock()
	return s.progress.newest
}

// admitPublish is called before each Publish of a tenure: it says that this process is deposed, and sees to it that the lane is
// noted.
func (s *Sink) admitPublish(ctx context.Context, l *connection.Link, t *term, lane sinks.Lane) error {
	if err := s.checkFence(ctx, l, t, lane); err != nil {
		return err
	}
	t.mu.Lock()
	noted := t.recordedLanes[lane]
	place, known := t.laneStarts[lane]
	t.mu.Unlock()
	if !known {
		place = sinks.LanePosition(s.ackedSequence(lane)) + 1
	}
	if t.claim.RecordLanes != nil && !noted {
		if err := t.claim.RecordLanes(ctx, map[sinks.Lane]sinks.LanePosition{lane: place}); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recordedLanes[lane], t.laneStarts[lane] = true, place
	return nil
}

// checkFence says that this process is deposed, where no condition does.
func (s *Sink) checkFence(ctx context.Context, l *connection.Link, t *term, lane sinks.Lane) error {
	t.mu.Lock()
	deposed := t.deposed
	t.mu.Unlock()
	switch {
	case deposed != nil:
		return deposed
	case s.cfg.Mode == modeCore:
		return nil
	case s.usesBatches(lane):
		s.updateWarning("fence", "")
		return nil
	}
	s.updateWarning("fence", fmt.Sprintf("stream %q takes changes by message ID now, and cannot refuse those of an older exporter that was stopped and goes on: it is "+
		"told before it sends more, and what it repeats within duplicate_window is dropped; let the stream take batches (allow_batched), and have no other writer", s.cfg.Stream))
	return s.checkOwnership(ctx, l, math.MaxUint64)
}

// recordPublish notes how a Publish of a lane ended: when everything is acknowledged, what follows lies behind what was reached.
// In a stream that went back it lies there for all lanes.
func (t *term) recordPublish(lane sinks.Lane, reached uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := sinks.LanePosition(reached) + 1
	switch {
	case err == nil:
		t.laneStarts[lane] = next
	case errors.As(err, new(*sinks.LostError)):
		for other, place := range t.laneStarts {
			t.laneStarts[other] = min(place, next)
		}
	}
}

// LaneProgress is [sinks.Fenced.LaneProgress].
func (s *Sink) LaneProgress() map[sinks.Lane]sinks.LanePosition {
	t := s.term.Load()
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.laneStarts)
}
