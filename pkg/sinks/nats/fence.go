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
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// fence excludes older exporters from the stream after a failover (ADR 48 of this repository).
//
// The fence is a message with a subject of its own in the stream of the changes. It names the owner of the stream and moves
// the stream's end. The first message of each batch names the end, so no other process can start a batch any more; the batch
// that the previous process had started is ended first. An exporter that is refused, or that must read the end again, checks
// the fence before anything else.
//
// By message ID the server does not refuse single messages. There the exporter checks the fence before each Publish; the
// messages that an older process had in flight are still stored. With an election a stream that takes no batches is refused,
// and another writer does not end batches.
type fence struct {
	cfg      Config
	features *streamFeatures
	warnings *warnings
	closer   *batchCloser
	end      *streamEnd
	progress *idProgress
	current  atomic.Pointer[term] // nil before the first Fence
}

// openBatchAge is more than the time for which a server keeps a batch open that gets no message: 10 seconds, unless
// max_batch_timeout is set in its configuration.
const openBatchAge = time.Minute

// term is the time in which this process may publish, from a successful Fence on.
type term struct {
	claim       sinks.Claim
	found       *stream.Info                 // the stream before the fence
	endSequence uint64                       // last sequence of the stream when the term began
	owner       atomic.Pointer[stream.Owner] // the fence; zero if the stream has no subject for it
	deposed     atomic.Pointer[error]        // a *sinks.DeposedError once another process is the owner; final

	mu    sync.Mutex
	lanes map[sinks.Lane]sinks.LanePosition // that later processes can find: where each begins in this term; 0: nowhere yet
}

// hasPublished reports whether a message of an exporter is one of this deployment, by this process or an earlier one.
func (t *term) hasPublished(m stream.Message) bool {
	by := m.Header(headerDeployment)
	return by == t.claim.Deployment || by == "" && m.Sequence < t.owner.Load().FirstNamed()
}

// laneStart returns where a lane begins in this term, 0 if it has not begun, and whether later processes can find the lane.
func (t *term) laneStart(lane sinks.Lane) (start sinks.LanePosition, recorded bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	start, recorded = t.lanes[lane]
	return start, recorded
}

func (t *term) recordLane(lane sinks.Lane, start sinks.LanePosition) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lanes[lane] = start
}

// recordLost records that after a loss all messages of all lanes may have a sequence above acked, and that former streams
// have nothing more to lose. Until then a later process finds the loss again, by the progress of before.
func (t *term) recordLost(acked uint64, life string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for lane, start := range t.lanes {
		t.lanes[lane] = min(start, sinks.LanePosition(acked)+1)
		if _, of := sinks.SplitRecordedLane(lane); of != life {
			t.lanes[lane] = 1
		}
	}
}

func (t *term) laneProgress() map[sinks.Lane]sinks.LanePosition {
	t.mu.Lock()
	defer t.mu.Unlock()
	begun := maps.Clone(t.lanes)
	maps.DeleteFunc(begun, func(_ sinks.Lane, start sinks.LanePosition) bool { return start == 0 })
	return begun
}

// fenceStream excludes older processes from the stream, as far as the stream allows, and begins a term.
func (f *fence) fenceStream(ctx context.Context, l *connection.Link, next *term) error {
	found, err := f.cfg.streamClient(l).RequireInfo(ctx)
	if err != nil {
		return err
	}
	f.features.otherWriter.Store(false) // a new term looks for others again
	f.warnings.setWarning(topicWriters, "")
	f.features.elected.Store(next.claim.Elected)
	f.features.recordConfig(found.Config)
	if err := f.requireBatches(next.claim); err != nil {
		return err
	}
	next.found, next.endSequence = found, found.State.LastSeq
	covered := slices.ContainsFunc(found.Config.Subjects, func(subject string) bool { return stream.Covers(subject, f.cfg.fencePrefix()+">") })
	switch batches := f.features.takesBatches(); {
	case !covered && batches:
		return &sinks.UnavailableError{
			Code:   condition.SinkMisconfigured,
			Reason: fmt.Sprintf("stream %q does not take the subject of the fence, which excludes older exporters", f.cfg.Stream),
			Remedy: fmt.Sprintf("add the subject %q to it: nats stream edit %s --subjects %s",
				f.cfg.fencePrefix()+">", f.cfg.Stream, strings.Join(append(found.Config.Subjects, f.cfg.fencePrefix()+">"), ",")),
		}
	case !covered:
		return nil
	case !batches:
		owner, err := f.ownershipRecord(l, next.claim, found).Claim(ctx, next.claim, stream.Owner{})
		next.endSequence = max(next.endSequence, owner.Sequence)
		next.owner.Store(&owner)
		return err
	}
	return f.fenceBatches(ctx, l, next)
}

