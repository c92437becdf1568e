package audit_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kubecdc/kubecdc/internal/audit"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
)

const list = `{"apiVersion":"audit.k8s.io/v1","kind":"EventList","items":[{"auditID":"1","stage":"ResponseComplete","verb":"patch"}]}`

// serving is a webhook and what it has taken.
type serving struct {
	*audit.Webhook
	authority *certificates.Authority
	url       string

	mu     sync.Mutex
	taken  []audit.Event
	refuse error
}

func serve(t testing.TB) *serving {
	t.Helper()
	s := &serving{authority: certificates.New(t)}
	dir := t.TempDir()
	s.authority.IssueTo(t, dir)
	var err error
	s.Webhook, err = audit.NewWebhook(audit.WebhookConfig{
		Listen: "127.0.0.1:0", Certificate: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"),
		ClientCA: filepath.Join(dir, "ca.pem"), Clients: []string{"kube-apiserver"},
	}, s.take, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	s.url = "https://" + s.Addr().String() + "/"
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *serving) take(_ context.Context, _ string, events []audit.Event, _, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse == nil {
		s.taken = append(s.taken, events...)
	}
	return s.refuse
}

// post sends a body as a client of that name; "" has no certificate.
func (s *serving) post(t testing.TB, name, body string) (int, error) {
	t.Helper()
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(s.authority.PEM)
	if name != "" {
		pair, err := tls.X509KeyPair(s.authority.IssueFor(t, name))
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	response, err := client.Post(s.url, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

func TestEventsAreTakenFromListedClientsOnly(t *testing.T) {
	s := serve(t)
	if code, err := s.post(t, "kube-apiserver", list); err != nil || code != http.StatusOK || len(s.taken) != 1 {
		t.Errorf("an API server: %d %v, %d events", code, err, len(s.taken))
	}
	if code, err := s.post(t, "somebody", list); err != nil || code != http.StatusForbidden {
		t.Errorf("somebody else: %d %v", code, err)
	}
	if code, err := s.post(t, "", list); err == nil {
		t.Errorf("nobody: %d", code)
	}
	if len(s.taken) != 1 {
		t.Errorf("%d events were taken", len(s.taken))
	}
	if refused, _ := s.Refused(); refused == 0 {
		t.Error("strangers are not counted")
	}
}

func TestWhatIsNotDurableIsNotAcknowledged(t *testing.T) {
	s := serve(t)
	s.refuse = errors.New("disk gone")
	if code, err := s.post(t, "kube-apiserver", list); err != nil || code != http.StatusServiceUnavailable {
		t.Errorf("%d %v", code, err)
	}
}

func TestAMalformedBodyIsRefusedAndCounted(t *testing.T) {
	s := serve(t)
	if code, err := s.post(t, "kube-apiserver", `{"items":[`); err != nil || code != http.StatusBadRequest {
		t.Errorf("%d %v", code, err)
	}
	if _, malformed := s.Refused(); malformed != 1 || len(s.taken) != 0 {
		t.Errorf("%d malformed, %d taken", malformed, len(s.taken))
	}
}

func TestAWrongCertificateIsNamedByItsKey(t *testing.T) {
	dir := t.TempDir()
	certificates.New(t).IssueTo(t, dir)
	good := audit.WebhookConfig{Certificate: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), ClientCA: filepath.Join(dir, "ca.pem")}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, edit := range map[string]func(*audit.WebhookConfig){
		"audit.webhook.clientCA":    func(c *audit.WebhookConfig) { c.ClientCA = empty },
		"audit.webhook.certificate": func(c *audit.WebhookConfig) { c.Certificate = empty },
	} {
		c := good
		edit(&c)
		if _, err := audit.NewWebhook(c, nil, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// BenchmarkWebhook takes batches of a hundred events of 1.5 kB over TLS, as an API server sends them: the time and memory
// are of both ends, an event each.
func BenchmarkWebhook(b *testing.B) {
	const batch = 100
	s := serve(b)
	event := `{"kind":"Event","apiVersion":"audit.k8s.io/v1","auditID":"1","stage":"ResponseComplete","verb":"patch","user":{"username":"ann","groups":["a","b"]},` +
		`"objectRef":{"resource":"pods","namespace":"shop","name":"db"},"responseStatus":{"code":200},"responseObject":{"kind":"Pod","metadata":{"uid":"u",` +
		`"resourceVersion":"1"},"spec":{"filler":"` + strings.Repeat("x", 1100) + `"}},"requestReceivedTimestamp":"2026-01-02T03:04:05.000001Z"}`
	body := `{"apiVersion":"audit.k8s.io/v1","kind":"EventList","items":[` + strings.Repeat(event+",", batch-1) + event + `]}`
	pair, err := tls.X509KeyPair(s.authority.IssueFor(b, "kube-apiserver"))
	if err != nil {
		b.Fatal(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), Certificates: []tls.Certificate{pair}}
	config.RootCAs.AppendCertsFromPEM(s.authority.PEM)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	b.ReportAllocs()
	for b.Loop() {
		response, err := client.Post(s.url, "application/json", strings.NewReader(body))
		if err != nil || response.StatusCode != http.StatusOK {
			b.Fatal(err, response)
		}
		response.Body.Close()
		s.mu.Lock()
		s.taken = s.taken[:0]
		s.mu.Unlock()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*batch), "µs/event")
}
