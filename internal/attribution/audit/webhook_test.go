package audit_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
	"github.com/kubecdc/kubecdc/test/parts/ports"
)

const list = `{"apiVersion":"audit.k8s.io/v1","kind":"EventList","items":[{"auditID":"1","stage":"ResponseComplete","verb":"patch"}]}`

// webhookServer is a webhook with the events that it has stored.
type webhookServer struct {
	*audit.Webhook
	authority   *certificates.Authority
	dir         string // of the certificates
	listen      string
	url         string
	lost        atomic.Pointer[string]
	stop        func()
	beforeStore func() // called before events are stored; may be nil

	mu         sync.Mutex
	stored     []audit.Event
	storeError error
}

func startWebhook(t testing.TB) *webhookServer {
	t.Helper()
	free, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	s := newWebhookAt(t, ports.Address(free[0]))
	s.startServing(t)
	return s
}

// newWebhookAt returns a webhook that will listen on an address.
func newWebhookAt(t testing.TB, listen string) *webhookServer {
	t.Helper()
	dir := t.TempDir()
	s := &webhookServer{authority: certificates.New(t), dir: dir, listen: listen, url: "https://" + listen + "/"}
	s.authority.IssueTo(t, dir)
	var err error
	s.Webhook, err = audit.NewWebhook(audit.WebhookConfig{
		Listen: s.listen, Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"),
		ClientCA: filepath.Join(dir, "ca.pem"), Clients: []string{"kube-apiserver"},
	}, s.storeEvents, func(_ context.Context, _ time.Time, reason string) error { s.lost.Store(&reason); return nil }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// startServing runs the webhook and returns when it listens.
func (s *webhookServer) startServing(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(s.stop)
	awaitCondition(t, "it listens", func() bool {
		c, err := net.Dial("tcp", s.listen)
		return err == nil && c.Close() == nil
	})
}

// awaitCondition waits until met returns true.
func awaitCondition(t testing.TB, what string, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !met(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timeout: %s", what)
		}
	}
}

func (s *webhookServer) storeEvents(_ context.Context, _ string, events []audit.Event, _, _ string) error {
	if s.beforeStore != nil {
		s.beforeStore()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.storeError == nil {
		s.stored = append(s.stored, events...)
	}
	return s.storeError
}

// postAs sends a body as a client of that name; "" has no certificate.
func (s *webhookServer) postAs(t testing.TB, name, body string) (int, error) {
	t.Helper()
	return s.postFrom(t, nil, name, body)
}

// postFrom is postAs from an address of this machine; nil: any.
func (s *webhookServer) postFrom(t testing.TB, address net.IP, name, body string) (int, error) {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: address}}
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: s.clientConfig(t, s.authority, name), DisableKeepAlives: true, DialContext: dialer.DialContext,
	}}
	response, err := client.Post(s.url, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

// awaitAnswer returns the status code for a client of that name. It retries without an answer, because on a busy machine not
// every handshake completes in time.
func (s *webhookServer) awaitAnswer(t testing.TB, name, body string) (code int) {
	t.Helper()
	awaitCondition(t, "there is an answer", func() (answered bool) {
		var err error
		code, err = s.postAs(t, name, body)
		return err == nil
	})
	return code
}

// clientConfig returns the configuration of a client with a certificate for a name; "" has none.
func (s *webhookServer) clientConfig(t testing.TB, authority *certificates.Authority, name string) *tls.Config {
	t.Helper()
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(s.authority.PEM)
	if name != "" {
		pair, err := tls.X509KeyPair(authority.IssueFor(t, name))
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config
}

func TestOnlyListedClientsAreAccepted(t *testing.T) {
	s := startWebhook(t)
	if code := s.awaitAnswer(t, "kube-apiserver", list); code != http.StatusOK || len(s.stored) != 1 {
		t.Errorf("an API server: %d, %d events", code, len(s.stored))
	}
	if code := s.awaitAnswer(t, "stranger", list); code != http.StatusForbidden {
		t.Errorf("an unlisted client: %d", code)
	}
	if code, err := s.postAs(t, "", list); err == nil {
		t.Errorf("without a certificate: %d", code)
	}
	if len(s.stored) != 1 {
		t.Errorf("%d events were stored", len(s.stored))
	}
	if s.RejectedRequests() == 0 {
		t.Error("rejected clients are not counted")
	}
}

func TestUnstoredEventsAreNotAcknowledged(t *testing.T) {
	s := startWebhook(t)
	s.storeError = errors.New("disk gone")
	if code := s.awaitAnswer(t, "kube-apiserver", list); code != http.StatusServiceUnavailable {
		t.Errorf("%d", code)
	}
}

func TestMalformedBodyIsRejectedAndCounted(t *testing.T) {
	s := startWebhook(t)
	if code := s.awaitAnswer(t, "kube-apiserver", `{"items":[`); code != http.StatusBadRequest || s.lost.Load() == nil {
		t.Errorf("%d; the loss is not recorded", code)
	}
	if _, malformed := s.Status(); malformed != 1 || len(s.stored) != 0 {
		t.Errorf("%d malformed, %d stored", malformed, len(s.stored))
	}
}

func TestCertificateErrorNamesConfigurationKey(t *testing.T) {
	dir := t.TempDir()
	certificates.New(t).IssueTo(t, dir)
	good := audit.WebhookConfig{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), ClientCA: filepath.Join(dir, "ca.pem")}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, edit := range map[string]func(*audit.WebhookConfig){
		"audit.webhook.clientCA":    func(c *audit.WebhookConfig) { c.ClientCA = empty },
		"audit.webhook.certificate": func(c *audit.WebhookConfig) { c.Cert = empty },
	} {
		c := good
		edit(&c)
		if _, err := audit.NewWebhook(c, nil, nil, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
