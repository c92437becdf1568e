package apiserver

import (
	"net/http"
	"sync/atomic"
	"time"
)

// clock compares this machine's clock with the date of each answer.
type clock struct {
	skew atomic.Int64 // nanoseconds that this machine is ahead
}

func (c *clock) wrap(next http.RoundTripper) http.RoundTripper { return &dated{next, c} }

// dated is a transport whose answers are compared with the clock.
type dated struct {
	http.RoundTripper
	clock *clock
}

func (d *dated) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := d.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		d.clock.note(time.Now(), date)
	}
	return answer, nil
}

// WrappedRoundTripper lets client-go find the transport below.
func (d *dated) WrappedRoundTripper() http.RoundTripper { return d.RoundTripper }

// note takes a date, which has whole seconds: what a second explains is no skew.
func (c *clock) note(now, date time.Time) {
	skew := now.Sub(date)
	if skew >= 0 {
		skew -= min(skew, time.Second)
	}
	c.skew.Store(int64(skew))
}
