package audit

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/kubecdc/kubecdc/internal/port"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

// WebhookConfig configures a [Webhook].
type WebhookConfig struct {
	// Address, host:port, of the webhook for API servers, always with TLS. Empty: no webhook.
	Listen string `mapstructure:"listen"`
	// PEM file with the server certificate. Files are read again while the exporter runs.
	Cert string `mapstructure:"cert"`
	// PEM file with the key of that certificate.
	Key string `mapstructure:"key"`
	// PEM file with the authorities of the API servers' client certificates.
	ClientCA string `mapstructure:"clientCA"`
	// Common names or DNS names of the API servers' client certificates. Other clients are rejected.
	Clients []string `mapstructure:"clients"`
}

const (
	maxBody       = 32 << 20         // of one request, in bytes; a batch of 400 events of an API server is rarely above 4 MiB
	maxReusedBody = 4 << 20          // capacity of a body buffer that is kept for reuse
	bodyTimeout   = 10 * time.Second // for a body to arrive, once its memory is acquired
)

const stoppingText = "not stored: the exporter is stopping"

// Webhook is an intake for the webhook audit backend of API servers. It answers once the events are durable, so an API
// server repeats everything else. Its use of resources is bounded: connections, bytes of bodies, and one body that is
// scanned at a time. Further requests wait.
type Webhook struct {
	config       WebhookConfig
	storeEvents  StoreEvents
	recordLoss   RecordLoss
	log          *slog.Logger
	condition    *condition.Condition
	port         *port.Port
	certificates certificateFiles
	bodyMemory   *semaphore.Weighted // bytes of bodies that are held at the same time
	scanSlot     chan struct{}
	freeBatches  sync.Pool // of *batch

	rejected, malformed atomic.Uint64
	warned              atomic.Bool
}

// NewWebhook reads the certificates and opens no port. lost records events that could not be accepted and that the API
// server will not repeat.
func NewWebhook(config WebhookConfig, store StoreEvents, lost RecordLoss, log *slog.Logger) (*Webhook, error) {
	w := &Webhook{
		config: config, storeEvents: store, recordLoss: lost, log: log,
		condition: condition.New(log.With("listen", config.Listen), "audit/"+config.Listen, condition.Problem{}),
		port:      port.New(config.Listen, log), bodyMemory: semaphore.NewWeighted(maxBodies), scanSlot: make(chan struct{}, 1),
	}
	if _, err := w.certificates.loadRecent(&config); err != nil {
		return nil, err
	}
	return w, nil
}

// Name is the listen address.
func (w *Webhook) Name() string { return w.config.Listen }

// Status returns whether the webhook is served, and the number of malformed bodies.
func (w *Webhook) Status() (status condition.Status, malformed uint64) {
	return w.condition.Status(), w.malformed.Load()
}

// PortStatus returns whether the port is flooded.
func (w *Webhook) PortStatus() condition.Status { return w.port.Status() }

// RejectedRequests counts the requests of clients that are not listed or not trusted any more, and the connections that
// failed in the TLS handshake, such as those without a certificate of the configured authorities or dropped in a flood.
func (w *Webhook) RejectedRequests() uint64 { return w.rejected.Load() }

