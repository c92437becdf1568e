package apiserver

import (
	"fmt"
	"net/http"
)

// plain is a transport that asks for answers without compression, and refuses others. To ask for nothing would allow any.
type plain struct{ http.RoundTripper }

func (p plain) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Accept-Encoding", "identity")
	answer, err := p.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if coding := answer.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		_ = answer.Body.Close() // it was read by nobody
		return nil, fmt.Errorf("what answers at %s compresses (Content-Encoding: %s), though it was asked not to: look at the proxy there", r.URL.Host, coding)
	}
	return answer, nil
}

// WrappedRoundTripper lets client-go find the transport below.
func (p plain) WrappedRoundTripper() http.RoundTripper { return p.RoundTripper }
