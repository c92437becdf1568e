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

// newWebhook is a webhook that is asked without a connection. taking is called before it takes events.
func newWebhook(t *testing.T, taking func()) *webhookServer {
	t.Helper()
	s := newWebhookAt(t, "unused:0")
	s.beforeStore = taking
	return s
}

// newRequest is one of an API server whose body says not how long it is, so that it takes the room of the largest.
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

// TestQueuedBodyIsRetriedAfterStop fills the room with bodies that are not durable yet.
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

// deadlineRecorder is an answer whose connection tells until when it may be read.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	until time.Time
}

func (d *deadlineRecorder) SetReadDeadline(until time.Time) error {
	d.until = until
	return nil
}

// TestStoringEventsOutlivesBodyTimeout sees that nothing ends the connection by then.
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
