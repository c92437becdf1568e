package delivery

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

// pingInterval is how often an idle destination is pinged. An outage then shows before most alerts fire, and a request costs
// little.
const pingInterval = 15 * time.Second

// PingRegularly pings a destination until ctx ends: with back-off until it answers, and then every 15 s while isIdle returns
// true. record gets the result of each ping; one goroutine calls it.
func PingRegularly(ctx context.Context, ping func(context.Context) error, retry RetryConfig, isIdle func() bool,
	record func(err error),
) {
	backoff := ratelimit.NewBackoff[struct{}](retry.Min, retry.probeMax(), rand.Float64)
	for wait := time.Duration(0); ; {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		wait = pingInterval
		if !isIdle() {
			continue
		}
		err := ping(ctx)
		if ctx.Err() != nil {
			return
		}
		record(err)
		if err == nil {
			backoff.Forget(struct{}{})
			continue
		}
		wait = backoff.When(struct{}{})
	}
}
