package apiserver

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// SlowAfter is how long a response may take to begin before it is reported as slow and the slot is released to others.
const SlowAfter = 10 * time.Second

var (
	// ErrSlow is the failure that OnSlow stands for.
	ErrSlow     = fmt.Errorf("the API server has not answered for %s", SlowAfter)
	errNoAnswer = fmt.Errorf("the API server has not answered for %s", HeadersTimeout)
)

// Slot is the right of one scope to read all its objects, which a bounded number of scopes have at a time. It is released
// while the API server keeps a request waiting, and while what was read waits for long: a type that cannot go on does not
// block the lists of others. A nil slot bounds nothing. It is used by one goroutine at a time; the mutex guards against the
// timer.
type Slot struct {
	Pool   chan struct{} // has one element for each held slot; nil for no bound
	OnSlow func()        // called when a response is slow; must not block; may be nil

	mu   sync.Mutex
	held bool
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

// Release releases the slot, if it is held.
func (s *Slot) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseLocked()
}

// releaseLocked is Release. Requires s.mu.
func (s *Slot) releaseLocked() {
	if s.held {
		<-s.Pool
		s.held = false
	}
}

// Await runs wait and returns its error. If that takes longer than SlowAfter the slot is released, and has to be acquired
// again before more is read.
func (s *Slot) Await(wait func() error) error {
	if s == nil {
		return wait()
	}
	defer s.beginWait(nil)()
	return wait()
}

// beginRequest starts the timer of a request. done stops it.
func (s *Slot) beginRequest() (done func()) {
	if s == nil {
		return func() {}
	}
	return s.beginWait(s.OnSlow)
}

// beginWait starts the timer of a wait. done stops it.
func (s *Slot) beginWait(onSlow func()) (done func()) {
	waiting := true
	late := time.AfterFunc(SlowAfter, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !waiting {
			return
		}
		if s.releaseLocked(); onSlow != nil {
			onSlow()
		}
	})
	return func() {
		late.Stop()
		s.mu.Lock()
		defer s.mu.Unlock()
		waiting = false
	}
}
