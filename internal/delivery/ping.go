package delivery

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// pingInterval is how often an idle destination is asked. An outage then shows before most alerts would look, and a request
// costs little.
const pingInterval = 15 * time.Second

// pingSink asks whether the destination is there while nothing tells, so that an exporter with nothing to deliver is known to
// work, or not to.
func (p *Pipeline) pingSink(ctx context.Context) {
	pinger, ok := p.sink.(sinks.Pinger)
	if !ok {
		return
	}
	PingRegularly(ctx, pinger, p.cfg.Retry, func() bool { return p.backlog.isQuietSince(time.Now().Add(-pingInterval)) }, p.health.recordPing)
}

// PingRegularly asks a destination until ctx ends: until it answers, with back-off, and from then on now and then while idle says
// that there was nothing to tell how it is. heard, which is called from one goroutine, is told when each question was asked
// and what came of it.
func PingRegularly(ctx context.Context, pinger sinks.Pinger, retry RetryConfig, idle func() bool,
	heard func(asked time.Time, err error),
) {
	backoff := ratelimit.NewBackoff[struct{}](retry.Min, retry.Max, rand.Float64)
	for wait := time.Duration(0); ; {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		wait = pingInterval
		if !idle() {
			continue
		}
		asked := time.Now()
		err := pinger.Ping(ctx)
		if ctx.Err() != nil {
			return
		}
		heard(asked, err)
		if err == nil {
			backoff.Forget(struct{}{})
			continue
		}
		wait = backoff.When(struct{}{})
	}
}
