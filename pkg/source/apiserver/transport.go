package apiserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/source/decode"
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

// leaveOutText returns a RoundTripper with the responses of next, but of failures only what [decode.KnownStatus] leaves:
// it cannot be known what else they quote. Each client wraps its requests in it.
func leaveOutText(next http.RoundTripper) http.RoundTripper { return &textFilter{next} }

type textFilter struct{ http.RoundTripper }

// maxStatusBytes bounds what is read of a failure.
const maxStatusBytes = 64 << 10

func (f *textFilter) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := f.RoundTripper.RoundTrip(r)
	if err != nil || answer.StatusCode < http.StatusBadRequest {
		return answer, err
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxStatusBytes))
	_ = answer.Body.Close() // what is left is discarded
	if err != nil {
		return nil, err
	}
	var status metav1.Status
	if json.Unmarshal(body, &status) != nil || status.Kind != "Status" {
		body = nil // client-go makes an error of the code
	} else if body, err = json.Marshal(decode.KnownStatus(&status)); err != nil {
		return nil, err
	}
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return answer, nil
}

// WrappedRoundTripper lets client-go find the wrapped transport.
func (f *textFilter) WrappedRoundTripper() http.RoundTripper { return f.RoundTripper }
