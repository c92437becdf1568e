package sinks

import "github.com/kubecdc/kubecdc/pkg/event"

// KeyHash returns FNV-1a of the key of c's object (draft-eastlake-fnv), 64 bits. Sinks of destinations without an order of
// their own spread objects over lanes by it. It must never change: cursors are stored by lane.
func KeyHash(c *event.Change) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	var buffer [256]byte
	sum := uint64(offset)
	for _, b := range c.AppendKey(buffer[:0]) {
		sum = (sum ^ uint64(b)) * prime
	}
	return sum
}

// SharesHashes reports whether some hash is i modulo m and j modulo n.
func SharesHashes(i, m, j, n uint64) bool {
	for n != 0 { // m becomes the greatest common divisor; i and j only count modulo that
		m, n = n, m%n
	}
	return i%m == j%m
}
