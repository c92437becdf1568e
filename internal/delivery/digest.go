package delivery

import (
	"log/slog"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// digestInterval is how often the log tells of changes that were not delivered as they are: one line about dead letters, and
// one about reduced changes.
const digestInterval = 10 * time.Second

// logDigest gathers what would be a line for each change. Safe for concurrent use.
type logDigest struct {
	log *slog.Logger

	mu      sync.Mutex
	current digestCounts
	logged  time.Time // when the last lines were written
}

type digestCounts struct {
	truncated   uint64   // changes delivered in part, of which the log told
	lastKey     string   // the key of the last one that was made smaller
	omitted     []string // what it lacks
	lastReason  string   // why
	deadLetters int
	deadReason  string
}

// addTruncated notes a change that is tried without parts of it, and why. It may be refused even so.
func (d *logDigest) addTruncated(c *event.Change, reason error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current.lastKey, d.current.omitted, d.current.lastReason = c.Key(), c.Omitted, reason.Error()
}

// addDeadLetter notes a change that was rejected for ever.
func (d *logDigest) addDeadLetter(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current.deadLetters++
	d.current.deadReason = err.Error()
}

// writeIfDue writes what was gathered, if the last time is long enough ago. reduced changes were delivered in part since the
// pipeline was made.
func (d *logDigest) writeIfDue(now time.Time, reduced uint64) {
	g, due := d.takeIfDue(now, reduced)
	if !due {
		return
	}
	if count := reduced - g.truncated; count > 0 {
		d.log.Warn("changes are too large for the destination and were delivered without parts of them; "+
			"onOversize: deadLetter keeps them whole",
			"count", count, "last", g.lastKey, "without", g.omitted, "reason", g.lastReason)
	}
	if g.deadLetters > 0 {
		d.log.Warn("changes were rejected for ever and are dead letters", "count", g.deadLetters, "lastReason", g.deadReason)
	}
}

// takeIfDue returns what was gathered, and whether it is to be logged, which ends it.
func (d *logDigest) takeIfDue(now time.Time, reduced uint64) (g digestCounts, due bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g = d.current
	if now.Sub(d.logged) < digestInterval || g.truncated == reduced && g.deadLetters == 0 {
		return g, false
	}
	d.current.truncated, d.current.deadLetters, d.logged = reduced, 0, now
	return g, true
}
