package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

// testTimeout bounds waits on an overloaded machine. No test sleeps for it.
const testTimeout = 3 * time.Minute

// modes are the ways to post events.
var modes = map[string]struct {
	format format.Format
	batch  int
}{
	"binary":     {format.CloudEvents, 1},
	"structured": {format.CloudEventsStructured, 1},
	"batched":    {format.CloudEventsStructured, 7},
}

func newTestSink(t testing.TB, cfg Config, f format.Format) *Sink {
	t.Helper()
	s, err := New(cfg, f)
	if err != nil {
		t.Fatal(err)
	}
	s.returnAfter = testTimeout // a machine may stand still
	return s
}

// newBinarySink returns a sink in binary mode that is closed at the end of the test.
func newBinarySink(t testing.TB, cfg Config) *Sink {
	t.Helper()
	s := newTestSink(t, cfg, format.CloudEvents)
	t.Cleanup(func() { closeSink(t, s) })
	return s
}

func closeSink(t testing.TB, s *Sink) {
	t.Helper()
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func newHarness(r *receiver, f format.Format, batch int) sinktest.Harness {
	return sinktest.Harness{
		New: func(t testing.TB) sinks.Sink {
			return newTestSink(t, Config{URL: r.http.URL, Batch: batch, Timeout: testTimeout}, f)
		},
		Read:  r.deliveredEvents,
		Value: func(c *event.Change) []byte { return f.AppendValue(nil, c) },
	}
}

func TestTheWebhookKeepsTheContract(t *testing.T) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			r := startReceiver(t, nil)
			h := newHarness(r, mode.format, mode.batch)
			h.Cut = func(testing.TB) { r.down.Store(true) }
			h.Restore = func(testing.TB) { r.down.Store(false) }
			h.Throttle = func(_ testing.TB, on bool) { r.busy.Store(on) }
			sinktest.Run(t, h)
		})
	}
}

// Every seventh request and every fifth response is lost, and every third request gets 503.
func TestLostRequestsAndAnswersLoseAndReorderNothing(t *testing.T) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			r := startReceiver(t, func(n int64, _ *http.Request, _ []byte) (int, bool) {
				switch {
				case n%7 == 0:
					return 0, false
				case n%5 == 0:
					return 0, true
				case n%3 == 0:
					return http.StatusServiceUnavailable, false
				}
				return http.StatusNoContent, true
			})
			sinktest.PublishRandomly(t, newHarness(r, mode.format, mode.batch), rand.New(rand.NewPCG(1, 1)), 40, 25)
		})
	}
}

// newPod returns one version of a pod.
func newPod(name string, version int) *event.Change {
	return &event.Change{Type: event.Updated, Cluster: "c", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
		Namespace: "shop", Name: name, UID: "uid-" + name, ResourceVersion: fmt.Sprint(version), After: []byte(`{"a":1}`)}
}

func publishChanges(t testing.TB, s *Sink, changes ...*event.Change) (int, error) {
	t.Helper()
	lane, err := s.Lane(changes[0])
	if err != nil {
		t.Fatal(err)
	}
	var batch []sinks.Message
	for i, c := range changes {
		batch = append(batch, sinks.Message{Offset: uint64(i + 1), Change: c})
	}
	return s.Publish(t.Context(), lane, batch)
}

func TestResponsesAreClassifiedByStatus(t *testing.T) {
	for status, want := range map[int]string{
		200: "accepted", 202: "accepted", 204: "accepted",
		400: "rejected", 422: "rejected", 413: "too large", 431: "too large",
		401: "unavailable", 403: "unavailable", 404: "unavailable", 405: "unavailable", 410: "unavailable", 415: "unavailable",
		429: "unavailable", 502: "unavailable", 503: "unavailable", 504: "unavailable", 301: "unavailable", 307: "unavailable",
		408: "unknown", 409: "unknown", 418: "unknown", 500: "unknown",
	} {
		r := startReceiver(t, func(int64, *http.Request, []byte) (int, bool) { return status, false })
		n, err := publishChanges(t, newBinarySink(t, Config{URL: r.http.URL}), newPod("web", 1))
		if got := errorKind(err); got != want || (n == 1) != (err == nil) {
			t.Errorf("%d: %d, %s (%v), want %s", status, n, got, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), fmt.Sprint(status)) {
			t.Errorf("%d is not in the reason: %v", status, err)
		}
	}
}

