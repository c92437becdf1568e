package admin

import (
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/common/expfmt"
)

// An answer is built in memory, from all that the exporter knows. crowd lets requests of the same moment have one
// answer, so that a thousand of them cost the memory of a few, also while they do not take it. Safe for concurrent use.
type crowd struct {
	mu      sync.Mutex
	places  map[string]*sharedPlace
	writing atomic.Int32  // answers that are being sent
	events  atomic.Uint64 // counts what happens: a request has come, an answer is begun
}

const (
	maxSharedPlaces = 256         // more are answered one after the other, each with its own
	crowdSize       = 32          // from so many answers that are being sent on,
	crowdAge        = time.Second // one that is so old is sent again
)

// sharedPlace is what is asked for.
type sharedPlace struct {
	building chan struct{}                // full while an answer is built; the next two require it
	newest   atomic.Pointer[sharedAnswer] // nil before the first
}

// sharedAnswer is an answer in memory. It does not change once it is built.
type sharedAnswer struct {
	begun  uint64 // which of crowd.events that was
	at     time.Time
	header http.Header
	code   int
	body   []byte
}

// Header implements [http.ResponseWriter].
func (a *sharedAnswer) Header() http.Header { return a.header }

// WriteHeader implements [http.ResponseWriter].
func (a *sharedAnswer) WriteHeader(code int) { a.code = code }

// Write implements [http.ResponseWriter].
func (a *sharedAnswer) Write(b []byte) (int, error) {
	a.body = append(a.body, b...)
	return len(b), nil
}

// share has requests with the same key answered by build at once. What it answers was begun after each of them had come,
// unless very many are being answered.
func (c *crowd) share(key func(*http.Request) string, build http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a := c.findAnswer(r, key(r), build)
		if a == nil {
			return // the client has gone
		}
		c.writing.Add(1)
		defer c.writing.Add(-1)
		maps.Copy(w.Header(), a.header)
		w.WriteHeader(a.code)
		_, _ = w.Write(a.body) // the client may have disconnected
	}
}

// findAnswer returns the answer for a request; nil if its client goes before.
func (c *crowd) findAnswer(r *http.Request, key string, build http.HandlerFunc) *sharedAnswer {
	came := c.events.Add(1)
	p, shared := c.place(key)
	select {
	case p.building <- struct{}{}:
		defer func() { <-p.building }()
	case <-r.Context().Done():
		return nil
	}
	isCrowd := c.writing.Load() > crowdSize
	if a := p.newest.Load(); a != nil && (a.begun > came || isCrowd && time.Since(a.at) < crowdAge) {
		return a
	}
	a := &sharedAnswer{begun: c.events.Add(1), at: time.Now(), header: http.Header{}, code: http.StatusOK}
	build(a, r)
	if shared && a.code == http.StatusNotFound { // anybody can invent places that are not there
		c.mu.Lock()
		delete(c.places, key)
		c.mu.Unlock()
	} else if shared {
		p.newest.Store(a)
	}
	return a
}

// place returns the place with a key, and whether its answers may be shared.
func (c *crowd) place(key string) (p *sharedPlace, shared bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if shared = c.places[key] != nil || len(c.places) < maxSharedPlaces; !shared {
		key = ""
	}
	if p = c.places[key]; p == nil {
		p = &sharedPlace{building: make(chan struct{}, 1)}
		c.places[key] = p
	}
	return p, shared
}

// What answers depend on; nothing else that a client can choose.

func metricsKey(r *http.Request) string {
	coding := ""
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		coding = "gzip"
	}
	r.Header.Set("Accept-Encoding", coding)
	return "metrics " + string(expfmt.NegotiateAccept(r.Header, expfmt.DefaultOpenMetricsAcceptedFormats()...)) + " " + coding
}

func pathKey(r *http.Request) string { return r.URL.Path }

func nameKey(r *http.Request) string { return r.URL.Path + " " + r.URL.Query().Get("name") }

func readyKey(r *http.Request) string {
	if r.URL.Query().Has("verbose") {
		return "ready verbose"
	}
	return "ready"
}
