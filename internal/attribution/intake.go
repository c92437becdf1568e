package attribution

import (
	"context"
	"encoding/json"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// StoreEvents adds audit events of one origin, in the order in which they were read. It returns when the events that may
// name an author are durable. place and position, unless place is empty, are stored in the same commit: how far a log was
// read. It fails if the journal does.
func (a *Attributor) StoreEvents(ctx context.Context, origin string, events []audit.Event, place, position string) error {
	if err := a.awaitLoaded(ctx); err != nil {
		return err
	}
	now := time.Now()
	a.counters.countEvents(len(events), now)
	requests, evidence, err := a.selectRequests(origin, events, now)
	if err != nil || len(requests) == 0 && place == "" {
		return err
	}
	if err := a.options.Journal.StoreEvidence(ctx, evidence, place, position); err != nil {
		if place == "" { // the sender repeats the events; events with a stored position are not read again
			a.shared.dropEvidence(evidence)
		}
		return err
	}
	a.counters.kept.Add(uint64(len(requests)))
	a.shared.addRequests(requests)
	return nil
}

// RecordLoss records that audit events were lost between since and now, for a reason in one sentence. A zero since stands
// for the end of the last loss. It returns when that is durable, and fails if the journal does.
func (a *Attributor) RecordLoss(ctx context.Context, since time.Time, reason string) error {
	if err := a.awaitLoaded(ctx); err != nil {
		return err
	}
	a.counters.lost.Add(1)
	return a.RecordGap(ctx, since, reason)
}

// RecordGap is RecordLoss for a gap that no lost event causes.
func (a *Attributor) RecordGap(ctx context.Context, since time.Time, reason string) error {
	if err := a.awaitLoaded(ctx); err != nil {
		return err
	}
	l := a.shared.newLoss(since, time.Now(), reason)
	if l == nil {
		return nil
	}
	value, err := json.Marshal(l)
	if err != nil {
		return err
	}
	evidence := []event.Evidence{{Number: l.Numbers[0], Value: value}}
	if err := a.options.Journal.StoreEvidence(ctx, evidence, "", ""); err != nil {
		a.shared.dropEvidence(evidence)
		return err
	}
	a.shared.addLoss(l)
	return nil
}

// awaitLoaded waits until the evidence of earlier processes is loaded: new evidence must not use their numbers.
func (a *Attributor) awaitLoaded(ctx context.Context) error {
	select {
	case <-a.loaded:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// selectRequests returns the events that may name an author, numbered, with their stored form.
func (a *Attributor) selectRequests(
	origin string, events []audit.Event, now time.Time,
) (requests []*Request, evidence []event.Evidence, err error) {
	for i := range events {
		e := &events[i]
		if !e.IsWrite() || !a.options.Selected(e.Group, e.Resource) {
			continue
		}
		r := &Request{Event: *e, Origin: origin, Arrived: now}
		if len(claimsOfRequest(&waitingRequest{Request: r}, a.options.Likely)) == 0 {
			continue
		}
		if !a.shared.numberRequest(r) {
			continue
		}
		if r.Lag > 0 {
			a.counters.late.Add(1)
		}
		if err := r.encodeEvidence(); err != nil {
			return nil, nil, err
		}
		requests, evidence = append(requests, r), append(evidence, event.Evidence{Number: r.Number, Value: r.encoded})
	}
	return requests, evidence, nil
}
