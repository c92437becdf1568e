package source

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// slowAfter is how long an API server may take to begin an answer before that is said, and before others may go on.
const slowAfter = 10 * time.Second

var (
	errSlow     = fmt.Errorf("the API server has not answered for %s", slowAfter)
	errNoAnswer = fmt.Errorf("the API server has not answered for %s", headersTimeout)
)

// slot is the right of one scope to read all its objects, of which there are few at a time. It is given back while the API
// server keeps a request waiting, so that a type whose server hangs keeps no other from its list. A nil slot is none.
type slot struct {
	all  chan struct{} // one element for each slot that is held; nil where nothing is bounded
	slow func()        // called when an answer is late; it must not block

	mu      sync.Mutex
	held    bool
	waiting bool // for an answer
}

// acquire waits for a free slot.
func (s *slot) acquire(ctx context.Context) error {
	if s.all == nil || s.held {
		return nil
	}
	select {
	case s.all <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = true
	return nil
}

// release gives the slot back, if it is held.
func (s *slot) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free()
}

func (s *slot) free() {
	if s.held {
		<-s.all
		s.held = false
	}
}

// asking says that a request is being sent, and returns what says that it has ended.
func (s *slot) asking() (done func()) {
	if s == nil {
		return func() {}
	}
	s.wait(true)
	late := time.AfterFunc(slowAfter, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.waiting {
			s.free()
			s.slow()
		}
	})
	return func() { late.Stop(); s.wait(false) }
}

func (s *slot) wait(yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = yes
}

// answered says that the answer begins, and waits for a slot if it was given back.
func (s *slot) answered(ctx context.Context) error {
	if s == nil {
		return nil
	}
	s.wait(false)
	return s.acquire(ctx)
}
