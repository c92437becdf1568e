package delivery

import (
	"log/slog"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// digestEvery is how often the log tells of changes that were not delivered as they are: one line about dead letters, and
// one about reduced changes.
const digestEvery = 10 * time.Second

// digest gathers what would be a line for each change. Safe for concurrent use.
type digest struct {
	log *slog.Logger

	mu         sync.Mutex
	reduced    int
	last       *event.Change // that was reduced, without its bodies
	why        string        // it was
	dead       int
	deadReason string
	logged     time.Time // when the last lines were written
}

// addReduced notes that a change was too large and is sent without a part of it. Several steps of one change count once.
func (d *digest) addReduced(c *event.Change, reason *sinks.RejectedError) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == nil || d.last.ID() != c.ID() {
		d.reduced++
	}
	d.last, d.why = &event.Change{
		Type: c.Type, Cluster: c.Cluster, Resource: c.Resource, Namespace: c.Namespace, Name: c.Name, UID: c.UID,
		ResourceVersion: c.ResourceVersion, Snapshot: c.Snapshot, Pass: c.Pass, Omitted: c.Omitted,
	}, reason.Error()
}

// addDead notes a change that was rejected for ever.
func (d *digest) addDead(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead++
	d.deadReason = err.Error()
}

// write writes what was gathered, if the last time is long enough ago.
func (d *digest) write(now time.Time) {
	d.mu.Lock()
	if now.Sub(d.logged) < digestEvery || d.reduced+d.dead == 0 {
		d.mu.Unlock()
		return
	}
	reduced, dead, last, why, deadReason := d.reduced, d.dead, d.last, d.why, d.deadReason
	d.reduced, d.dead, d.logged = 0, 0, now
	d.mu.Unlock()
	if reduced > 0 {
		d.log.Warn("changes are too large for the destination and are sent without parts of them; onOversize: deadLetter keeps them whole",
			"count", reduced, "last", last.Key(), "without", last.Omitted, "reason", why)
	}
	if dead > 0 {
		d.log.Warn("changes were rejected for ever and are dead letters", "count", dead, "lastReason", deadReason)
	}
}
