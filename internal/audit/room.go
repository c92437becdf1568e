package audit

import (
	"context"
	"sync"
)

// maxBodies bounds the bodies that are in memory at once, in bytes; others wait in their connections.
const maxBodies = 64 << 20

// room bounds what is held at once.
type room struct {
	mu      sync.Mutex
	free    int64
	changed chan struct{} // closed, and replaced, when there is more
}

func newRoom(size int64) *room { return &room{free: size, changed: make(chan struct{})} }

// take waits until there is room for n, which is given back later. It is false when ctx ended before.
func (r *room) take(ctx context.Context, n int64) bool {
	for {
		r.mu.Lock()
		if r.free >= n {
			r.free -= n
			r.mu.Unlock()
			return true
		}
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

func (r *room) give(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free += n
	close(r.changed)
	r.changed = make(chan struct{})
}
