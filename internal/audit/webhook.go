package audit

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Take takes events of one origin and returns when they are durable. place and position, if place is not empty, are stored
// in the same write.
type Take func(ctx context.Context, origin string, events []Event, place, position string) error

// WebhookConfig configures a [Webhook].
type WebhookConfig struct {
	// Address, host:port, where the API servers' audit webhook is answered. It is a port of its own, and never without TLS.
	// Empty: no webhook.
	Listen string `mapstructure:"listen"`
	// Path of the PEM file with the certificate that the exporter shows, and of its key. They are read again for each
	// connection.
	Certificate string `mapstructure:"certificate"`
	// Path of the PEM file with the key of that certificate.
	Key string `mapstructure:"key"`
	// Path of the PEM file with the authorities that sign the API servers' client certificates.
	ClientCA string `mapstructure:"clientCA"`
	// Names of the API servers: the common name or a DNS name of their client certificates. Whoever has another name is
	// refused, whoever signed it.
	Clients []string `mapstructure:"clients"`
}

const (
	maxBody      = 32 << 20         // of one request, in bytes; a batch of 400 events of an API server is rarely above 4 MiB
	maxBodies    = 4                // that are in memory at once; others wait in their connections
	readTimeout  = 30 * time.Second // of one request
	closeTimeout = 2 * time.Second
)

// Webhook takes audit events as API servers send them in their webhook backend. It answers when they are durable, so that an
// API server sends again what was not.
type Webhook struct {
	config   WebhookConfig
	take     Take
	log      *slog.Logger
	listener net.Listener
	clients  *x509.CertPool
	room     chan struct{}

	refused, malformed atomic.Uint64
	warned             atomic.Bool
}

// NewWebhook reads the certificates. It opens nothing.
func NewWebhook(config WebhookConfig, take Take, log *slog.Logger) (*Webhook, error) {
	pem, err := os.ReadFile(config.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("audit.webhook.clientCA: %w", err)
	}
	w := &Webhook{config: config, take: take, log: log, clients: x509.NewCertPool(), room: make(chan struct{}, maxBodies)}
	if !w.clients.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("audit.webhook.clientCA: no certificate in %s", config.ClientCA)
	}
	if _, err := w.certificate(nil); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *Webhook) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(w.config.Certificate, w.config.Key)
	if err != nil {
		return nil, fmt.Errorf("audit.webhook.certificate: %w", err)
	}
	return &pair, nil
}

// Listen takes the address.
func (w *Webhook) Listen() error {
	listener, err := net.Listen("tcp", w.config.Listen)
	if err != nil {
		return fmt.Errorf("audit.webhook.listen: %w", err)
	}
	w.listener = listener
	return nil
}

// Close releases the address. Run has ended, or was never called.
func (w *Webhook) Close() error {
	if err := w.listener.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Addr is where it listens.
func (w *Webhook) Addr() net.Addr { return w.listener.Addr() }

// Refused counts the requests of strangers, and of certificates of other names; those without a certificate of the
// authorities end before there is a request. Malformed counts bodies that were no audit events.
func (w *Webhook) Refused() (refused, malformed uint64) { return w.refused.Load(), w.malformed.Load() }

// Run serves until ctx ends. Requests that are being answered get a moment to end.
func (w *Webhook) Run(ctx context.Context) error {
	server := &http.Server{
		Handler: w, ReadTimeout: readTimeout, ReadHeaderTimeout: readTimeout, BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog: slog.NewLogLogger(handshakes{w.log.Handler(), w}, slog.LevelWarn),
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: w.clients, GetCertificate: w.certificate,
		},
	}
	stop := context.AfterFunc(ctx, func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if server.Shutdown(closing) != nil {
			server.Close()
		}
	})
	defer stop()
	if err := server.ServeTLS(w.listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ServeHTTP answers one batch.
func (w *Webhook) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	name, listed := w.listed(request.TLS)
	switch {
	case !listed:
		w.refused.Add(1)
		if w.warned.CompareAndSwap(false, true) {
			w.log.Warn("audit events of a client that audit.webhook.clients does not name are refused; said once", "name", name, "address", request.RemoteAddr)
		}
		http.Error(response, "audit.webhook.clients does not name this client", http.StatusForbidden)
		return
	case request.Method != http.MethodPost:
		http.Error(response, "audit events are posted", http.StatusMethodNotAllowed)
		return
	}
	select {
	case w.room <- struct{}{}:
		defer func() { <-w.room }()
	case <-request.Context().Done():
		return
	}
	w.answer(response, request, name)
}

func (w *Webhook) answer(response http.ResponseWriter, request *http.Request, name string) {
	body, err := io.ReadAll(http.MaxBytesReader(response, request.Body, maxBody))
	if err != nil {
		http.Error(response, "the body cannot be read, or is too large", http.StatusRequestEntityTooLarge)
		return
	}
	var events []Event
	if err := Each(body, func(e Event) error { events = append(events, e); return nil }); err != nil {
		w.malformed.Add(1)
		http.Error(response, err.Error(), http.StatusBadRequest)
		return
	}
	// The connection stands for the API server: behind a proxy several of them share an address.
	origin := name + "@" + request.RemoteAddr
	if err := w.take(request.Context(), origin, events, "", ""); err != nil {
		http.Error(response, "not taken: the exporter is stopping", http.StatusServiceUnavailable)
		return
	}
	response.WriteHeader(http.StatusOK)
}

// listed returns the name in a client's certificate that is listed.
func (w *Webhook) listed(state *tls.ConnectionState) (string, bool) {
	if state == nil || len(state.VerifiedChains) == 0 {
		return "", false
	}
	of := state.PeerCertificates[0]
	for _, name := range append([]string{of.Subject.CommonName}, of.DNSNames...) {
		if name != "" && slices.Contains(w.config.Clients, name) {
			return name, true
		}
	}
	return of.Subject.CommonName, false
}

// handshakes counts the connections that end in the handshake, and keeps their lines, of which a stranger can cause any
// number, to debug.
type handshakes struct {
	slog.Handler
	webhook *Webhook
}

// Enabled says that every line is looked at.
func (handshakes) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (h handshakes) Handle(ctx context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "TLS handshake error") {
		h.webhook.refused.Add(1)
	}
	if r.Level = slog.LevelDebug; !h.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}
