package attribution

import (
	"context"
	"encoding/json"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// writeResolved writes what can be concluded.
func (a *Attributor) writeResolved(ctx context.Context, now time.Time) error {
	found, changes, cursor := a.resolvePending(now)
	for i := range found.Resolved {
		if c := &found.Resolved[i]; c.By != nil {
			changes = append(changes, attributedRecord(c, now))
		}
	}
	a.updateCondition()
	if len(changes)+len(found.Resolved)+len(found.Marks)+len(found.Drop) == 0 && !a.cursorLags(cursor) {
		return nil
	}
	keep, err := encodeMarks(found.Marks)
	if err != nil {
		return err
	}
	if err := a.options.Journal.AppendAttributions(ctx, Sink, event.Cursor{Low: cursor}, changes, keep, found.Drop); err != nil {
		return err
	}
	a.storedCursor = cursor
	a.mu.Lock()
	a.signalResolved()
	a.mu.Unlock()
	a.countResolved(found.Resolved)
	return nil
}

func (a *Attributor) countResolved(done []Resolution) {
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

func encodeMarks(marks []*DeleteMark) (all []event.Evidence, err error) {
	for _, m := range marks {
		value, err := json.Marshal(m)
		if err != nil {
			return nil, err
		}
		all = append(all, event.Evidence{Number: m.Number, Value: value})
	}
	return all, nil
}

// signalResolved tells who awaits decisions that there are more of them. The caller holds mu.
func (a *Attributor) signalResolved() {
	close(a.progress)
	a.progress = make(chan struct{})
}

// cursorLags says whether the stored cursor holds much of the journal that nobody waits for.
func (a *Attributor) cursorLags(cursor uint64) bool { return cursor > a.storedCursor+1000 }

func (a *Attributor) resolvePending(now time.Time) (found Findings, gaps []*event.Change, cursor uint64) {
	crowded := a.options.JournalCrowded != nil && a.options.JournalCrowded()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.matcher.Resolve(now)
	if crowded {
		a.matcher.ResolveAll()
	}
	found = a.matcher.TakeFindings()
	if n := a.matcher.evicted; n > 0 {
		a.matcher.evicted = 0
		a.lost.Add(n)
		if reason := "audit events had to make room for newer ones"; !a.losses.extendLoss(reason, now) {
			a.losses.addLoss(&Loss{Reason: reason, From: a.losses.lastLoss, To: now})
		}
	}
	gaps, told := a.losses.collectGaps(found.Resolved, a.lastEventTime(), now)
	found.Drop = append(found.Drop, told...)
	cursor = a.read
	if oldest, waits := a.matcher.OldestWaiting(); waits {
		cursor = oldest - 1
	}
	a.pendingBytes.Store(int64(a.matcher.bytes.changes + a.matcher.bytes.requests))
	a.pendingCount.Store(int64(len(a.matcher.changes)))
	return found, gaps, cursor
}
