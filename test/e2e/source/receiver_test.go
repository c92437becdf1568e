package source

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// receiver takes changes over HTTP when it is up, and answers 503 when it is not.
type receiver struct {
	server *httptest.Server

	mu    sync.Mutex
	up    bool
	names map[string]bool // of the objects that were told
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{names: map[string]bool{}}
	r.server = httptest.NewServer(http.HandlerFunc(r.serveChange))
	t.Cleanup(r.server.Close)
	return r
}

// sink is the section of a configuration that writes to it.
func (r *receiver) sink() map[string]any {
	return map[string]any{"name": "receiver", "format": "cloudevents", "webhook": map[string]any{"url": r.server.URL}}
}

func (r *receiver) serveChange(w http.ResponseWriter, request *http.Request) {
	var change struct{ Name string }
	body, err := io.ReadAll(request.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil || !r.up {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if json.Unmarshal(body, &change) == nil {
		r.names[change.Name] = true
	}
	w.WriteHeader(http.StatusNoContent)
}

// setUp lets the receiver take what comes, or not.
func (r *receiver) setUp(up bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.up = up
}

// hasReceived says whether an object was told.
func (r *receiver) hasReceived(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names[name]
}
