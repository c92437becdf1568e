package deltas

import (
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Stats is what a queue has seen and told since it was made.
type Stats struct {
	Position   string // as last appended
	Known      int    // objects known to exist
	Queued     int    // deltas that entered and are not appended yet
	LastSeen   time.Time
	LastChange time.Time             // zero until the first change
	Changes    map[event.Type]uint64 // by type
}

// Stats may be called at any time from any goroutine.
func (q *Queue) Stats() Stats {
	q.order.Lock()
	position, queued := q.stored, len(q.ledger.entries)
	q.order.Unlock()
	q.stats.mu.Lock()
	defer q.stats.mu.Unlock()
	s := Stats{Position: position, Known: q.known.count(), Queued: queued, LastSeen: q.stats.lastSeen, LastChange: q.stats.lastChange, Changes: map[event.Type]uint64{}}
	for t, n := range q.stats.changes {
		s.Changes[t] = n
	}
	return s
}

type counters struct {
	mu                   sync.Mutex
	lastSeen, lastChange time.Time
	changes              map[event.Type]uint64
}

// event notes that the API server said something: an event, a bookmark or a list.
func (c *counters) event(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastSeen = at
}

func (c *counters) count(changes []*event.Change) {
	if len(changes) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changes == nil {
		c.changes = map[event.Type]uint64{}
	}
	for _, ch := range changes {
		c.changes[ch.Type]++
		c.lastChange = ch.ObservedAt
	}
}
