package delivery

import (
	"context"
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// maxTriedPerAttempt bounds the changes that one retry of a suspected lane tries behind the rejected one. The next retry
	// continues behind them.
	maxTriedPerAttempt = 1000
	// maxTriedObjects bounds the objects that are remembered as tried. Then the look-ahead begins again at its head.
	maxTriedObjects = 10_000
)

// lookAhead looks in the journal for changes that a suspected destination accepts: those of the same lane behind the head,
// which it rejected. One acceptance proves the destination well; nothing is settled by it, and the lane begins with its head
// again. Of each object only the first change is tried: none may follow a newer one of its object that was accepted (I3).
type lookAhead struct {
	journal  Journal
	resolver *laneResolver
	backlog  *backlog

	mu   sync.Mutex
	last *aheadPosition // of the lane that looked ahead last; the others begin at their heads again, which bounds memory (I6)
}

// aheadPosition is how far the look-ahead of a lane has come. The worker that holds the lane owns it.
type aheadPosition struct {
	lane       sinks.Lane
	head, next uint64 // offsets: of the rejected change, and of the last one that was looked at
	tried      map[uint64]bool
}

var keySeed = maphash.MakeSeed()

// find returns whether accepts returns true for a change behind head. It tries a part of them, the following ones at the
// next call, and ends when accepts returns an error.
func (a *lookAhead) find(ctx context.Context, l *lane, head sinks.Message, accepts func(sinks.Message) (bool, error)) bool {
	at := a.positionOf(l.name, head)
	for tries := 0; tries < maxTriedPerAttempt && at.next < a.backlog.readPosition(); {
		records, err := a.journal.Read(ctx, at.next)
		if err != nil {
			return false // the readers of the pipeline report it
		}
		for _, record := range records {
			at.next = record.Offset
			m, ours := a.messageOf(record, l.name)
			key := keyHash(record.Change)
			if !ours || at.tried[key] {
				continue
			}
			at.tried[key] = true
			accepted, err := accepts(m)
			if accepted || err != nil {
				return accepted
			}
			if tries++; tries == maxTriedPerAttempt {
				break
			}
		}
	}
	return false
}

// positionOf returns where to continue: at the head if there is no other place.
func (a *lookAhead) positionOf(lane sinks.Lane, head sinks.Message) *aheadPosition {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at := a.last; at == nil || at.lane != lane || at.head != head.Offset || at.next >= a.backlog.readPosition() || len(at.tried) >= maxTriedObjects {
		a.last = &aheadPosition{lane, head.Offset, head.Offset, map[uint64]bool{keyHash(head.Change): true}}
	}
	return a.last
}

// messageOf returns the message of a change, if that belongs to a lane and is not delivered yet. A watermark is none: it
// would claim that the head stands before it.
func (a *lookAhead) messageOf(record event.Record, lane sinks.Lane) (m sinks.Message, ok bool) {
	to := a.resolver.routeOf(record.Change)
	if to.Skip || record.Change.Type == event.Watermark {
		return m, false
	}
	a.resolver.mu.Lock()
	defer a.resolver.mu.Unlock()
	all, err := a.resolver.resolveLanes(record, to)
	if err != nil || len(all) != 1 || all[0].lane != lane || a.resolver.isAlreadyDelivered(all[0]) {
		return m, false
	}
	e := all[0].entry
	return sinks.Message{Offset: e.offset, Change: e.change, Topic: e.topic}, true
}

func keyHash(c *event.Change) uint64 { return maphash.String(keySeed, c.Key()) }

// pingInterval is how often an idle destination is pinged. An outage then shows before most alerts fire, and a request costs
// little.
const pingInterval = 15 * time.Second

// PingRegularly pings a destination until ctx ends: with back-off until it answers, and then every 15 s while isIdle returns
// true. record gets the start and the result of each ping; one goroutine calls it.
func PingRegularly(ctx context.Context, ping func(context.Context) error, retry RetryConfig, isIdle func() bool,
	record func(start time.Time, err error),
) {
	backoff := ratelimit.NewBackoff[struct{}](retry.Min, retry.probeMax(), rand.Float64)
	for wait := time.Duration(0); ; {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		wait = pingInterval
		if !isIdle() {
			continue
		}
		start := time.Now()
		err := ping(ctx)
		if ctx.Err() != nil {
			return
		}
		record(start, err)
		if err == nil {
			backoff.Forget(struct{}{})
			continue
		}
		wait = backoff.When(struct{}{})
	}
}