// ServeHTTP handles one batch of events.
func (w *Webhook) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	name, listed := w.listedName(request.TLS)
	switch {
	case !listed:
		w.rejected.Add(1)
		if w.warned.CompareAndSwap(false, true) {
			w.log.Warn("audit events are rejected: audit.webhook.clients does not list the client; logged once",
				"name", name, "address", request.RemoteAddr)
		}
		response.Header().Set("Connection", "close") // only clients that are listed keep connections
		http.Error(response, "audit.webhook.clients does not list this client", http.StatusForbidden)
		return
	case !w.isTrusted(request.TLS):
		w.rejected.Add(1)
		response.Header().Set("Connection", "close") // with a new connection and certificate it can repeat the batch
		http.Error(response, "the certificate of this client is not trusted any more", http.StatusServiceUnavailable)
		return
	}
	port.Prove(request.Context())
	switch {
	case request.Method != http.MethodPost:
		http.Error(response, "audit events require POST", http.StatusMethodNotAllowed)
		return
	case request.ContentLength > maxBody:
		w.rejectBatch(response, request, fmt.Errorf(
			"the body has %d bytes, and the limit is %d: send smaller batches, see --audit-webhook-batch-max-size",
			request.ContentLength, maxBody), http.StatusRequestEntityTooLarge)
		return
	}
	size := request.ContentLength
	if size < 0 {
		size = maxBody
	}
	if w.bodyMemory.Acquire(request.Context(), size) != nil {
		http.Error(response, stoppingText, http.StatusServiceUnavailable)
		return
	}
	defer w.bodyMemory.Release(size)
	b, ok := w.freeBatches.Get().(*eventBatch)
	if !ok {
		b = &eventBatch{}
	}
	w.handleBatch(response, request, name, b)
	if b.body.Cap() <= maxReusedBody {
		b.body.Reset()
		clear(b.events[:cap(b.events)])
		w.freeBatches.Put(b)
	}
}

// eventBatch is the memory for one body and its events. It is reused, because the garbage of a flood of bodies would delay
// changes.
type eventBatch struct {
	body   bytes.Buffer
	events []Event
}

// handleBatch stores the events of a body. An API server repeats a batch only after a 5xx or 429.
func (w *Webhook) handleBatch(response http.ResponseWriter, request *http.Request, name string, b *eventBatch) {
	connection := http.NewResponseController(response)
	_ = connection.SetReadDeadline(time.Now().Add(bodyTimeout)) // supported by net/http servers
	b.body.Grow(int(max(0, request.ContentLength)) + bytes.MinRead)
	_, err := b.body.ReadFrom(http.MaxBytesReader(response, request.Body, maxBody))
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		w.rejectBatch(response, request, fmt.Errorf(
			"the body has more than %d bytes: send smaller batches, see --audit-webhook-batch-max-size", maxBody),
			http.StatusRequestEntityTooLarge)
		return
	case err != nil: // the client is gone or too slow, and repeats the batch
		http.Error(response, "incomplete body", http.StatusServiceUnavailable)
		return
	}
	_ = connection.SetReadDeadline(time.Time{}) // the deadline is for the body, not for storing its events
	if err := w.scanBatch(b); err != nil {
		w.malformed.Add(1)
		w.rejectBatch(response, request, err, http.StatusBadRequest)
		return
	}
	// The connection identifies the API server: behind a proxy several of them share an address.
	origin := name + "@" + request.RemoteAddr
	if err := w.storeEvents(request.Context(), origin, b.events, "", ""); err != nil {
		http.Error(response, stoppingText, http.StatusServiceUnavailable)
		return
	}
	response.WriteHeader(http.StatusOK)
}

// scanBatch reads the events of a body. One body is scanned at a time, so a flood uses one core at most.
func (w *Webhook) scanBatch(b *eventBatch) (err error) {
	w.scanSlot <- struct{}{}
	defer func() { <-w.scanSlot }()
	b.events, err = Append(b.events[:0], b.body.Bytes())
	return err
}

// rejectBatch rejects the events of a listed client for good, after it has recorded the loss.
func (w *Webhook) rejectBatch(response http.ResponseWriter, request *http.Request, reason error, code int) {
	loss := "audit events that an API server sent were rejected: " + reason.Error()
	if err := w.recordLoss(request.Context(), time.Time{}, loss); err != nil {
		http.Error(response, stoppingText, http.StatusServiceUnavailable)
		return
	}
	http.Error(response, reason.Error(), code)
}

