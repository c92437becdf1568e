package delivery

import (
	"log/slog"
	"sync"
	"time"
)

// digestEvery is how often the log tells of changes that were not delivered as they are: one line about dead letters, and
// one about reduced changes.
const digestEvery = 10 * time.Second

// digest gathers what would be a line for each change. Safe for concurrent use.
type digest struct {
	log *slog.Logger

	mu         sync.Mutex
	reduced    uint64 // changes delivered in part, of which the log told
	tooLarge   string // why the last change was
	dead       int
	deadReason string
	logged     time.Time // when the last lines were written
}

// addTooLarge notes why a change is tried without a part of it. It may be refused even so.
func (d *digest) addTooLarge(reason error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tooLarge = reason.Error()
}

// addDead notes a change that was rejected for ever.
func (d *digest) addDead(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead++
	d.deadReason = err.Error()
}

// write writes what was gathered, if the last time is long enough ago. reduced changes were delivered in part since the
// pipeline was made.
func (d *digest) write(now time.Time, reduced uint64, last inPart) {
	d.mu.Lock()
	count := reduced - d.reduced
	if now.Sub(d.logged) < digestEvery || count == 0 && d.dead == 0 {
		d.mu.Unlock()
		return
	}
	dead, tooLarge, deadReason := d.dead, d.tooLarge, d.deadReason
	d.reduced, d.dead, d.logged = reduced, 0, now
	d.mu.Unlock()
	if count > 0 {
		d.log.Warn("changes are too large for the destination and were delivered without parts of them; "+
			"onOversize: deadLetter keeps them whole",
			"count", count, "last", last.key, "without", last.without, "reason", tooLarge)
	}
	if dead > 0 {
		d.log.Warn("changes were rejected for ever and are dead letters", "count", dead, "lastReason", deadReason)
	}
}
