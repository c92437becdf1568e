package delivery

import (
	"log/slog"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// digestEvery is how often the log tells of changes that were not delivered as they are: one line about dead letters, and
// one about reduced changes.
const digestEvery = 10 * time.Second

// digest gathers what would be a line for each change. Safe for concurrent use.
type digest struct {
	log *slog.Logger

	mu     sync.Mutex
	now    gathered
	logged time.Time // when the last lines were written
}

type gathered struct {
	reduced    uint64   // changes delivered in part, of which the log told
	last       string   // the key of the last one that was made smaller
	without    []string // what it lacks
	tooLarge   string   // why
	dead       int
	deadReason string
}

// addReduced notes a change that is tried without parts of it, and why. It may be refused even so.
func (d *digest) addReduced(c *event.Change, reason error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now.last, d.now.without, d.now.tooLarge = c.Key(), c.Omitted, reason.Error()
}

// addDead notes a change that was rejected for ever.
func (d *digest) addDead(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now.dead++
	d.now.deadReason = err.Error()
}

// write writes what was gathered, if the last time is long enough ago. reduced changes were delivered in part since the
// pipeline was made.
func (d *digest) write(now time.Time, reduced uint64) {
	g, due := d.take(now, reduced)
	if !due {
		return
	}
	if count := reduced - g.reduced; count > 0 {
		d.log.Warn("changes are too large for the destination and were delivered without parts of them; "+
			"onOversize: deadLetter keeps them whole",
			"count", count, "last", g.last, "without", g.without, "reason", g.tooLarge)
	}
	if g.dead > 0 {
		d.log.Warn("changes were rejected for ever and are dead letters", "count", g.dead, "lastReason", g.deadReason)
	}
}

// take returns what was gathered, and whether it is to be logged, which ends it.
func (d *digest) take(now time.Time, reduced uint64) (g gathered, due bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g = d.now
	if now.Sub(d.logged) < digestEvery || g.reduced == reduced && g.dead == 0 {
		return g, false
	}
	d.now.reduced, d.now.dead, d.logged = reduced, 0, now
	return g, true
}
