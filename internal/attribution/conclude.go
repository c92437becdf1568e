package attribution

import (
	"context"
	"encoding/json"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// conclude writes what can be concluded.
func (a *Attributor) conclude(ctx context.Context, now time.Time) error {
	found, changes, cursor := a.decide(now)
	for i := range found.Done {
		if c := &found.Done[i]; c.By != nil {
			changes = append(changes, record(c, now))
		}
	}
	a.report()
	if len(changes)+len(found.Done)+len(found.Marks)+len(found.Drop) == 0 && !a.behind(cursor) {
		return nil
	}
	keep, err := evidenceOf(found.Marks)
	if err != nil {
		return err
	}
	if err := a.options.Journal.Conclude(ctx, Sink, event.Cursor{Low: cursor}, changes, keep, found.Drop); err != nil {
		return err
	}
	a.settled = cursor
	a.mu.Lock()
	a.wake()
	a.mu.Unlock()
	a.count(found.Done)
	return nil
}

func (a *Attributor) count(done []Conclusion) {
	for i := range done {
		switch c := &done[i]; {
		case c.By == nil:
			a.unresolved[c.Reason].Add(1)
		case c.Likely:
			a.likely.Add(1)
		default:
			a.attributed.Add(1)
		}
	}
}

func evidenceOf(marks []*Mark) (all []event.Evidence, err error) {
	for _, m := range marks {
		value, err := json.Marshal(m)
		if err != nil {
			return nil, err
		}
		all = append(all, event.Evidence{Number: m.Number, Value: value})
	}
	return all, nil
}

// wake tells who awaits decisions that there are more of them. The caller holds mu.
func (a *Attributor) wake() {
	close(a.again)
	a.again = make(chan struct{})
}

// behind says whether the stored cursor holds much of the journal that nobody waits for.
func (a *Attributor) behind(cursor uint64) bool { return cursor > a.settled+1000 }

func (a *Attributor) decide(now time.Time) (found Findings, gaps []*event.Change, cursor uint64) {
	crowded := a.options.Crowded != nil && a.options.Crowded()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.join.Decide(now)
	if crowded {
		a.join.Expire()
	}
	found = a.join.Fetch()
	if n := a.join.crowded; n > 0 {
		a.join.crowded = 0
		a.lost.Add(n)
		if reason := "audit events had to make room for newer ones"; !a.gaps.goesOn(reason, now) {
			a.gaps.lose(&Loss{Reason: reason, From: a.gaps.since, To: now})
		}
	}
	gaps, told := a.gaps.observe(found.Done, a.heard(), now)
	found.Drop = append(found.Drop, told...)
	cursor = a.read
	if oldest, waits := a.join.Waiting(); waits {
		cursor = oldest - 1
	}
	a.pendingBytes.Store(int64(a.join.bytes.changes + a.join.bytes.requests))
	a.pendingCount.Store(int64(len(a.join.changes)))
	return found, gaps, cursor
}
