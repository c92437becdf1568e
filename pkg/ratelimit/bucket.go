package ratelimit

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// Bucket is a token bucket: a steady rate with bursts. The zero value has no limit.
type Bucket struct {
	limiter *rate.Limiter // nil: no limit
}

// NewBucket returns a full Bucket that refills with perSecond tokens a second and holds at most burst. A rate of zero or
// less is no limit; a burst below one counts as one.
func NewBucket(perSecond float64, burst int) *Bucket {
	if perSecond <= 0 {
		return &Bucket{}
	}
	return &Bucket{limiter: rate.NewLimiter(rate.Limit(perSecond), max(burst, 1))}
}

// Wait waits for n tokens, takes them and returns nil, or the error of ctx when that ends first. n may exceed the burst: the
// tokens are then taken in portions. Unlike in rate.Limiter, a deadline that cannot be met is no error before it passes.
func (b *Bucket) Wait(ctx context.Context, n int) error {
	if b.limiter == nil {
		return ctx.Err()
	}
	for n > 0 {
		portion := min(n, b.limiter.Burst())
		reservation := b.limiter.ReserveN(time.Now(), portion)
		if err := Sleep(ctx, reservation.Delay()); err != nil {
			reservation.Cancel()
			return err
		}
		n -= portion
	}
	return ctx.Err()
}
