package main

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

// checker is a sink that can look for its destination before there is anything to deliver.
type checker interface {
	Check(ctx context.Context) error
}

// prober is a checker that has to ask whether its destination is still there: nobody tells it.
type prober interface {
	// StillThere returns an error when the destination is away. It need not ask if it has heard of it within quiet.
	StillThere(ctx context.Context, quiet time.Duration) error
}

// probeEvery is how often an idle sink asks. An outage then shows before most alerts would look, and a request costs little.
const probeEvery = 15 * time.Second

// reach looks for a sink's destination until it is there, so that readiness tells the truth of an exporter that has
// nothing to deliver yet, and from then on whether it is still there. Why it is not is told by the sink's own status.
func reach(ctx context.Context, c checker, retry config.Retry) error {
	insist(ctx, retry, c.Check)
	p, ok := c.(prober)
	if !ok {
		return nil
	}
	every := time.NewTicker(probeEvery)
	defer every.Stop()
	for {
		select {
		case <-every.C:
			insist(ctx, retry, func(ctx context.Context) error { return p.StillThere(ctx, probeEvery) })
		case <-ctx.Done():
			return nil
		}
	}
}

// insist asks, with back-off, until there is no error or ctx ends.
func insist(ctx context.Context, retry config.Retry, ask func(context.Context) error) {
	backoff := ratelimit.NewBackoff[struct{}](retry.Min, retry.Max, rand.Float64)
	for ask(ctx) != nil {
		select {
		case <-time.After(backoff.When(struct{}{})):
		case <-ctx.Done():
			return
		}
	}
}
