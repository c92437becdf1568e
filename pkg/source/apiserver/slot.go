package apiserver

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// SlowAfter is how long an API server may take to begin an answer before that is said, and before others may go on.
const SlowAfter = 10 * time.Second

var (
	// ErrSlow is what a Slot's Slow stands for.
	ErrSlow     = fmt.Errorf("the API server has not answered for %s", SlowAfter)
	errNoAnswer = fmt.Errorf("the API server has not answered for %s", HeadersTimeout)
)

// Slot is the right of one scope to read all its objects, of which there are few at a time. It is given back while the API
// server keeps a request waiting, so that a type whose server hangs keeps no other from its list. A nil slot is none.
type Slot struct {
	Pool   chan struct{} // one element for each slot that is held; nil where nothing is bounded
	OnSlow func()        // called when an answer is late; it must not block

	mu      sync.Mutex
	held    bool
	waiting bool // for an answer
}

// Acquire waits for a free slot, unless one is held.
func (s *Slot) Acquire(ctx context.Context) error {
	if s == nil || s.Pool == nil || s.held {
		return nil
	}
	select {
	case s.Pool <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = true
	return nil
}

// Release gives the slot back, if it is held.
func (s *Slot) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseLocked()
}

func (s *Slot) releaseLocked() {
	if s.held {
		<-s.Pool
		s.held = false
	}
}

// beginRequest says that a request is being sent, and returns what says that it has ended.
func (s *Slot) beginRequest() (done func()) {
	if s == nil {
		return func() {}
	}
	s.setWaiting(true)
	late := time.AfterFunc(SlowAfter, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.waiting {
			s.releaseLocked()
			s.OnSlow()
		}
	})
	return func() { late.Stop(); s.setWaiting(false) }
}

func (s *Slot) setWaiting(yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = yes
}
