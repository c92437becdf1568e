package apiserver

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"time"
)

// transport wraps all requests. It asks for uncompressed responses (without the header a server may choose any coding) and
// rejects others, and it compares this machine's clock with the date of each response.
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
		_ = answer.Body.Close() // discarded unread
		return nil, fmt.Errorf("the response from %s is compressed (Content-Encoding: %s) although uncompressed data was requested: "+
			"look at the proxy there", r.URL.Host, coding)
	}
	return answer, nil
}

// WrappedRoundTripper lets client-go find the wrapped transport.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

// clockSkewAt returns how far now is ahead of a Date header. The header is truncated to seconds, so up to one second is no
// skew.
func clockSkewAt(now, date time.Time) time.Duration {
	skew := now.Sub(date)
	if skew >= 0 {
		skew -= min(skew, time.Second)
	}
	return skew
}
