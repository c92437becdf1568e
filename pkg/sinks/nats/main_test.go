package nats

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
	"github.com/kubecdc/kubecdc/test/parts/require"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// patience bounds waits that end by a condition when all is well. It is never slept.
const patience = 3 * time.Minute

const testSubject = "k8s.{cluster}.{group}.{resource}.{namespace}.{name}"

// serve starts a server for one test.
func serve(t testing.TB, config string) *natsserver.Server {
	t.Helper()
	return serveIn(t, t.TempDir(), config)
}

// serveIn is serve for a test that does something to the files of the server, which are below dir.
func serveIn(t testing.TB, dir, config string) *natsserver.Server {
	t.Helper()
	require.Integration(t)
	s, err := natsserver.Start(context.Background(), natsserver.Options{Dir: dir, Config: config})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Kill(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// configFor is what the tests deliver with: a stream of their own, and time for an answer on a machine that starves.
func configFor(url string) Config {
	return Config{URL: url, Stream: "K8S", Subject: testSubject, AckTimeout: patience, Create: Create{Enabled: true}}
}

// hasty is for tests in which answers are lost, and messages sent again.
func hasty(url string) Config {
	cfg := configFor(url)
	cfg.AckTimeout = hastyTimeout
	return cfg
}

const hastyTimeout = time.Second

func newSink(t testing.TB, cfg Config, log *slog.Logger) *Sink {
	t.Helper()
	s, err := New(cfg, format.JSON, log)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// opened makes a sink that is closed at the end of the test.
func opened(t testing.TB, cfg Config, log *slog.Logger) *Sink {
	t.Helper()
	s := newSink(t, cfg, log)
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// client is an ordinary connection for what the sink does not do: reading, and changing streams.
func client(t testing.TB, url string, options ...nats.Option) jetstream.JetStream {
	t.Helper()
	closed := make(chan struct{})
	options = append(options, nats.Timeout(patience), nats.MaxReconnects(-1), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	nc, err := nats.Connect(url, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close(); <-closed })
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(patience))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// held reads everything a stream holds, in its order.
func held(t testing.TB, js jetstream.JetStream, stream string) []sinktest.Delivered {
	t.Helper()
	var all []sinktest.Delivered
	for _, m := range messages(t, js, stream) {
		all = append(all, sinktest.Delivered{ID: idOf(m.Headers(), m.Data()), Value: m.Data(), Topic: m.Subject()})
	}
	return all
}

// idOf returns the ID of a change: in a header where there is no payload, else in that.
func idOf(header nats.Header, data []byte) string {
	if id := header.Get(nats.MsgIdHdr); id != "" {
		return id
	}
	var native struct {
		ID string `json:"id"`
	}
	_ = json.Unmarshal(data, &native) // an attribute of CloudEvents, or none
	return cmp.Or(header.Get(headerID), header.Get("ce-id"), native.ID)
}

// messages reads everything a stream holds, in its order.
func messages(t testing.TB, js jetstream.JetStream, stream string) []jetstream.Msg {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := insist(ctx, func(ctx context.Context) (jetstream.Stream, error) { return js.Stream(ctx, stream) })
	if err != nil {
		t.Fatal(err)
	}
	last := s.CachedInfo().State.LastSeq
	if s.CachedInfo().State.Msgs == 0 {
		return nil
	}
	consumer, err := insist(ctx, func(ctx context.Context) (jetstream.Consumer, error) {
		return s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	})
	if err != nil {
		t.Fatal(err)
	}
	reading, err := consumer.Messages()
	if err != nil {
		t.Fatal(err)
	}
	defer reading.Stop()
	var all []jetstream.Msg
	for at := uint64(0); at < last; {
		m, err := reading.Next(jetstream.NextContext(ctx))
		if err != nil {
			t.Fatalf("read up to %d of %d: %v", at, last, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		at = meta.Sequence.Stream
		all = append(all, m)
	}
	return all
}

// insist asks until there is an answer: servers that have just lost each other may drop a request, or answer that none of
// them leads.
func insist[T any](ctx context.Context, ask func(context.Context) (T, error)) (T, error) {
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		answer, err := ask(attempt)
		cancel()
		var refused *jetstream.APIError
		leaderless := errors.As(err, &refused) && refused.Code == http.StatusServiceUnavailable
		if err == nil || ctx.Err() != nil || !leaderless && !errors.Is(err, context.DeadlineExceeded) {
			return answer, err
		}
		<-pause.C
	}
}

// harness describes a server's stream to the suite.
func harness(server *natsserver.Server, url string) sinktest.Harness {
	return sinktest.Harness{
		New:        func(t testing.TB) sinks.Sink { return newSink(t, hasty(url), slog.New(slog.DiscardHandler)) },
		Read:       func(t testing.TB) []sinktest.Delivered { return held(t, client(t, server.URL()), "K8S") },
		ExactRetry: true, ExactRestart: true,
	}
}

// withoutBatches makes the stream that configFor names, as servers before 2.14 know it: changes go there by message ID.
func withoutBatches(t testing.TB, server *natsserver.Server, options ...nats.Option) {
	t.Helper()
	if _, err := client(t, server.URL(), options...).CreateStream(t.Context(), jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}}); err != nil {
		t.Fatal(err)
	}
}

// routes are templates of subjects beside the stream's own, each with a subject for each object.
var routes = []string{"k8s.audit.of.{group}.{resource}.{namespace}.{name}", "k8s.one.copy.of.{group}.{resource}.{namespace}.{name}"}

// toRoutes lets the suite publish to routes, too. The sinks it opens are configured with them.
func toRoutes(h *sinktest.Harness) { h.Topics, h.Escape = routes, AppendToken }

// transcript collects log lines without their time.
type transcript struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (tr *transcript) Write(p []byte) (int, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.buf.Write(p)
}

func (tr *transcript) String() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.buf.String()
}

func (tr *transcript) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(tr, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}
