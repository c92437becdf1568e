package nats

import (
	"context"
	"sync"
)

// budget bounds the bytes in flight. Who waits is served in order, so that a large message is not overtaken for ever.
type budget struct {
	total int64

	mu      sync.Mutex
	free    int64
	waiting []*claim
}

// claim is one waiting caller.
type claim struct {
	bytes   int64
	granted chan struct{} // closed when the bytes are its own
}

func newBudget(total int64) *budget { return &budget{total: total, free: total} }

// take takes bytes from the budget and returns what to give back; it waits until they are free or ctx ends. What is
// larger than the whole budget takes all of it.
func (b *budget) take(ctx context.Context, bytes int64) (int64, error) {
	bytes = min(bytes, b.total)
	b.mu.Lock()
	if len(b.waiting) == 0 && b.free >= bytes {
		b.free -= bytes
		b.mu.Unlock()
		return bytes, nil
	}
	c := &claim{bytes: bytes, granted: make(chan struct{})}
	b.waiting = append(b.waiting, c)
	b.mu.Unlock()

	select {
	case <-c.granted:
		return bytes, nil
	case <-ctx.Done():
		b.withdraw(c)
		return 0, ctx.Err()
	}
}

// give returns bytes to the budget.
func (b *budget) give(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += bytes
	b.grant()
}

// withdraw forgets a claim, or gives back what it got in the same moment.
func (b *budget) withdraw(c *claim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, other := range b.waiting {
		if other == c {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			b.grant() // those behind may fit now
			return
		}
	}
	b.free += c.bytes
	b.grant()
}

// grant serves those who wait, in order. mu is held.
func (b *budget) grant() {
	for len(b.waiting) > 0 && b.waiting[0].bytes <= b.free {
		b.free -= b.waiting[0].bytes
		close(b.waiting[0].granted)
		b.waiting = b.waiting[1:]
	}
}
