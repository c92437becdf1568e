package webhook

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// receiver accepts CloudEvents over HTTP in all three modes, with the failures that a test configures.
type receiver struct {
	t    testing.TB
	http *httptest.Server
	down atomic.Bool // every connection is broken before an event is accepted
	busy atomic.Bool // every request gets 429
	// respond, if set, returns the status of a response, and whether the events are accepted. A status of 0 breaks the
	// connection.
	respond func(n int64, r *http.Request, body []byte) (status int, take bool)

	requests atomic.Int64
	mu       sync.Mutex
	accepted []sinktest.Delivered
}

func startReceiver(t testing.TB, answer func(n int64, r *http.Request, body []byte) (status int, take bool)) *receiver {
	t.Helper()
	r := &receiver{t: t, respond: answer}
	r.http = httptest.NewServer(r)
	t.Cleanup(r.http.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	n, status, take := r.requests.Add(1), http.StatusAccepted, true
	if r.respond != nil {
		status, take = r.respond(n, request, body)
	}
	if r.busy.Load() {
		status, take = http.StatusTooManyRequests, false
	}
	if r.down.Load() || err != nil {
		status, take = 0, false
	}
	if take {
		r.recordEvents(parseEvents(r.t, request, body))
	}
	if status == 0 {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			r.t.Error(err)
			return
		}
		conn.Close()
		return
	}
	w.WriteHeader(status)
}

func (r *receiver) recordEvents(all []sinktest.Delivered) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.accepted = append(r.accepted, all...)
}

func (r *receiver) deliveredEvents(testing.TB) []sinktest.Delivered {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]sinktest.Delivered(nil), r.accepted...)
}

// parseEvents reads the events of a request, in any mode.
func parseEvents(t testing.TB, r *http.Request, body []byte) []sinktest.Delivered {
	switch mode := r.Header.Get("Content-Type"); mode {
	case "application/json":
		id, err := url.PathUnescape(r.Header.Get("ce-id"))
		if err != nil || r.Header.Get("ce-specversion") != "1.0" {
			t.Errorf("no CloudEvent in binary mode: %v", r.Header)
		}
		return []sinktest.Delivered{{ID: id, Value: body}}
	case "application/cloudevents+json":
		return []sinktest.Delivered{parseStructured(t, body)}
	case "application/cloudevents-batch+json":
		var all []json.RawMessage
		if err := json.Unmarshal(body, &all); err != nil {
			t.Errorf("no array: %v", err)
		}
		var events []sinktest.Delivered
		for _, one := range all {
			events = append(events, parseStructured(t, one))
		}
		return events
	default:
		t.Errorf("the content type is %q", mode)
		return nil
	}
}

func parseStructured(t testing.TB, body []byte) sinktest.Delivered {
	var event struct{ SpecVersion, ID string }
	if err := json.Unmarshal(body, &event); err != nil || event.SpecVersion != "1.0" {
		t.Errorf("no CloudEvent in structured mode: %v, %.100s", err, body)
	}
	return sinktest.Delivered{ID: strings.Clone(event.ID), Value: body}
}
