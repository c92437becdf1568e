package attribution

import (
	"context"
	"fmt"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// loadStored takes up what an earlier process waited with. A journal that was filled before anybody was named is not gone through.
func (a *Attributor) loadStored(ctx context.Context) error {
	cursor, settled, err := a.options.Journal.Cursor(Sink)
	if err != nil {
		return err
	}
	if !settled {
		cursor = event.Cursor{Low: a.startOffset}
		if err := a.options.Journal.Settle(ctx, Sink, cursor, nil); err != nil {
			return err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.signalResolved()
	a.read, a.matcher.startedAt = cursor.Low, time.Now()
	if err := a.loadResources(); err != nil {
		return err
	}
	return a.options.Journal.ForEachEvidence(a.loadEvidence)
}

// loadResources learns which resources a loss concerns, before anything is emitted of them. The caller holds mu.
func (a *Attributor) loadResources() error {
	names, err := a.options.Journal.Resources()
	if err != nil {
		return err
	}
	for _, name := range names {
		stored, err := a.options.Journal.LoadResource(name, nil)
		if err != nil {
			return err
		}
		if r := stored.Resource; a.options.Selected(r.Group, r.Resource) {
			a.losses.recordResource(r)
		}
	}
	return nil
}

// loadEvidence takes up what an earlier process kept. The caller holds mu.
func (a *Attributor) loadEvidence(e event.Evidence) error {
	kept, err := decodeEvidence(e)
	if err != nil {
		return fmt.Errorf("evidence %d: %w", e.Number, err)
	}
	a.matcher.ReserveNumber(e.Number)
	switch kept := kept.(type) {
	case *DeleteMark:
		a.matcher.AddDeleteMark(kept)
	case *Loss:
		a.losses.addLoss(kept)
	case *Request:
		kept.Arrived = a.matcher.startedAt
		a.addRequest(kept)
	}
	return nil
}
