package audit_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// newWebhook returns a webhook without a listener. beforeStore is called before it stores events.
func newWebhook(t *testing.T, taking func()) *webhookServer {
	t.Helper()
	s := newWebhookAt(t, "unused:0")
	s.beforeStore = taking
	return s
}

// newRequest returns a request without a Content-Length, which acquires the memory of the largest body.
func (s *webhookServer) newRequest(ctx context.Context, t *testing.T) *http.Request {
	t.Helper()
	certificate, err := x509.ParseCertificate(s.clientConfig(t, s.authority, "kube-apiserver").Certificates[0].Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, s.url, strings.NewReader(list))
	r.ContentLength = -1
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate}, VerifiedChains: [][]*x509.Certificate{{certificate}}}
	return r
}

// TestQueuedBodyIsRetriedAfterStop acquires all memory with bodies that are not durable yet.
func TestQueuedBodyIsRetriedAfterStop(t *testing.T) {
	begun, durable := make(chan struct{}), make(chan struct{})
	s := newWebhook(t, func() { begun <- struct{}{}; <-durable })
	var all sync.WaitGroup
	for range 2 {
		request := s.newRequest(t.Context(), t)
		all.Go(func() { s.ServeHTTP(httptest.NewRecorder(), request) })
		<-begun
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, s.newRequest(stopped, t))
	if answer.Code != http.StatusServiceUnavailable {
		t.Errorf("answered %d", answer.Code)
	}
	close(durable)
	all.Wait()
}

// deadlineRecorder records the read deadline of the connection.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	until time.Time
}

func (d *deadlineRecorder) SetReadDeadline(until time.Time) error {
	d.until = until
	return nil
}

// TestStoringEventsOutlivesBodyTimeout checks that the read deadline is cleared before events are stored.
func TestStoringEventsOutlivesBodyTimeout(t *testing.T) {
	d := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
	begun := false
	s := newWebhook(t, func() {
		if begun = true; !d.until.IsZero() {
			t.Error("the connection has a deadline")
		}
	})
	s.ServeHTTP(d, s.newRequest(t.Context(), t))
	if !begun || d.Code != http.StatusOK {
		t.Errorf("answered %d", d.Code)
	}
}
