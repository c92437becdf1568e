package audit

import (
	"context"
	"sync"
)

// maxBodies bounds the bodies that are in memory at once, in bytes; others wait in their connections.
const maxBodies = 64 << 20

// byteSemaphore bounds what is held at once.
type byteSemaphore struct {
	mu       sync.Mutex
	free     int64
	released chan struct{} // closed, and replaced, when there is more
}

func newByteSemaphore(size int64) *byteSemaphore {
	return &byteSemaphore{free: size, released: make(chan struct{})}
}

// acquire waits until there is room for n, which is given back later. It is false when ctx ended before.
func (r *byteSemaphore) acquire(ctx context.Context, n int64) bool {
	for {
		r.mu.Lock()
		if r.free >= n {
			r.free -= n
			r.mu.Unlock()
			return true
		}
		changed := r.released
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

func (r *byteSemaphore) release(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free += n
	close(r.released)
	r.released = make(chan struct{})
}
