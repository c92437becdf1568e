package audit

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/port"
	"github.com/kubecdc/kubecdc/pkg/condition"
)

// WebhookConfig configures a [Webhook].
type WebhookConfig struct {
	// Address, host:port, on which the webhook of the API servers is served. It is a separate port, always with TLS. Empty:
	// no webhook.
	Listen string `mapstructure:"listen"`
	// Path of the PEM file with the server certificate. This file and the next two are reloaded while the exporter runs, at
	// most once a second.
	Certificate string `mapstructure:"certificate"`
	// Path of the PEM file with the key of that certificate.
	Key string `mapstructure:"key"`
	// Path of the PEM file with the authorities that sign the API servers' client certificates.
	ClientCA string `mapstructure:"clientCA"`
	// Names of the API servers: the common name or a DNS name of their client certificates. A client with any other name is
	// rejected, even if its certificate is signed by one of the authorities.
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
	bodyMemory   *byteSemaphore
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
		port:      port.New(config.Listen, log), bodyMemory: newByteSemaphore(maxBodies), scanSlot: make(chan struct{}, 1),
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
	if !w.bodyMemory.acquire(request.Context(), size) {
		http.Error(response, stoppingText, http.StatusServiceUnavailable)
		return
	}
	defer w.bodyMemory.release(size)
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
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
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
