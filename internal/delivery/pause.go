package delivery

import (
	"context"
	"sync"
	"time"
)

// PauseSwitch holds back what the pipelines of one sink publish, or what is emitted of one rule. It outlives them: a
// pipeline that is made while the sink is paused publishes nothing. All methods are safe for concurrent use.
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		return false, s.running.Done()
	}
	return true, s.changed
}

// PausedSince returns since when the switch is on; zero if it is not.
func (s *PauseSwitch) PausedSince() time.Time {
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