func errorKind(err error) string {
	var away *sinks.UnavailableError
	var never *sinks.RejectedError
	switch {
	case err == nil:
		return "accepted"
	case errors.As(err, &away):
		return "unavailable"
	case errors.As(err, &never) && never.TooLarge:
		return "too large"
	case errors.As(err, &never):
		return "rejected"
	}
	return "unknown"
}

func TestRetryAfterIsRespected(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for after, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "Fri, 02 Jan 2026 03:05:05 GMT": time.Minute, "Fri, 02 Jan 2026 03:00:00 GMT": 0,
		"soon": 0, "-3": 0, "+3": 0, "1.5": 0, "007": 7 * time.Second, "4000000000": maxRetryAfter, "5000000000": maxRetryAfter,
		"99999999999999999999": maxRetryAfter, strings.Repeat("9", 400): maxRetryAfter,
		"Friday, 02-Jan-26 03:05:05 GMT": time.Minute, "Fri Jan  2 03:05:05 2026": time.Minute,
		"Fri, 31 Dec 9999 23:59:59 GMT": maxRetryAfter,
	} {
		if got := parseRetryAfter(after, now); got != want {
			t.Errorf("Retry-After %q means %v, want %v", after, got, want)
		}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	t.Cleanup(server.Close)
	_, err := publishChanges(t, newBinarySink(t, Config{URL: server.URL}), newPod("web", 1))
	var away *sinks.UnavailableError
	if !errors.As(err, &away) || away.After != 3*time.Second {
		t.Errorf("got %v", err)
	}
}

func TestOnlyTheOffendingEventOfABatchIsRejected(t *testing.T) {
	r := startReceiver(t, func(_ int64, _ *http.Request, body []byte) (int, bool) {
		if strings.Contains(string(body), "poison") {
			return http.StatusUnprocessableEntity, false
		}
		return http.StatusOK, true
	})
	s := newTestSink(t, Config{URL: r.http.URL, Batch: 100}, format.CloudEventsStructured)
	t.Cleanup(func() { closeSink(t, s) })
	changes := []*event.Change{newPod("web", 1), newPod("web", 2), newPod("web", 3), newPod("web", 4), newPod("web", 5)}
	changes[2].After = []byte(`{"a":"poison"}`)
	n, err := publishChanges(t, s, changes...)
	if n != 2 || errorKind(err) != "rejected" {
		t.Fatalf("got %d, %v; want 2 and a rejection of the third", n, err)
	}
	if n, err := publishChanges(t, s, changes[3:]...); n != 2 || err != nil {
		t.Errorf("after it: %d, %v", n, err)
	}
	if got := len(r.deliveredEvents(t)); got != 4 {
		t.Errorf("%d events arrived, want 4", got)
	}
}

