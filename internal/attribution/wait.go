package attribution

import (
	"context"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// AwaitAuthors returns the first of some records of the journal, at least one: those of which it is known who made them, or that it
// will not be known before they have waited for that long since they were observed. records is not empty. It returns early,
// with the cause, when ctx ends.
func (a *Attributor) AwaitAuthors(ctx context.Context, records []event.Record, wait time.Duration) ([]event.Record, error) {
	for {
		n, decided := a.countReady(records, wait)
		if n > 0 {
			return records[:n], nil
		}
		timer := time.NewTimer(wait - time.Since(records[0].Change.ObservedAt))
		select {
		case <-decided:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
		timer.Stop()
	}
}

// countReady counts the records that need not wait, up to the first that does. again is closed when that may be another number.
func (a *Attributor) countReady(records []event.Record, wait time.Duration) (n int, again <-chan struct{}) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range records {
		old := now.Sub(r.Change.ObservedAt) >= wait
		if !old && (r.Offset > a.read || a.matcher.IsWaiting(r.Offset)) {
			break
		}
		n++
	}
	return n, a.progress
}

// IsWaiting says whether the change at an offset waits for its author.
func (j *Matcher) IsWaiting(offset uint64) bool {
	i, there := slices.BinarySearchFunc(j.changes, offset, func(p *pendingChange, offset uint64) int { return int(p.Offset) - int(offset) })
	return there && !j.changes[i].resolved
}
