package attribution

import (
	"context"
	"encoding/json"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Lost says that audit events were lost on their way between a time, or the last loss if that is zero, and now, for a reason
// in one sentence. It returns when that is durable, and fails when the journal does.
func (a *Attributor) Lost(ctx context.Context, since time.Time, reason string) error {
	if err := a.loaded(ctx); err != nil {
		return err
	}
	a.lost.Add(1)
	l := a.newLoss(since, time.Now(), reason)
	if l == nil {
		return nil
	}
	value, err := json.Marshal(l)
	if err != nil {
		return err
	}
	evidence := []event.Evidence{{Number: l.Numbers[0], Value: value}}
	if err := a.options.Journal.KeepEvidence(ctx, evidence, "", ""); err != nil {
		a.disown(evidence)
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gaps.lose(l)
	return nil
}

// newLoss returns a loss that is to be kept; nil where one that is kept goes on.
func (a *Attributor) newLoss(since, now time.Time, reason string) *Loss {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gaps.goesOn(reason, now) {
		return nil
	}
	if since.IsZero() {
		since = a.gaps.since
	}
	return &Loss{Numbers: []uint64{a.join.Number()}, Reason: reason, From: since, To: now}
}
