package cluster

import (
	"context"
	"sync"
)

// Coalescer answers concurrent questions in as few rounds as possible: questions that arrive while a round is being answered
// form the next one. It is safe for concurrent use.
type Coalescer[Q, A any] struct {
	start  func(func())
	answer func([]Q) (A, error)
	slot   chan struct{} // capacity 1: held by the round that is being answered

	mu   sync.Mutex
	next *round[Q, A] // collects questions; nil when none is waiting
}

// round is a set of questions with one answer.
type round[Q, A any] struct {
	questions []Q
	done      chan struct{} // closed when answer and err are set
	answer    A
	err       error
}

// NewCoalescer returns a coalescer. answer is called for one round at a time, on a goroutine that start begins.
func NewCoalescer[Q, A any](start func(func()), answer func([]Q) (A, error)) *Coalescer[Q, A] {
	return &Coalescer[Q, A]{start: start, answer: answer, slot: make(chan struct{}, 1)}
}

// Submit adds a question to the next round and returns the answer of that round. When ctx ends it returns its error; the
// round goes on for the others.
func (c *Coalescer[Q, A]) Submit(ctx context.Context, question Q) (answer A, err error) {
	one := c.joinRound(question)
	select {
	case <-one.done:
		return one.answer, one.err
	case <-ctx.Done():
		return answer, ctx.Err()
	}
}

// joinRound adds a question to the round that collects questions, and starts one if there is none.
func (c *Coalescer[Q, A]) joinRound(question Q) *round[Q, A] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		one := &round[Q, A]{done: make(chan struct{})}
		c.next = one
		c.start(func() { c.runRound(one) })
	}
	c.next.questions = append(c.next.questions, question)
	return c.next
}

// runRound closes the round for questions once the round before is answered, and answers it.
func (c *Coalescer[Q, A]) runRound(one *round[Q, A]) {
	defer close(one.done)
	c.slot <- struct{}{}
	defer func() { <-c.slot }()
	c.mu.Lock()
	c.next = nil
	c.mu.Unlock()
	one.answer, one.err = c.answer(one.questions)
}