// TestWhatASlowReceiverTakesIsReportedAsItComes: the caller learns of each request that took long, not of all at the end.
func TestWhatASlowReceiverTakesIsReportedAsItComes(t *testing.T) {
	r := startReceiver(t, nil)
	s := newBinarySink(t, Config{URL: r.http.URL})
	s.returnAfter = 0 // every request takes long
	changes := []*event.Change{newPod("web", 1), newPod("web", 2), newPod("web", 3)}
	for i := range changes {
		n, err := publishChanges(t, s, changes[i:]...)
		if requests := int(r.requests.Load()); n != 1 || err != nil || requests != i+1 {
			t.Fatalf("got %d, %v, after %d requests; want 1 after %d", n, err, requests, i+1)
		}
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	elsewhere := startReceiver(t, nil)
	server := httptest.NewServer(http.RedirectHandler(elsewhere.http.URL, http.StatusTemporaryRedirect))
	t.Cleanup(server.Close)
	if _, err := publishChanges(t, newBinarySink(t, Config{URL: server.URL}), newPod("web", 1)); errorKind(err) != "unavailable" || !strings.Contains(err.Error(), "webhook.url") {
		t.Errorf("got %v", err)
	}
	if n := elsewhere.requests.Load(); n != 0 {
		t.Errorf("the redirect was followed %d times", n)
	}
}

func TestAReceiverThatDoesNotAnswerTimesOut(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(func() { close(release); server.Close() })
	s := newBinarySink(t, Config{URL: server.URL, Timeout: minTimeout})
	if n, err := publishChanges(t, s, newPod("web", 1)); n != 0 || err == nil || !strings.Contains(err.Error(), "no response within 100ms") {
		t.Errorf("got %d, %v", n, err)
	}
}

func TestAConnectTimeoutIsUnavailable(t *testing.T) {
	s := newBinarySink(t, Config{URL: "http://127.0.0.1:1"})
	s.client.Transport.(*http.Transport).DialContext = (&net.Dialer{Deadline: time.Unix(1, 0)}).DialContext
	if n, err := publishChanges(t, s, newPod("web", 1)); n != 0 || errorKind(err) != "unavailable" || !strings.Contains(err.Error(), "i/o timeout") {
		t.Errorf("got %d, %v", n, err)
	}
}

// newBlockedReceiver returns a receiver that signals the arrival of its first request and responds to it when release is
// closed.
func newBlockedReceiver(t *testing.T) (r *receiver, arrived <-chan struct{}, release chan struct{}) {
	t.Helper()
	came, release := make(chan struct{}, 1), make(chan struct{})
	return startReceiver(t, func(n int64, _ *http.Request, _ []byte) (int, bool) {
		if n == 1 {
			came <- struct{}{}
			<-release
		}
		return http.StatusOK, true
	}), came, release
}

// abandonRequest publishes a change, cancels the Publish when its request has arrived, and returns the lane.
func abandonRequest(t *testing.T, s *Sink, arrived <-chan struct{}) sinks.Lane {
	t.Helper()
	lane, err := s.Lane(newPod("web", 1))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if n, err := s.Publish(ctx, lane, []sinks.Message{{Change: newPod("web", 1)}}); n != 0 || !errors.Is(err, context.Canceled) {
		t.Fatalf("got %d, %v", n, err)
	}
	return lane
}

func TestAnAbandonedRequestIsNotOvertaken(t *testing.T) {
	r, arrived, release := newBlockedReceiver(t)
	s := newBinarySink(t, Config{URL: r.http.URL})
	lane := abandonRequest(t, s, arrived)
	ended, end := context.WithCancel(t.Context())
	end()
	if n, err := s.Publish(ended, lane, []sinks.Message{{Change: newPod("web", 1)}}); n != 0 || !errors.Is(err, context.Canceled) {
		t.Fatalf("got %d, %v", n, err)
	}
	if n := r.requests.Load(); n != 1 {
		t.Fatalf("%d requests are on their way in one lane", n)
	}
	close(release)
	if n, err := publishChanges(t, s, newPod("web", 1), newPod("web", 2)); n != 2 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
}

func TestCloseWaitsForTheLastRequest(t *testing.T) {
	r, arrived, release := newBlockedReceiver(t)
	first := newTestSink(t, Config{URL: r.http.URL}, format.CloudEvents)
	abandonRequest(t, first, arrived)
	go close(release)
	closeSink(t, first)
	if n := len(r.deliveredEvents(t)); n != 1 {
		t.Errorf("%d changes were taken when the sink was closed, want the one that was on its way", n)
	}
}

// TestAResponseCountsByItsStatus: whatever the body does, the status counts before it ends, and the next request is sent.
func TestAResponseCountsByItsStatus(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		write  func(w io.Writer, r *http.Request)
		want   string
	}{
		"no end":        {http.StatusOK, func(_ io.Writer, r *http.Request) { <-r.Context().Done() }, "accepted"},
		"bytes, no end": {http.StatusOK, func(w io.Writer, r *http.Request) { fmt.Fprint(w, "a"); <-r.Context().Done() }, "accepted"},
		"endless":       {http.StatusOK, writeEndlessly, "accepted"},
		"refused":       {http.StatusUnprocessableEntity, func(_ io.Writer, r *http.Request) { <-r.Context().Done() }, "rejected"},
		"busy":          {http.StatusServiceUnavailable, writeEndlessly, "unavailable"},
		"cut off":       {http.StatusOK, func(io.Writer, *http.Request) { panic(http.ErrAbortHandler) }, "accepted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(test.status)
				_ = http.NewResponseController(w).Flush() // the connection may be closed
				test.write(w, r)
			}))
			t.Cleanup(server.Close)
			s := newBinarySink(t, Config{URL: server.URL, Lanes: 1, Timeout: time.Hour})
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			for i := range 3 {
				_, err := s.Publish(ctx, "0/1", []sinks.Message{{Change: newPod("web", i+1)}})
				if got := errorKind(err); got != test.want {
					t.Fatalf("request %d: %s (%v), want %s", i+1, got, err, test.want)
				}
			}
			if all := s.Conditions(); len(all) != 1 || all[0].Code != condition.SinkNoKeepAlive {
				t.Errorf("it is not reported that connections are not used again: %v", all)
			}
		})
	}
}

