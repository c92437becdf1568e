package admin

import (
	"slices"
	"sync"
)

// Bounds of the newest changes that are kept for viewers.
const (
	changesKept    = 4096
	changeMaxBytes = 2 << 10 // of the facts of one change; of a larger one less is kept
)

// changeRing keeps the facts of the newest changes, each a JSON object without bodies. Viewers read from where they are; one
// that is slow misses the oldest, and delivery does not wait for it. Safe for concurrent use.
type changeRing struct {
	mu   sync.Mutex
	next uint64 // number of the next change; change n is in ring[n % changesKept]
	ring [][]byte
}

// appendChange keeps one more. write appends its facts to a slice; what is longer than the bound is written again by short.
func (c *changeRing) appendChange(write, short func([]byte) []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring == nil {
		c.ring = make([][]byte, changesKept)
	}
	slot := &c.ring[c.next%changesKept]
	if *slot = write((*slot)[:0]); len(*slot) > changeMaxBytes {
		*slot = short(nil)
	}
	c.next++
}

// newestAfter returns up to most changes after number after, oldest first, as copies, how many more there were, and the
// number to pass next time.
func (c *changeRing) newestAfter(after uint64, most int) (facts [][]byte, missed, last uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := max(after, c.next-min(c.next, changesKept, uint64(most)))
	for n := first; n < c.next; n++ {
		facts = append(facts, slices.Clone(c.ring[n%changesKept]))
	}
	return facts, first - min(first, after), c.next
}
