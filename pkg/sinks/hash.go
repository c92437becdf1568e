package sinks

import "github.com/kubecdc/kubecdc/pkg/event"

// KeyHash is FNV-1a of the key of c's object (draft-eastlake-fnv), 64 bits: for destinations without an order of their own,
// whose sinks spread objects over lanes by it. It must never change: cursors are stored by lane.
func KeyHash(c *event.Change) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	var room [256]byte
	sum := uint64(offset)
	for _, b := range c.AppendKey(room[:0]) {
		sum = (sum ^ uint64(b)) * prime
	}
	return sum
}
