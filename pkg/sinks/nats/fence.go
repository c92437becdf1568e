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

// tenure is the time in which this process may publish, from Fence on.
//
// The fence is a message of a subject of its own in the stream of the changes. It says whose the stream is, and moves its
// end: the first message of each batch names the end, so that no other process begins a batch any more. What the process
// before had begun is ended first. Whoever is refused, or learns the end anew, looks at the fence before anything else.
//
// Where changes go by message ID nothing refuses a single message. There the fence is looked at before each Publish, and
// what an older process had on its way then is stored.
type tenure struct {
	claim  sinks.Claim
	end    uint64 // the stream's last sequence when it began
	direct bool   // the stream allows direct access

	mu      sync.Mutex
	owner   stream.Owner // zero where the stream has no place for a fence
	deposed error        // for good
	places  map[sinks.Lane]sinks.Place
	noted   map[sinks.Lane]bool
}

// fence is what this process has put into the stream; the zero value where there is no place for it.
func (t *tenure) fence() stream.Owner {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.owner
}

func (t *tenure) set(owner stream.Owner) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.owner = owner
}

// lose ends it: another process publishes.
func (t *tenure) lose(err error) error {
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

// fenceOf describes the fence, for a stream that is configured so.
func (s *Sink) fenceOf(l *connection.Link, claim sinks.Claim) stream.Ownership {
	o := stream.Ownership{Client: s.stream(l), Subject: s.cfg.fenceSubject(claim), Of: "the right to publish"}
	if s.expiring.Load() {
		o.Header = nats.Header{nats.MsgTTLHdr: {"never"}}
	}
	return o
}

// Fence is [sinks.Fenced.Fence].
func (s *Sink) Fence(ctx context.Context, claim sinks.Claim, lanes []sinks.Lane) error {
	s.fencing.Store(true)
	l, err := s.ready(ctx)
	if err != nil {
		return err
	}
	next := &tenure{claim: claim, places: map[sinks.Lane]sinks.Place{}, noted: map[sinks.Lane]bool{}}
	for _, lane := range lanes {
		next.noted[lane] = true
	}
	if s.cfg.Mode != modeCore {
		if err := s.fenceStream(ctx, l, next); err != nil {
			return err
		}
	}
	s.beginTenure(next)
	return nil
}

// fenceStream turns older processes away, as far as the stream can.
func (s *Sink) fenceStream(ctx context.Context, l *connection.Link, next *tenure) error {
	found, err := s.stream(l).Existing(ctx)
	if err != nil {
		return err
	}
	s.caution("writers", "")
	s.take(found.Config)
	next.direct, next.end = found.Config.AllowDirect, found.State.LastSeq
	covered := slices.ContainsFunc(found.Config.Subjects, func(subject string) bool { return stream.Covers(subject, s.cfg.fencePrefix()+">") })
	switch batches := s.ordered.possible.Load(); {
	case !covered && batches:
		return &sinks.UnavailableError{Reason: fmt.Sprintf("stream %q has no place for the fence that turns older exporters away: add the "+
			"subject %q to it: nats stream edit %s --subjects %s",
			s.cfg.Stream, s.cfg.fencePrefix()+">", s.cfg.Stream, strings.Join(append(found.Config.Subjects, s.cfg.fencePrefix()+">"), ","))}
	case !covered:
		return nil
	case !batches:
		next.owner, err = s.fenceOf(l, next.claim).Take(ctx, next.claim, stream.Owner{})
		next.end = max(next.end, next.owner.Sequence)
		return err
	}
	return s.fenceBatches(ctx, l, next)
}

// fenceBatches ends what the process before has begun, and moves the stream's end. What had begun between the two is found,
// and ended, too.
func (s *Sink) fenceBatches(ctx context.Context, l *connection.Link, next *tenure) error {
	ended := ""
	for range maxStarts {
		found, err := s.stream(l).Existing(ctx)
		if err != nil {
			return err
		}
		first := found.State.FirstSeq
		if ended, err = s.endBatch(ctx, l, s.cfg.fenceSubject(next.claim), first, found.State.LastSeq, ended); err != nil {
			return err
		}
		if next.owner, err = s.fenceOf(l, next.claim).Take(ctx, next.claim, next.owner); err != nil {
			return err
		}
		newest, err := s.newestBatch(ctx, l, first, next.owner.Sequence-1)
		if err != nil {
			return err
		}
		if newest == "" || newest == ended {
			next.end = next.owner.Sequence
			return nil
		}
	}
	return fmt.Errorf("stream %q: an older exporter begins a batch whenever its last one is ended", s.cfg.Stream)
}

// endBatch ends the newest batch between two sequences of the stream, and returns its ID. Nothing of one that is ended is
// stored any more. subject is one that the stream takes.
func (s *Sink) endBatch(ctx context.Context, l *connection.Link, subject string, first, end uint64, ended string) (string, error) {
	id, err := s.newestBatch(ctx, l, first, end)
	if err != nil || id == "" || id == ended {
		return ended, err
	}
	return id, s.fenceBatch(ctx, l, id, subject)
}

// newestBatch is the ID of the newest batch of an exporter between two sequences; "" when there is none near the end.
func (s *Sink) newestBatch(ctx context.Context, l *connection.Link, first, end uint64) (id string, err error) {
	m, err := s.stream(l).Newest(ctx, first, end, func(m stream.Message) bool { _, ours := placeOf(m); return ours })
	place, _ := placeOf(m)
	return place.batch, err
}

// beginTenure forgets what an earlier one, or a stored state, has left: what is in the stream is in the tails.
func (s *Sink) beginTenure(next *tenure) {
	s.mu.Lock()
	clear(s.ahead)
	clear(s.snapshots)
	s.mu.Unlock()
	s.ordered.restart(next.end)
	s.progress.restart(next.end)
	s.tenure.Store(next)
}

// restart begins a new epoch in a stream that ends there.
func (o *ordered) restart(end uint64) {
	o.beside.Store(false)
	o.size, o.doubt = 0, nil
	o.mu.Lock()
	defer o.mu.Unlock()
	o.epoch, o.newest, o.save, o.saved = newName(), 0, nil, true
	o.known, o.last, o.through, o.lost = true, end, 0, nil
}

func (p *progress) restart(end uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.newest, p.attempted, p.marks, p.lost, p.again, p.losses = end, 0, nil, nil, 0, 0
}

// stillOurs says nil while no other process has claimed the stream, which ends there.
func (s *Sink) stillOurs(ctx context.Context, l *connection.Link, end uint64) error {
	t := s.tenure.Load()
	if t == nil || t.fence().Sequence == 0 {
		return nil
	}
	o, mine := s.fenceOf(l, t.claim), t.fence()
	found, err := o.Current(ctx)
	if err == nil && !found.Same(mine) { // a server may have said so that does not lead any more
		if _, err = s.stream(l).Existing(ctx); err == nil {
			found, err = o.Current(ctx)
		}
	}
	last, _, _ := s.ordered.place()
	switch {
	case err != nil:
		return err
	case found.Same(mine):
		return nil
	case o.Newer(found, mine):
		return t.lose(o.Deposed(found, nil))
	case end >= last: // it has not gone back
		return t.lose(&sinks.DeposedError{Reason: fmt.Sprintf("the fence of stream %q, subject %q, is gone: it was purged, or is older than max_age; "+
			"nobody knows who may publish until it is claimed anew", s.cfg.Stream, o.Subject)})
	}
	again, err := o.Take(ctx, t.claim, mine) // the stream went back, or was made anew, and the fence with it
	if errors.As(err, new(*sinks.DeposedError)) {
		return t.lose(err)
	}
	if err == nil {
		t.set(again)
	}
	return err
}

// inBatches says whether a lane goes to the stream in ordered batches.
func (s *Sink) inBatches(lane sinks.Lane) bool { return lane == whole && s.ordered.possible.Load() }

// reached is a sequence that no message of a lane, which is not acknowledged yet, is before.
func (s *Sink) reached(lane sinks.Lane) uint64 {
	if s.inBatches(lane) {
		last, _, _ := s.ordered.place()
		return last
	}
	s.progress.mu.Lock()
	defer s.progress.mu.Unlock()
	return s.progress.newest
}

// admit is called before each Publish of a tenure: it says that this process is deposed, and sees to it that the lane is
// noted.
func (s *Sink) admit(ctx context.Context, l *connection.Link, t *tenure, lane sinks.Lane) error {
	if err := s.lookAtFence(ctx, l, t, lane); err != nil {
		return err
	}
	t.mu.Lock()
	noted := t.noted[lane]
	place, known := t.places[lane]
	t.mu.Unlock()
	if !known {
		place = sinks.Place(s.reached(lane)) + 1
	}
	if t.claim.Note != nil && !noted {
		if err := t.claim.Note(ctx, map[sinks.Lane]sinks.Place{lane: place}); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noted[lane], t.places[lane] = true, place
	return nil
}

// lookAtFence says that this process is deposed, where no condition does.
func (s *Sink) lookAtFence(ctx context.Context, l *connection.Link, t *tenure, lane sinks.Lane) error {
	t.mu.Lock()
	deposed := t.deposed
	t.mu.Unlock()
	switch {
	case deposed != nil:
		return deposed
	case s.cfg.Mode == modeCore:
		return nil
	case s.inBatches(lane):
		s.caution("fence", "")
		return nil
	}
	s.caution("fence", fmt.Sprintf("stream %q takes changes by message ID now, and cannot refuse those of an older exporter that was stopped and goes on: it is "+
		"told before it sends more, and what it repeats within duplicate_window is dropped; let the stream take batches (allow_batched), and have no other writer", s.cfg.Stream))
	return s.stillOurs(ctx, l, math.MaxUint64)
}

// published notes how a Publish of a lane ended: when everything is acknowledged, what follows lies behind what was reached.
// In a stream that went back it lies there for all lanes.
func (t *tenure) published(lane sinks.Lane, reached uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := sinks.Place(reached) + 1
	switch {
	case err == nil:
		t.places[lane] = next
	case errors.As(err, new(*sinks.LostError)):
		for other, place := range t.places {
			t.places[other] = min(place, next)
		}
	}
}

// Places is [sinks.Fenced.Places].
func (s *Sink) Places() map[sinks.Lane]sinks.Place {
	t := s.tenure.Load()
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.places)
}
