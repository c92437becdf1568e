package audit

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

const (
	maxStreams          = 16        // concurrent requests of a connection
	maxWindow           = 256 << 10 // receive buffer of a connection, in bytes
	idleTimeout         = 2 * time.Minute
	listenInterval      = time.Second // between attempts while the port is taken
	certificateInterval = time.Second // minimum between two loads of the certificates
)

// Run serves until ctx ends and returns nil. Open requests have a short time to finish. It retries while the port is taken.
func (w *Webhook) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		listener, err := net.Listen("tcp", w.config.Listen)
		if err == nil {
			w.condition.Clear()
			err = w.serveListener(ctx, listener)
		}
		if err != nil {
			w.condition.Update(condition.Problem{Code: condition.AuditUnserved, Cause: err.Error()})
		}
		_ = ratelimit.Sleep(ctx, listenInterval)
	}
	return nil
}

func (w *Webhook) serveListener(ctx context.Context, listener net.Listener) error {
	return w.port.Serve(ctx, listener, &http.Server{
		Handler: w, IdleTimeout: idleTimeout,
		ErrorLog:  slog.NewLogLogger(handshakeLog{w.log.Handler(), w}, slog.LevelWarn),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: w.configForClient},
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: maxWindow, MaxReceiveBufferPerStream: maxWindow,
		},
	})
}

// configForClient returns the current certificates, or the last ones that could be read.
func (w *Webhook) configForClient(*tls.ClientHelloInfo) (*tls.Config, error) {
	config, err := w.certificates.loadRecent(&w.config)
	if err != nil {
		w.condition.Update(condition.Problem{Code: condition.AuditCertificate, Cause: err.Error()})
	} else {
		w.condition.Clear()
	}
	return config, nil
}

// isTrusted reports whether the certificate of a client is still valid and signed by a currently configured authority. It is
// checked for each request because connections of API servers stay open for days.
func (w *Webhook) isTrusted(state *tls.ConnectionState) bool {
	config, _ := w.certificates.loadRecent(&w.config)
	options := x509.VerifyOptions{
		Roots: config.ClientCAs, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, c := range state.PeerCertificates[1:] {
		options.Intermediates.AddCert(c)
	}
	_, err := state.PeerCertificates[0].Verify(options)
	return err == nil
}

// certificateFiles caches the certificates that are read from files.
type certificateFiles struct {
	current atomic.Pointer[loadedCertificates]
	loading sync.Mutex // held while the files are read; other callers use the cached ones, except before the first load
}

type loadedCertificates struct {
	config   *tls.Config // of the last successful load
	err      error
	loadedAt time.Time
}

// loadRecent returns the configuration from the files, at most certificateInterval old. With an error it is the previous
// one, nil before the first success.
func (k *certificateFiles) loadRecent(from *WebhookConfig) (*tls.Config, error) {
	now := k.current.Load()
	if now != nil && (time.Since(now.loadedAt) < certificateInterval || !k.loading.TryLock()) {
		return now.config, now.err
	}
	if now == nil { // not shared yet: NewWebhook loads first
		k.loading.Lock()
		now = &loadedCertificates{}
	}
	defer k.loading.Unlock()
	next := &loadedCertificates{config: now.config, loadedAt: time.Now()}
	var config *tls.Config
	if config, next.err = from.loadTLS(); next.err == nil {
		next.config = config
	}
	k.current.Store(next)
	return next.config, next.err
}

func (c *WebhookConfig) loadTLS() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(c.Certificate, c.Key)
	if err != nil {
		return nil, fmt.Errorf("audit.webhook.certificate: %w", err)
	}
	pem, err := os.ReadFile(c.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("audit.webhook.clientCA: %w", err)
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("audit.webhook.clientCA: no certificate in %s", c.ClientCA)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
		NextProtos: []string{"h2", "http/1.1"},
	}, nil
}

// handshakeLog counts failed TLS handshakes and lowers all lines of the HTTP server to debug, because any client can cause
// any number of them.
type handshakeLog struct {
	slog.Handler
	webhook *Webhook
}

// Enabled implements slog.Handler. Every line is counted.
func (handshakeLog) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (h handshakeLog) Handle(ctx context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "TLS handshake error") {
		h.webhook.rejected.Add(1)
	}
	if r.Level = slog.LevelDebug; !h.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}