// listedName returns the listed name in a client's certificate; if none is listed, its common name and false.
func (w *Webhook) listedName(state *tls.ConnectionState) (string, bool) {
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

// responseScan collects the facts of a response body: an object, a list, a Table or a Status. What they mean is known at the
// end only, because the members of a body may have any order.
type responseScan struct {
	kind, apiVersion []byte // alias the text of the event
	specFinalizers   bool   // spec.finalizers is not empty; namespaces have theirs there
	of               Object
	rows, items      int // index of the member; 0: none
}

// setAnswer sets the identities in a response body. It returns a negative index if the body is malformed.
func (e *Event) setAnswer(b []byte, a *responseScan) int {
	switch {
	case a.is("meta.k8s.io/v1", "Table") && e.Group != metaGroup:
		return e.scanTable(b, a.rows)
	case e.Verb == "deletecollection" && (e.isOwnGroup(a) || a.is("meta.k8s.io/v1", "PartialObjectMetadataList")):
		return scanElements(b, a.items, func(i int) int {
			var item responseScan
			end := item.scanBody(b, i)
			if o := item.object(); o.UID != "" {
				e.Items = append(e.Items, o)
			}
			return end
		})
	case e.isAnswered(a):
		e.Answer = a.object()
	}
	return 0
}

// isAnswered reports whether a body is the object that the request wrote, in a form in which API servers return it. Any
// other has the identity of something else, such as a Status, or one that the client chose.
func (e *Event) isAnswered(a *responseScan) bool {
	return e.isOwnGroup(a) || a.is("meta.k8s.io/v1", "PartialObjectMetadata") ||
		e.Subresource == "scale" && a.is("autoscaling/v1", "Scale")
}

// isOwnGroup reports whether a body is an object of the group that the request names.
func (e *Event) isOwnGroup(a *responseScan) bool {
	return string(a.group()) == e.Group && !a.is("v1", "Status")
}

const metaGroup = "meta.k8s.io"

func (a *responseScan) is(apiVersion, kind string) bool {
	return string(a.apiVersion) == apiVersion && string(a.kind) == kind
}

func (a *responseScan) group() []byte {
	group, _, named := bytes.Cut(a.apiVersion, []byte("/"))
	if !named {
		return nil
	}
	return group
}

func (a *responseScan) object() Object {
	o := a.of
	if a.is("v1", "Namespace") {
		o.Held = o.Held || a.specFinalizers
	}
	return o
}

// scanTable reads the object in the only row of the Table that answers a write, or one in each row if a collection was
// deleted.
func (e *Event) scanTable(b []byte, rows int) int {
	n := 0
	var objects []Object
	end := scanElements(b, rows, func(i int) int {
		n++
		return scanMembers(b, i, func(key []byte, i int) int {
			if string(key) != "object" {
				return skipValue
			}
			var row responseScan
			end := row.scanBody(b, i)
			if o := row.object(); e.isAnswered(&row) && o.UID != "" {
				objects = append(objects, o)
			}
			return end
		})
	})
	switch {
	case e.Verb == "deletecollection":
		e.Items = objects
	case n == 1 && len(objects) == 1:
		e.Answer = objects[0]
	}
	return end
}

func (a *responseScan) scanBody(b []byte, i int) int {
	return scanMembers(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "kind":
			a.kind, i = textAt(b, i)
			return i
		case "apiVersion":
			a.apiVersion, i = textAt(b, i)
			return i
		case "metadata":
			return scanMetadata(b, i, &a.of)
		case "spec":
			return scanMembers(b, i, func(key []byte, i int) int {
				if string(key) == "finalizers" {
					a.specFinalizers = hasElements(b, i)
				}
				return skipValue
			})
		case "rows":
			a.rows = i
		case "items":
			a.items = i
		}
		return skipValue
	})
}

func scanMetadata(b []byte, i int, o *Object) int {
	return scanMembers(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "uid":
			return readString(b, i, &o.UID)
		case "resourceVersion":
			return readString(b, i, &o.ResourceVersion)
		case "deletionTimestamp":
			o.Deleting = b[i] == '"'
		case "deletionGracePeriodSeconds":
			o.Grace = intAt(b, i) != 0
		case "finalizers":
			o.Held = hasElements(b, i)
		}
		return skipValue
	})
}

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
	pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
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

// maxBodies bounds the bodies in memory, in bytes; further ones wait in their connections.
const maxBodies = 64 << 20
