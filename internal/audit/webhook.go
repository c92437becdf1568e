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

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// WebhookConfig configures a [Webhook].
type WebhookConfig struct {
	// Address, host:port, where the API servers' audit webhook is answered. It is a port of its own, and never without TLS.
	// Empty: no webhook.
	Listen string `mapstructure:"listen"`
	// Path of the PEM file with the certificate that the exporter shows. This file and the next two are read again while it
	// runs, at most once a second.
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
	maxBody       = 32 << 20         // of one request, in bytes; a batch of 400 events of an API server is rarely above 4 MiB
	maxReusedBody = 4 << 20          // of a body whose memory is kept for the next one
	bodyTimeout   = 10 * time.Second // for a body to come, once there is room for it
)

const stoppingText = "not taken: the exporter is stopping"

// Webhook takes audit events as API servers send them in their webhook backend. It answers when they are durable, so that an
// API server sends again what was not. What it takes of the machine is bounded however much is sent: connections, bytes of
// bodies, and one body that is scanned at a time. Who sends more waits for the answer.
type Webhook struct {
	config       WebhookConfig
	storeEvents  StoreEvents
	recordLoss   RecordLoss
	log          *slog.Logger
	condition    *condition.Condition
	certificates certificateFiles
	bodyMemory   *byteSemaphore
	scanSlot     chan struct{}
	freeBatches  sync.Pool // of *batch

	rejected, malformed atomic.Uint64
	warned              atomic.Bool
}

// NewWebhook reads the certificates. It opens nothing. lost is told of events that an API server sent and will not send
// again, though they could not be taken.
func NewWebhook(config WebhookConfig, take StoreEvents, lost RecordLoss, log *slog.Logger) (*Webhook, error) {
	w := &Webhook{
		config: config, storeEvents: take, recordLoss: lost, log: log, condition: condition.New(log.With("listen", config.Listen), conditionServing),
		bodyMemory: newByteSemaphore(maxBodies), scanSlot: make(chan struct{}, 1),
	}
	if _, err := w.certificates.loadRecent(&config); err != nil {
		return nil, err
	}
	return w, nil
}

// Name is the address that is listened on.
func (w *Webhook) Name() string { return w.config.Listen }

// Status says whether events can be sent; malformed counts bodies that were no audit events.
func (w *Webhook) Status() (status condition.Status, malformed uint64) {
	return w.condition.Status(), w.malformed.Load()
}

// RejectedRequests counts the requests of strangers, and of certificates of other names, and the connections that ended in the
// handshake, as those without a certificate of the authorities do.
func (w *Webhook) RejectedRequests() uint64 { return w.rejected.Load() }

// ServeHTTP answers one batch.
func (w *Webhook) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	name, listed := w.listedName(request.TLS)
	switch {
	case !listed:
		w.rejected.Add(1)
		if w.warned.CompareAndSwap(false, true) {
			w.log.Warn("audit events of a client that audit.webhook.clients does not name are refused; said once", "name", name, "address", request.RemoteAddr)
		}
		http.Error(response, "audit.webhook.clients does not name this client", http.StatusForbidden)
		return
	case !w.isTrusted(request.TLS):
		w.rejected.Add(1)
		response.Header().Set("Connection", "close") // with another certificate it may send the same again
		http.Error(response, "the certificate of this client is not good any more", http.StatusServiceUnavailable)
		return
	case request.Method != http.MethodPost:
		http.Error(response, "audit events are posted", http.StatusMethodNotAllowed)
		return
	case request.ContentLength > maxBody:
		w.rejectBatch(response, request, fmt.Errorf("the body has %d bytes, and %d at most are taken: send smaller batches, see --audit-webhook-batch-max-size",
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

// eventBatch is the memory for one body and its events. It is used again: what a flood of bodies leaves behind would keep the
// garbage collector busy, for which changes wait.
type eventBatch struct {
	body   bytes.Buffer
	events []Event
}

// handleBatch takes the events of a body. What it answers with no number of 5xx or 429 an API server does not send again.
func (w *Webhook) handleBatch(response http.ResponseWriter, request *http.Request, name string, b *eventBatch) {
	connection := http.NewResponseController(response)
	_ = connection.SetReadDeadline(time.Now().Add(bodyTimeout)) // a server of net/http can
	b.body.Grow(int(max(0, request.ContentLength)) + bytes.MinRead)
	_, err := b.body.ReadFrom(http.MaxBytesReader(response, request.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		w.rejectBatch(response, request, fmt.Errorf("the body has more than %d bytes: send smaller batches, see --audit-webhook-batch-max-size", maxBody),
			http.StatusRequestEntityTooLarge)
		return
	case err != nil: // who sent it does not get an answer, and sends it again
		http.Error(response, "the body did not come whole", http.StatusServiceUnavailable)
		return
	}
	_ = connection.SetReadDeadline(time.Time{}) // else the request ends with it, however long its events take to be durable
	if err := w.scanBatch(b); err != nil {
		w.malformed.Add(1)
		w.rejectBatch(response, request, err, http.StatusBadRequest)
		return
	}
	// The connection stands for the API server: behind a proxy several of them share an address.
	origin := name + "@" + request.RemoteAddr
	if err := w.storeEvents(request.Context(), origin, b.events, "", ""); err != nil {
		http.Error(response, stoppingText, http.StatusServiceUnavailable)
		return
	}
	response.WriteHeader(http.StatusOK)
}

// scanBatch reads the events of a body. One body at a time is scanned, so that a flood has one core at most.
func (w *Webhook) scanBatch(b *eventBatch) (err error) {
	w.scanSlot <- struct{}{}
	defer func() { <-w.scanSlot }()
	b.events, err = Append(b.events[:0], b.body.Bytes())
	return err
}

// rejectBatch answers that events of a listed client are not taken, once it is stored that they are lost.
func (w *Webhook) rejectBatch(response http.ResponseWriter, request *http.Request, reason error, code int) {
	if err := w.recordLoss(request.Context(), time.Time{}, "audit events that an API server sent could not be taken: "+reason.Error()); err != nil {
		http.Error(response, stoppingText, http.StatusServiceUnavailable)
		return
	}
	http.Error(response, reason.Error(), code)
}

// listedName returns the name in a client's certificate that is listed.
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
