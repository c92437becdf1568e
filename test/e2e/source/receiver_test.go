package source

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// receiver accepts changes over HTTP while it is up, and answers 503 while it is not.
type receiver struct {
	server *httptest.Server

	mu    sync.Mutex
	up    bool
	names map[string]bool // of the received objects
	text  strings.Builder // of the received changes
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{names: map[string]bool{}}
	r.server = httptest.NewServer(http.HandlerFunc(r.serveChange))
	t.Cleanup(r.server.Close)
	return r
}

// sink returns the configuration section of the sink for this receiver.
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
	r.text.Write(body)
	if json.Unmarshal(body, &change) == nil {
		r.names[change.Name] = true
	}
	w.WriteHeader(http.StatusNoContent)
}

// setUp makes the receiver accept or refuse changes.
func (r *receiver) setUp(up bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.up = up
}

// hasReceived reports whether a change of an object was received.
func (r *receiver) hasReceived(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names[name]
}

// received returns all received changes.
func (r *receiver) received() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}
