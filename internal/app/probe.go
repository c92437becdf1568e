package app

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

// checker is a sink that can ask for its destination before there is anything to deliver.
type checker interface {
	Check(ctx context.Context) error
}

// pinger is a checker that has to ask whether its destination is still there: nobody tells it.
type pinger interface {
	// Ping returns an error when the destination is away. It need not ask if it has heard of it within quiet.
	Ping(ctx context.Context, quiet time.Duration) error
}

// pingEvery is how often an idle sink asks. An outage then shows before most alerts would look, and a request costs little.
const pingEvery = 15 * time.Second

// probe asks for a sink's destination until it is there, so that readiness is right for an exporter that has nothing to
// deliver yet, and from then on whether it is still there. The sink's own status says why it is not.
func probe(ctx context.Context, c checker, retry config.Retry) error {
	retryUntil(ctx, retry, c.Check)
	p, ok := c.(pinger)
	if !ok {
		return nil
	}
	every := time.NewTicker(pingEvery)
	defer every.Stop()
	for {
		select {
		case <-every.C:
			retryUntil(ctx, retry, func(ctx context.Context) error { return p.Ping(ctx, pingEvery) })
		case <-ctx.Done():
			return nil
		}
	}
}

// retryUntil asks, with back-off, until there is no error or ctx ends.
func retryUntil(ctx context.Context, retry config.Retry, ask func(context.Context) error) {
	backoff := ratelimit.NewBackoff[struct{}](retry.Min, retry.Max, rand.Float64)
	for ask(ctx) != nil {
		select {
		case <-time.After(backoff.When(struct{}{})):
		case <-ctx.Done():
			return
		}
	}
}