// requireBatches returns an error if the stream cannot refuse what a replaced exporter sends, and this exporter may be
// replaced while it is frozen.
func (f *fence) requireBatches(claim sinks.Claim) error {
	if !claim.Elected || f.features.allowsBatches.Load() {
		return nil
	}
	return &sinks.UnavailableError{
		Code: condition.SinkMisconfigured,
		Reason: fmt.Sprintf("stream %q does not take batches, so it cannot refuse what an exporter sends that was frozen and "+
			"replaced: it serves no election", f.cfg.Stream),
		Remedy: fmt.Sprintf("set allow_batched on it, which needs nats-server 2.14 or later: nats stream edit %s "+
			"--allow-batched; or run one exporter without election", f.cfg.Stream),
	}
}

// fenceBatches ends the newest batch in the stream and then moves the stream's end. It repeats both if another batch was
// started in between. The stream stores nothing more of an ended batch.
func (f *fence) fenceBatches(ctx context.Context, l *connection.Link, next *term) error {
	found, err := f.cfg.streamClient(l).RequireInfo(ctx)
	if err != nil {
		return err
	}
	last := found.State.LastSeq
	open, err := f.newestBatchID(ctx, l, next.claim, found.State.FirstSeq, last)
	if err != nil {
		return err
	}
	ended, owner := "", stream.Owner{}
	for range maxBatchStarts {
		if open != ended {
			if err := f.closer.closeBatchByID(ctx, l, open, f.cfg.fenceSubject(next.claim)); err != nil {
				return err
			}
			ended = open
		}
		if owner, err = f.ownershipRecord(l, next.claim, found).Claim(ctx, next.claim, owner); err != nil {
			return err
		}
		started, err := f.newestBatchID(ctx, l, next.claim, last+1, owner.Sequence-1)
		if err != nil {
			return err
		}
		if started == "" || started == ended {
			next.endSequence = owner.Sequence
			next.owner.Store(&owner)
			return nil
		}
		open, last = started, owner.Sequence
	}
	return fmt.Errorf("stream %q: an older exporter starts another batch whenever its last one is ended", f.cfg.Stream)
}

// newestBatchID returns the ID of the newest batch of this deployment, or of an exporter without one, between two sequences;
// "" if there is none that may still be open.
func (f *fence) newestBatchID(ctx context.Context, l *connection.Link, claim sinks.Claim, first, last uint64) (string, error) {
	var end time.Time // of the newest message
	var id string
	_, err := f.cfg.streamClient(l).FindNewest(ctx, first, last, f.features.allowsDirect.Load(), func(m stream.Message) bool {
		if end.IsZero() {
			end = m.Time
		}
		stored, batched := storedOffsetOf(m)
		if by := m.Header(headerDeployment); batched && (by == claim.Deployment || by == "") {
			id = stored.batch
		}
		return id != "" || end.Sub(m.Time) > openBatchAge
	})
	return id, err
}

func (f *fence) ownershipRecord(l *connection.Link, claim sinks.Claim, in *stream.Info) stream.Ownership {
	o := stream.Ownership{Client: f.cfg.streamClient(l), Subject: f.cfg.fenceSubject(claim), Description: "the right to publish",
		Life: lifeName(in)}
	if f.features.acceptsTTL.Load() {
		o.Header = nats.Header{nats.MsgTTLHdr: {"never"}}
	}
	return o
}

