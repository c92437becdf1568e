package apiserver

import (
	"testing"
	"time"
)

func TestOneSecondIsNoClockSkew(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct{ now, want time.Duration }{
		{0, 0}, {900 * time.Millisecond, 0}, {time.Hour + time.Second, time.Hour}, {-time.Hour, -time.Hour},
	} {
		if got := clockSkewAt(at.Add(c.now), at); got != c.want {
			t.Errorf("%v ahead of the date: %v, want %v", c.now, got, c.want)
		}
	}
}
