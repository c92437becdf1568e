package attribution

import (
	"context"
	"encoding/json"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// RecordLoss says that audit events were lost on their way between a time, or the last loss if that is zero, and now, for a reason
// in one sentence. It returns when that is durable, and fails when the journal does.
func (a *Attributor) RecordLoss(ctx context.Context, since time.Time, reason string) error {
	if err := a.awaitLoaded(ctx); err != nil {
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
	if err := a.options.Journal.StoreEvidence(ctx, evidence, "", ""); err != nil {
		a.dropEvidence(evidence)
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.losses.addLoss(l)
	return nil
}

// newLoss returns a loss that is to be kept; nil where one that is kept goes on.
func (a *Attributor) newLoss(since, now time.Time, reason string) *Loss {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.losses.extendLoss(reason, now) {
		return nil
	}
	if since.IsZero() {
		since = a.losses.lastLoss
	}
	return &Loss{Numbers: []uint64{a.matcher.NextNumber()}, Reason: reason, From: since, To: now}
}
