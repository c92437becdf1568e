package ratelimit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestBucketLetsTheBurstThroughAndThenTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, start := NewBucket(10, 5), time.Now()
		for i, want := range []time.Duration{0, 0, 0, 0, 0, 100 * time.Millisecond, 200 * time.Millisecond} {
			if err := b.Wait(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			if got := time.Since(start); got != want {
				t.Errorf("token %d after %v, want %v", i, got, want)
			}
		}
	})
}

func TestMoreTokensThanTheBurstAreTakenInPortions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, start := NewBucket(10, 5), time.Now()
		if err := b.Wait(t.Context(), 25); err != nil {
			t.Fatal(err)
		}
		if got, want := time.Since(start), 2*time.Second; got != want {
			t.Errorf("25 tokens at 10/s with burst 5 took %v, want %v", got, want)
		}
	})
}

func TestCancelledWaitGivesItsTokensBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, start := NewBucket(1, 10), time.Now()
		if err := b.Wait(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.Wait(ctx, 10); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want the deadline", err)
		}
		if got := time.Since(start); got != time.Second {
			t.Errorf("cancelled wait returned after %v, want 1s: a far deadline is no error before it passes", got)
		}
		if err := b.Wait(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if got := time.Since(start); got != time.Second {
			t.Errorf("token granted after %v, want 1s: the cancelled ten must not count", got)
		}
	})
}

func TestNoRateMeansNoLimit(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	b := NewBucket(0, 0)
	if err := b.Wait(ctx, 1<<30); err != nil {
		t.Error(err)
	}
	cancel()
	if err := b.Wait(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v after cancel, want context.Canceled", err)
	}
}
