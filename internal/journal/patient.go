package journal

import (
	"context"
	"slices"
	"time"
)

const (
	patience     = 20 * time.Millisecond // how long a patient request waits for a group that is committed anyway
	patientBytes = 256 << 10             // of patient requests in a group, unless one alone is larger: changes wait for the group
)

// patient are requests that join a group which others have begun, because nobody waits for them as a change is waited for:
// however many there are, they cost changes no fsync, and each group a bounded number of bytes.
type patient struct {
	queue []queued // in order of arrival
	since time.Time
}

// waits says whether a group is to be begun for them.
func (p *patient) waits(ended bool) bool {
	return len(p.queue) > 0 && (ended || time.Since(p.since) >= patience)
}

// take removes those that join the next group.
func (p *patient) take() []queued {
	n, bytes := 0, int64(0)
	for n < len(p.queue) && (n == 0 || bytes+p.queue[n].size <= patientBytes) {
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

// wait begins to wait for a group. The caller holds mu.
func (j *Journal) wait() {
	j.patient.since = time.Now()
	time.AfterFunc(patience, j.poke)
}

// submitPatiently is submit for a request of so many bytes that lets others go first.
func (j *Journal) submitPatiently(ctx context.Context, r request, size int64) error {
	done := make(chan error, 1)
	j.mu.Lock()
	if err := j.refusal(); err != nil {
		j.mu.Unlock()
		return err
	}
	if len(j.patient.queue) == 0 {
		j.wait()
	}
	j.patient.queue = append(j.patient.queue, queued{request: r, size: size, done: done})
	j.mu.Unlock()
	return j.outcome(ctx, done)
}