func writeEndlessly(w io.Writer, r *http.Request) {
	for block := make([]byte, 4096); r.Context().Err() == nil; {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}

func TestAConnectionIsUsedAgainAfterAShortBody(t *testing.T) {
	var connections atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 3 { // chunked, and later than the status
			_ = http.NewResponseController(w).Flush()
			fmt.Fprint(w, "accepted\n")
		}
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	s := newBinarySink(t, Config{URL: server.URL, Lanes: 1})
	s.bodyTimeout = testTimeout
	if n, err := publishChanges(t, s, newPod("web", 1), newPod("web", 2), newPod("web", 3)); n != 3 || err != nil {
		t.Fatalf("got %d, %v", n, err)
	}
	if n := connections.Load(); n != 1 || len(s.Conditions()) > 0 {
		t.Errorf("%d connections for three requests of a lane; %v", n, s.Conditions())
	}
}

// TestNoErrorRepeatsWhatTheReceiverWrites: a receiver may repeat values in every part of a response. Errors are logged.
func TestNoErrorRepeatsWhatTheReceiverWrites(t *testing.T) {
	for _, response := range []string{
		"HTTP/1.1 422 Unprocessable Entity\r\nContent-Length: 7\r\n\r\nhunter2",
		"HTTP/1.1 422 hunter2\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 500 hunter2\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 799 hunter2\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 413 hunter2\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 429 hunter2\r\nRetry-After: hunter2\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 307 hunter2\r\nLocation: http://hunter2/\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 307 hunter2\r\nLocation: :hunter2\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 401 hunter2\r\nWWW-Authenticate: hunter2\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 hunter2\r\n\r\n",
		"HTTP/hunter2 200 OK\r\n\r\n",
		"HTTP/1.1 500 OK\r\nhunter2\r\n\r\n",
		"HTTP/1.1 500 OK\r\nTransfer-Encoding: hunter2\r\n\r\n",
		"HTTP/1.1 500 OK\r\nContent-Length: hunter2\r\n\r\n",
		"hunter2\r\n\r\n",
		"hunter2",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, err = io.WriteString(conn, response)
			if err = errors.Join(err, conn.Close()); err != nil {
				t.Error(err)
			}
		}))
		_, err := publishChanges(t, newBinarySink(t, Config{URL: server.URL + "/?key=hunter2"}), newPod("web", 1))
		server.Close()
		if err == nil {
			t.Errorf("%q is accepted", response)
		}
		for e := err; e != nil; e = errors.Unwrap(e) {
			if strings.Contains(e.Error(), "hunter2") {
				t.Errorf("%q: the error repeats it: %v", response, e)
			}
		}
	}
}

