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

// reach looks for a sink's destination until it is there, so that readiness tells the truth of an exporter that has
// nothing to deliver yet. Why it is not there is told by the sink's own status. Afterwards the sink keeps the connection.
func reach(ctx context.Context, c checker, retry config.Retry) error {
	backoff := ratelimit.NewBackoff[checker](retry.Min, retry.Max, rand.Float64)
	for c.Check(ctx) != nil {
		select {
		case <-time.After(backoff.When(c)):
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}
