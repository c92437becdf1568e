package apiserver

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"time"
)

// transport is what all requests go through. It asks for answers without compression, and refuses others: to ask for nothing
// would allow any. And it compares this machine's clock with the date of each answer.
type transport struct {
	http.RoundTripper
	skew *atomic.Int64
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Accept-Encoding", "identity")
	answer, err := t.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		t.skew.Store(int64(clockSkewAt(time.Now(), date)))
	}
	if coding := answer.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		_ = answer.Body.Close() // it was read by nobody
		return nil, fmt.Errorf("what answers at %s compresses (Content-Encoding: %s), though it was asked not to: look at the proxy there", r.URL.Host, coding)
	}
	return answer, nil
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

// clockSkewAt is how far now is ahead of a date, which has whole seconds: what a second explains is no skew.
func clockSkewAt(now, date time.Time) time.Duration {
	skew := now.Sub(date)
	if skew >= 0 {
		skew -= min(skew, time.Second)
	}
	return skew
}