func TestSecretsAreReadForEachRequestAndNeverShown(t *testing.T) {
	dir := t.TempDir()
	token, key := filepath.Join(dir, "token"), filepath.Join(dir, "key")
	writeFile(t, key, "key-1\n")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer hunter3" || r.Header.Get("X-Key") != "key-1" || r.Header.Get("X-Plain") != "plain" {
			http.Error(w, "you sent "+r.Header.Get("Authorization"), http.StatusUnauthorized)
		}
	}))
	t.Cleanup(server.Close)
	s := newBinarySink(t, Config{URL: server.URL, BearerToken: credentials.InFile(token), Headers: []Header{{Name: "X-Key", Value: credentials.InFile(key)}, {Name: "x-plain", Value: credentials.Text("plain")}}})
	if _, err := publishChanges(t, s, newPod("web", 1)); errorKind(err) != "unavailable" || !strings.Contains(err.Error(), "webhook.bearerToken") {
		t.Errorf("without the file: %v", err)
	}
	writeFile(t, token, "hunter2\n")
	if _, err := publishChanges(t, s, newPod("web", 1)); errorKind(err) != "unavailable" || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("with a wrong token: %v", err)
	}
	writeFile(t, token, "hunter3\n")
	if n, err := publishChanges(t, s, newPod("web", 1)); n != 1 || err != nil {
		t.Errorf("with the right token: %v", err)
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestATLSConnectionUsesRotatedFiles(t *testing.T) {
	good, other, mine := certificates.New(t), certificates.New(t), t.TempDir()
	r := &receiver{t: t}
	r.http = httptest.NewUnstartedServer(r)
	r.http.Config.ErrorLog = nil
	r.http.TLS = good.Server(t)
	r.http.StartTLS()
	t.Cleanup(r.http.Close)
	cfg := Config{URL: r.http.URL, TLS: credentials.TLS{CA: filepath.Join(mine, "ca.pem"), Cert: filepath.Join(mine, "cert.pem"), Key: filepath.Join(mine, "key.pem")}}
	s := newBinarySink(t, cfg)
	if _, err := publishChanges(t, s, newPod("web", 1)); errorKind(err) != "unavailable" || !strings.Contains(err.Error(), "ca.pem") {
		t.Errorf("without the files: %v", err)
	}
	other.IssueTo(t, mine)
	if _, err := publishChanges(t, s, newPod("web", 1)); errorKind(err) != "unavailable" || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("neither trusts the other: %v", err)
	}
	good.IssueTo(t, mine)
	if n, err := publishChanges(t, s, newPod("web", 1)); n != 1 || err != nil {
		t.Errorf("with the right files: %v", err)
	}
}

func TestBadConfigurationIsNamedByItsPath(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no url":      {func(c *Config) { c.URL = "" }, `webhook.url: required; for example https://receiver.example/events`},
		"scheme":      {func(c *Config) { c.URL = "ftp://a/" }, `webhook.url: scheme "ftp" is not one of https, http`},
		"tls on http": {func(c *Config) { c.URL, c.TLS.CA = "http://a/", "ca" }, `webhook.url: webhook.tls is set and the scheme is http; write https`},
		"batch":       {func(c *Config) { c.Batch = 1001 }, `webhook.batch: 1001 is not between 1 and 1000`},
		"lanes":       {func(c *Config) { c.Lanes = -1 }, `webhook.lanes: -1 is not between 1 and 1024`},
		"timeout":     {func(c *Config) { c.Timeout = -1 }, `webhook.timeout: too short: found -1ns, expected at least 100ms`},
		"half a pair": {func(c *Config) { c.TLS.Key = "k" }, `webhook.tls.cert: cert and key belong together; set both or none`},
		"header name": {func(c *Config) { c.Headers = []Header{{Name: "a b", Value: credentials.Text("c")}} }, `webhook.headers[0]: "a b" is not a header name`},
		"header twice": {func(c *Config) {
			c.Headers = []Header{{Name: "a", Value: credentials.Text("c")}, {Name: "A", Value: credentials.Text("c")}}
		}, `webhook.headers[1]: A is given twice`},
		"our header": {func(c *Config) { c.Headers = []Header{{Name: "ce-id", Value: credentials.Text("c")}} }, `webhook.headers[0]: Ce-Id is set by the exporter`},
		"no value":   {func(c *Config) { c.Headers = []Header{{Name: "a"}} }, `webhook.headers[0]: A needs a value`},
		"split":      {func(c *Config) { c.Headers = []Header{{Name: "a", Value: credentials.Text("b\r\nc: d")}} }, `webhook.headers[0]: the value of A has a character that a header cannot have`},
		"authorization": {func(c *Config) {
			c.BearerToken, c.Headers = credentials.Text("t"), []Header{{Name: "authorization", Value: credentials.Text("b")}}
		}, `webhook.headers[0]: webhook.bearerToken sets Authorization as well; use only one of them`},
	} {
		c := Config{URL: "https://receiver.example/"}
		test.change(&c)
		if err := c.Validate(); err == nil || err.Error() != test.want {
			t.Errorf("%s: got %v\nwant %s", name, err, test.want)
		}
	}
	if _, err := New(Config{URL: "https://a/"}, format.JSON); err == nil || !strings.Contains(err.Error(), "a webhook requires CloudEvents") {
		t.Errorf("json: %v", err)
	}
	if _, err := New(Config{URL: "https://a/", Batch: 2}, format.CloudEvents); err == nil || !strings.Contains(err.Error(), "cloudevents-structured") {
		t.Errorf("a batch in binary mode: %v", err)
	}
}
