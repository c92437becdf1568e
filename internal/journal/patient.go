package journal

import (
	"context"
	"slices"
	"time"
)

const (
	lowPriorityDelay    = 20 * time.Millisecond // how long a patient request waits for a group that is committed anyway
	maxLowPriorityBytes = 256 << 10             // of patient requests in a group, unless one alone is larger: changes wait for the group
)

// lowPriorityQueue are requests that join a group which others have begun, because nobody waits for them as a change is waited for:
// however many there are, they cost changes no fsync, and each group a bounded number of bytes.
type lowPriorityQueue struct {
	queue []queued // in order of arrival
	since time.Time
}

// isDue says whether a group is to be begun for them.
func (p *lowPriorityQueue) isDue(ended bool) bool {
	return len(p.queue) > 0 && (ended || time.Since(p.since) >= lowPriorityDelay)
}

// takeBatch removes those that join the next group.
func (p *lowPriorityQueue) takeBatch() []queued {
	n, bytes := 0, int64(0)
	for n < len(p.queue) && (n == 0 || bytes+p.queue[n].size <= maxLowPriorityBytes) {
		bytes += p.queue[n].size
		n++
	}
	taken := slices.Clone(p.queue[:n])
	clear(p.queue[:n])
	if p.queue = p.queue[n:]; len(p.queue) == 0 {
		p.queue = nil
	}
	return taken
}

// armLowPriority begins to wait for a group. The caller holds mu.
func (j *Journal) armLowPriority() {
	j.lowPriority.since = time.Now()
	time.AfterFunc(lowPriorityDelay, j.signalCommitter)
}

// submitLowPriority is submit for a request of so many bytes that lets others go first.
func (j *Journal) submitLowPriority(ctx context.Context, r request, size int64) error {
	done := make(chan error, 1)
	j.mu.Lock()
	if err := j.checkUsable(); err != nil {
		j.mu.Unlock()
		return err
	}
	if len(j.lowPriority.queue) == 0 {
		j.armLowPriority()
	}
	j.lowPriority.queue = append(j.lowPriority.queue, queued{request: r, size: size, done: done})
	j.mu.Unlock()
	return j.waitForOutcome(ctx, done)
}
