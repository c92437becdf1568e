package cluster

import (
	"context"
	"sync"
)

// Coalescer answers what many ask in as few rounds as possible: what is asked while a round is answered is the next one. It is
// safe for concurrent use.
type Coalescer[Q, A any] struct {
	start  func(func())
	answer func([]Q) (A, error)
	slot   chan struct{} // has room for the round that is being answered

	mu   sync.Mutex
	next *round[Q, A] // nil: nobody asks
}

// round is what is asked together.
type round[Q, A any] struct {
	questions []Q
	done      chan struct{} // closed when what follows is set
	answer    A
	err       error
}

// NewCoalescer returns rounds that are answered by a function, which is called by one goroutine at a time. Each round is a
// goroutine that start has to begin.
func NewCoalescer[Q, A any](start func(func()), answer func([]Q) (A, error)) *Coalescer[Q, A] {
	return &Coalescer[Q, A]{start: start, answer: answer, slot: make(chan struct{}, 1)}
}

// Submit returns what the round of a question is answered, or the end of ctx, which does not end the round.
func (r *Coalescer[Q, A]) Submit(ctx context.Context, question Q) (answer A, err error) {
	one := r.joinRound(question)
	select {
	case <-one.done:
		return one.answer, one.err
	case <-ctx.Done():
		return answer, ctx.Err()
	}
}

// joinRound puts a question into the next round.
func (r *Coalescer[Q, A]) joinRound(question Q) *round[Q, A] {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		one := &round[Q, A]{done: make(chan struct{})}
		r.next = one
		r.start(func() { r.runRound(one) })
	}
	r.next.questions = append(r.next.questions, question)
	return r.next
}

// runRound answers a round when the one before is answered.
func (r *Coalescer[Q, A]) runRound(one *round[Q, A]) {
	defer close(one.done)
	r.slot <- struct{}{}
	defer func() { <-r.slot }()
	r.mu.Lock()
	r.next = nil
	r.mu.Unlock()
	one.answer, one.err = r.answer(one.questions)
}
