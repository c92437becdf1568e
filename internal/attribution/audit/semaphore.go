package audit

import (
	"context"
	"sync"
)

// maxBodies bounds the bodies in memory, in bytes; further ones wait in their connections.
const maxBodies = 64 << 20

// byteSemaphore bounds the bytes that are held at the same time.
type byteSemaphore struct {
	mu       sync.Mutex
	free     int64
	released chan struct{} // closed and replaced by release
}

func newByteSemaphore(size int64) *byteSemaphore {
	return &byteSemaphore{free: size, released: make(chan struct{})}
}

// acquire waits until n bytes are free and takes them. It returns false if ctx ends first.
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

// release returns n acquired bytes.
func (r *byteSemaphore) release(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free += n
	close(r.released)
	r.released = make(chan struct{})
}
