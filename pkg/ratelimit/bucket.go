package ratelimit

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// Bucket lets tokens through at a steady rate with bursts. The zero value lets everything through.
type Bucket struct {
	limiter *rate.Limiter // nil: no limit
}

// NewBucket returns a full Bucket that refills with perSecond tokens a second and holds at most burst. A rate of zero
// or less means no limit; a burst below one is taken as one.
func NewBucket(perSecond float64, burst int) *Bucket {
	if perSecond <= 0 {
		return &Bucket{}
	}
	return &Bucket{limiter: rate.NewLimiter(rate.Limit(perSecond), max(burst, 1))}
}

// Wait takes n tokens, waiting for them as long as it must, and returns nil; or the context's error when ctx ends
// first. n may exceed the burst: the tokens are then taken in portions. A deadline that cannot be met is not an error
// before it passes, unlike in rate.Limiter.
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