// checkOwnership returns nil while no other process has claimed the stream, or without a term. end is the last sequence that
// the server reported: if the stream went back, the fence may be lost with it, and is written again.
func (f *fence) checkOwnership(ctx context.Context, l *connection.Link, end uint64) error {
	t := f.current.Load()
	if t == nil || t.owner.Load().Sequence == 0 {
		return nil
	}
	owner, err := f.currentOwner(ctx, l, t, end)
	if err == nil {
		t.owner.Store(&owner)
	} else if errors.As(err, new(*sinks.DeposedError)) {
		t.deposed.Store(&err)
	}
	return err
}

func (f *fence) currentOwner(ctx context.Context, l *connection.Link, t *term, end uint64) (stream.Owner, error) {
	o, mine := f.ownershipRecord(l, t.claim, t.found), *t.owner.Load()
	found, err := o.Current(ctx)
	if err != nil || found.SameProcess(mine) {
		return mine, err
	}
	now, err := f.cfg.streamClient(l).RequireInfo(ctx) // the answer may come from a server that no longer leads the stream
	if err != nil {
		return mine, err
	}
	found, err = o.Current(ctx)
	last, _, _ := f.end.currentEnd()
	switch {
	case err != nil || found.SameProcess(mine):
		return mine, err
	case o.IsNewer(found, mine):
		return mine, o.DeposedError(found, nil)
	case end >= last: // the stream did not go back
		return mine, &sinks.DeposedError{Reason: fmt.Sprintf("the fence of stream %q, subject %q, is gone: it was purged, or "+
			"exceeded max_age; the stream has no owner until it is claimed again", f.cfg.Stream, o.Subject)}
	}
	o.Life = lifeName(now)
	return o.Claim(ctx, t.claim, mine)
}

func (f *fence) usesBatches(lane sinks.Lane) bool {
	return lane == singleLane && f.features.takesBatches()
}

// ackedSequence returns a sequence below that of every message of a lane that is not acknowledged yet.
func (f *fence) ackedSequence(lane sinks.Lane) uint64 {
	if f.usesBatches(lane) {
		last, _, _ := f.end.currentEnd()
		return last
	}
	return f.progress.newest.Load()
}

// admitPublish must succeed before each Publish of a term. It fails if this process is deposed, and records a lane before
// its first message, so that a later process reads the lane back.
func (f *fence) admitPublish(ctx context.Context, l *connection.Link, t *term, lane sinks.Lane) error {
	if err := f.checkFence(ctx, l, t, lane); err != nil {
		return err
	}
	name := f.recordedLane(t, lane)
	start, recorded := t.laneStart(name)
	if start == 0 {
		start = sinks.LanePosition(f.ackedSequence(lane)) + 1
	}
	if t.claim.RecordLanes != nil && !recorded {
		if err := t.claim.RecordLanes(ctx, map[sinks.Lane]sinks.LanePosition{name: start}); err != nil {
			return err
		}
	}
	t.recordLane(name, start)
	return nil
}

// recordedLane names a lane in the replicated state: a sequence in one stream is none in another one that was created later
// under its name.
func (f *fence) recordedLane(t *term, lane sinks.Lane) sinks.Lane {
	return sinks.RecordedLane(lane, f.life(t))
}

// life names the stream in a term. It is in the fence, because a cluster may change the time of creation.
func (f *fence) life(t *term) string { return cmp.Or(t.owner.Load().Life, lifeName(f.end.seen.Load())) }

// checkFence fails if this process is deposed. In batches the server enforces the fence; by message ID the fence must be
// read.
func (f *fence) checkFence(ctx context.Context, l *connection.Link, t *term, lane sinks.Lane) error {
	deposed := t.deposed.Load()
	switch {
	case deposed != nil:
		return *deposed
	case f.usesBatches(lane):
		f.warnings.setWarning(topicFence, "")
		return nil
	}
	if err := f.requireBatches(t.claim); err != nil {
		f.features.invalidate() // the stream may be edited
		return err
	}
	f.warnings.setWarning(topicFence, fmt.Sprintf("stream %q takes changes by message ID now, and cannot refuse those of an "+
		"older exporter that resumes after a pause: that one stores the messages it had in flight, except copies within "+
		"duplicate_window; set allow_batched on the stream, and let no other client publish to it", f.cfg.Stream))
	return f.checkOwnership(ctx, l, math.MaxUint64)
}