// PauseSwitch holds back what the pipelines of one sink publish, or what is emitted of one rule. It outlives them: a
// pipeline that is made while the sink is paused publishes nothing. All methods are safe for concurrent use, and a nil
// switch is never on.
type PauseSwitch struct {
	mu       sync.Mutex
	since    time.Time       // zero while not paused
	running  context.Context // ends when a pause begins
	pause    context.CancelFunc
	inFlight int           // turns that have begun and not ended
	changed  chan struct{} // closed, and replaced, at each change of since and inFlight
}

// NewPauseSwitch returns a switch that is off.
func NewPauseSwitch() *PauseSwitch {
	s := &PauseSwitch{changed: make(chan struct{})}
	s.running, s.pause = context.WithCancel(context.Background())
	return s
}

// Pause lets nothing new be published. What is in flight is finished, see [PauseSwitch.AwaitQuiet]. During a pause it only
// changes the time.
func (s *PauseSwitch) Pause(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = since
	s.pause()
	s.notifyChanged()
}

// Resume lets the pipelines publish again.
func (s *PauseSwitch) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		return
	}
	s.since = time.Time{}
	s.running, s.pause = context.WithCancel(context.Background())
	s.notifyChanged()
}

// Paused reports whether the switch is on, and returns a channel that is closed when that may have changed.
func (s *PauseSwitch) Paused() (paused bool, changed <-chan struct{}) {
	if s == nil {
		return false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		return false, s.running.Done()
	}
	return true, s.changed
}

// PausedSince returns since when the switch is on; zero if it is not.
func (s *PauseSwitch) PausedSince() time.Time {
	if s == nil {
		return time.Time{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since
}

// AwaitQuiet waits until nothing is in flight, or ctx ends, whose cause it returns.
func (s *PauseSwitch) AwaitQuiet(ctx context.Context) error {
	return s.awaitFact(ctx, func() bool { return s.inFlight == 0 })
}

// isPaused reports whether nothing new may be published.
func (s *PauseSwitch) isPaused() bool { return !s.PausedSince().IsZero() }

// beginTurn waits until the sink is not paused and wait has returned nil, and begins a turn, which EndTurn ends. When a
// pause begins, the context of wait ends, and undo gives back what wait may have got: it is called again after the pause.
func (s *PauseSwitch) beginTurn(ctx context.Context, wait func(context.Context) error, undo func()) error {
	if s == nil {
		return wait(ctx)
	}
	for {
		var running context.Context
		if err := s.awaitFact(ctx, func() bool { running = s.running; return s.since.IsZero() }); err != nil {
			return err
		}
		waiting, cancel := context.WithCancel(ctx)
		disarm := context.AfterFunc(running, cancel)
		err := wait(waiting)
		disarm()
		cancel()
		switch {
		case err == nil && s.TryBeginTurn():
			return nil
		case err == nil:
			undo()
		case ctx.Err() != nil || running.Err() == nil:
			return err
		}
	}
}

// TryBeginTurn begins a turn, which EndTurn ends, unless the switch is on.
func (s *PauseSwitch) TryBeginTurn() bool {
	if s == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.since.IsZero() {
		return false
	}
	s.inFlight++
	return true
}

// EndTurn ends a turn.
func (s *PauseSwitch) EndTurn() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight--
	s.notifyChanged()
}

// awaitFact waits until fact returns true, which is called with mu held, or ctx ends.
func (s *PauseSwitch) awaitFact(ctx context.Context, fact func() bool) error {
	for {
		s.mu.Lock()
		isTrue, changed := fact(), s.changed
		s.mu.Unlock()
		if isTrue {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// notifyChanged requires mu.
func (s *PauseSwitch) notifyChanged() {
	close(s.changed)
	s.changed = make(chan struct{})
}
