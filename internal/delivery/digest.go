package delivery

import (
	"log/slog"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// digestInterval is how often truncated changes and dead letters are logged, in one line each.
const digestInterval = 10 * time.Second

// logDigest gathers what would otherwise be one log line per change. Safe for concurrent use.
type logDigest struct {
	log *slog.Logger

	mu      sync.Mutex
	current digestCounts
	logged  time.Time // when the last lines were written
}

type digestCounts struct {
	truncated      uint64   // truncated changes that are in the log already
	lastKey        string   // of the change that was truncated last
	omitted        []string // what that lacks
	lastReason     string   // why it was truncated
	deadLetters    int      // since the last line
	deadLetterText string   // reason of the last one
}

// addTruncated records that a truncated change is tried, and why. The destination may still reject it.
func (d *logDigest) addTruncated(c *event.Change, reason error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current.lastKey, d.current.omitted, d.current.lastReason = c.Key(), c.Omitted, reason.Error()
}

func (d *logDigest) addDeadLetter(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current.deadLetters++
	d.current.deadLetterText = err.Error()
}

// writeIfDue logs what was gathered if the last lines are old enough. truncated is the number of changes that were delivered
// truncated since the pipeline was made.
func (d *logDigest) writeIfDue(now time.Time, truncated uint64) {
	g, due := d.takeIfDue(now, truncated)
	if !due {
		return
	}
	if count := truncated - g.truncated; count > 0 {
		d.log.Warn("changes are too large for the destination and were delivered truncated; "+
			"onOversize: deadLetter keeps them complete",
			"count", count, "last", g.lastKey, "without", g.omitted, "reason", g.lastReason)
	}
	if g.deadLetters > 0 {
		d.log.Warn("changes were permanently rejected and are dead letters",
			"code", string(condition.DeadLettersKept), "count", g.deadLetters, "lastReason", g.deadLetterText)
	}
}

// takeIfDue returns what was gathered since the last lines and resets it, if there is something to log now.
func (d *logDigest) takeIfDue(now time.Time, truncated uint64) (g digestCounts, due bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g = d.current
	if now.Sub(d.logged) < digestInterval || g.truncated == truncated && g.deadLetters == 0 {
		return g, false
	}
	d.current.truncated, d.current.deadLetters, d.logged = truncated, 0, now
	return g, true
}
