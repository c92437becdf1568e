package ratelimit

import (
	"sync"
	"time"
)

// Backoff spaces the tries of each failing item: after its n-th failure in a row, counted from zero, an item waits
// between min·2ⁿ and min·2ⁿ⁺¹, evenly spread, and never less than min or more than max. Half of the longest wait is
// fixed and half is random ("equal jitter"), so that items which failed together do not come back together.
//
// Unlike the default limiter of client-go it has no bucket that all items share: a thousand items that failed in one outage
// wait independently. It holds memory for failing items only; Forget must be called on success.
type Backoff[T comparable] struct {
	min, max time.Duration
	random   func() float64

	mu       sync.Mutex
	failures map[T]int
}

// NewBackoff returns a Backoff with waits from min to max. random returns numbers in [0,1), is called under a lock and
// is usually rand.Float64. min must be positive and not above max.
func NewBackoff[T comparable](min, max time.Duration, random func() float64) *Backoff[T] {
	if min <= 0 || max < min {
		panic("ratelimit: back-off needs 0 < min <= max")
	}
	return &Backoff[T]{min: min, max: max, random: random, failures: map[T]int{}}
}

// When records one more failure of item and returns how long to wait before the next try.
func (b *Backoff[T]) When(item T) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.failures[item]
	b.failures[item] = n + 1
	return b.waitAfter(n)
}

// Forget ends the history of item: its next failure counts as the first, and no memory is held for it.
func (b *Backoff[T]) Forget(item T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.failures, item)
}

// NumRequeues returns how often item failed since it was last forgotten.
func (b *Backoff[T]) NumRequeues(item T) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failures[item]
}

// waitAfter returns the wait after failure n, counted from zero.
func (b *Backoff[T]) waitAfter(n int) time.Duration {
	longest := b.max
	// Shifting max down instead of min up cannot overflow.
	if n < 62 && b.min <= b.max>>(n+1) {
		longest = b.min << (n + 1)
	}
	shortest := max(b.min, longest/2)
	return shortest + time.Duration(b.random()*float64(longest-shortest))
}
