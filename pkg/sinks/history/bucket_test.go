package history

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/s3server"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

var testKeys = history.Keys{ID: credentials.Text("anybody"), Secret: credentials.Text("anything")}

// server is a server of S3 that answers with a status, or not at all.
type server struct {
	http   *httptest.Server
	status atomic.Int64 // 0: as it does by itself; -1: the connection ends; -2: no answer
}

func startServer(t *testing.T) *server {
	t.Helper()
	address, s := s3server.Start(t, "bucket"), &server{}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { // signatures are not looked at; the host names the bucket
		r.SetURL(&url.URL{Scheme: "http", Host: address})
	}}
	s.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch status := s.status.Load(); status {
		case 0:
			proxy.ServeHTTP(w, r)
		case -1:
			panic(http.ErrAbortHandler)
		case -2:
			_, _ = io.Copy(io.Discard, r.Body) // or the end of the connection is not seen
			<-r.Context().Done()
		default:
			w.WriteHeader(int(status))
		}
	}))
	t.Cleanup(s.http.Close)
	return s
}

func (s *server) config() Config {
	return Config{Bucket: "s3://bucket/a/b?region=eu-central-1&endpoint=" + s.http.URL, Keys: testKeys}
}

func TestTheSinkKeepsTheContractInABucket(t *testing.T) {
	s := startServer(t)
	h := newHarness(s.config())
	h.ExactReplay = true // a folder is locked while the first of two sinks is open
	h.Cut = func(testing.TB) { s.status.Store(-1) }
	h.Restore = func(testing.TB) { s.status.Store(0) }
	h.Throttle = func(_ testing.TB, on bool) {
		s.status.Store(0)
		if on {
			s.status.Store(http.StatusServiceUnavailable)
		}
	}
	sinktest.Run(t, h)
}

// TestABucketThatCannotBeWrittenToIsSaid, with a code and a remedy for each reason, and nothing is lost.
func TestABucketThatCannotBeWrittenToIsSaid(t *testing.T) {
	s := startServer(t)
	sink := newSink(t, s.config())
	mustPublish(t, sink, newMessages(1, 2))
	for status, want := range map[int]condition.Code{
		http.StatusServiceUnavailable: condition.SinkBusy, http.StatusForbidden: condition.SinkUnauthorized, -1: condition.SinkUnreachable,
		http.StatusInternalServerError: condition.SinkFailing, http.StatusInsufficientStorage: condition.SinkFull, http.StatusNotFound: condition.SinkMisconfigured,
	} {
		s.status.Store(int64(status))
		var unavailable *sinks.UnavailableError
		n, err := sink.Publish(t.Context(), onlyLane, newMessages(3, 4))
		if n != 0 || !errors.As(err, &unavailable) || unavailable.Code != want || unavailable.Remedy == "" || strings.Contains(err.Error(), "anything") {
			t.Errorf("%d: %d, %v", status, n, err)
		}
		s.status.Store(0)
	}
	mustPublish(t, sink, newMessages(3, 4))
	mustClose(t, sink)
	wantRows(t, s.config(), 4)
}

// TestABucketThatHangsHoldsNoStop: Publish ends with its context, and what was under way is not stored twice.
func TestABucketThatHangsHoldsNoStop(t *testing.T) {
	s := startServer(t)
	sink := newSink(t, s.config())
	mustPublish(t, sink, newMessages(1, 2))
	s.status.Store(-2)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if n, err := sink.Publish(ctx, onlyLane, newMessages(3, 4)); n != 0 || !errors.Is(err, ctx.Err()) {
		t.Errorf("%d, %v", n, err)
	}
	s.status.Store(0)
	s.http.CloseClientConnections()
	for deadline := time.Now().Add(time.Minute); ; { // the attempt under way fails first
		n, err := sink.Publish(t.Context(), onlyLane, newMessages(3, 4))
		if n == 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	mustClose(t, sink)
	wantRows(t, s.config(), 4)
}

// TestASecondExporterTakesABucketOver and the first one stops.
func TestASecondExporterTakesABucketOver(t *testing.T) {
	s := startServer(t)
	first, second := newSink(t, s.config()), newSink(t, s.config())
	mustPublish(t, first, newMessages(1, 2))
	mustPublish(t, second, newMessages(2, 3))
	var deposed *sinks.DeposedError
	if _, err := first.Publish(t.Context(), onlyLane, newMessages(3, 3)); !errors.As(err, &deposed) {
		t.Errorf("%v", err)
	}
	mustClose(t, first)
	mustClose(t, second)
	wantRows(t, s.config(), 3)
}

// TestAPortWhereNothingListensIsNamed with the setting that has it.
func TestAPortWhereNothingListensIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, l.Close())
	sink := newSink(t, Config{Bucket: "s3://bucket?region=x&endpoint=http://" + l.Addr().String(), Keys: testKeys})
	var unavailable *sinks.UnavailableError
	if err := sink.Ping(t.Context()); !errors.As(err, &unavailable) || unavailable.Code != condition.SinkUnreachable ||
		!strings.Contains(unavailable.Reason, "connection refused") || !strings.Contains(unavailable.Remedy, "history.bucket") {
		t.Errorf("%v", err)
	}
	mustClose(t, sink)
}
