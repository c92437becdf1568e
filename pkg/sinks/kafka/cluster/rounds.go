package cluster

import (
	"context"
	"sync"
)

// Rounds answers what many ask in as few rounds as possible: what is asked while a round is answered is the next one. It is
// safe for concurrent use.
type Rounds[Q, A any] struct {
	start  func(func())
	answer func([]Q) (A, error)
	turn   chan struct{} // has room for the round that is being answered

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

// NewRounds returns rounds that are answered by a function, which is called by one goroutine at a time. Each round is a
// goroutine that start has to begin.
func NewRounds[Q, A any](start func(func()), answer func([]Q) (A, error)) *Rounds[Q, A] {
	return &Rounds[Q, A]{start: start, answer: answer, turn: make(chan struct{}, 1)}
}

// Ask returns what the round of a question is answered, or the end of ctx, which does not end the round.
func (r *Rounds[Q, A]) Ask(ctx context.Context, question Q) (answer A, err error) {
	one := r.join(question)
	select {
	case <-one.done:
		return one.answer, one.err
	case <-ctx.Done():
		return answer, ctx.Err()
	}
}

// join puts a question into the next round.
func (r *Rounds[Q, A]) join(question Q) *round[Q, A] {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		one := &round[Q, A]{done: make(chan struct{})}
		r.next = one
		r.start(func() { r.run(one) })
	}
	r.next.questions = append(r.next.questions, question)
	return r.next
}

// run answers a round when the one before is answered.
func (r *Rounds[Q, A]) run(one *round[Q, A]) {
	defer close(one.done)
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	r.mu.Lock()
	r.next = nil
	r.mu.Unlock()
	one.answer, one.err = r.answer(one.questions)
}
