package nats

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// testTimeout bounds waits that end by a condition. No test sleeps for it.
const testTimeout = 3 * time.Minute

const testSubject = "k8s.{cluster}.{group}.{resource}.{namespace}.{name}"

// startServer starts a server for one test.
func startServer(t testing.TB, config string) *natsserver.Server {
	t.Helper()
	return natsserver.ForTest(t, natsserver.Options{Config: config})
}

// startServerIn is startServer with the files of the server below dir, for tests that change them.
func startServerIn(t testing.TB, dir string) *natsserver.Server {
	t.Helper()
	return natsserver.ForTest(t, natsserver.Options{Dir: dir})
}

// testConfig is the configuration of most tests: a stream of its own, and a timeout that suffices on a starved machine.
func testConfig(url string) Config {
	return Config{URL: url, Stream: "K8S", Subject: testSubject, AckTimeout: testTimeout, Create: Create{Enabled: true}}
}

// shortTimeoutConfig is for tests in which answers are lost and messages sent again.
func shortTimeoutConfig(url string) Config {
	cfg := testConfig(url)
	cfg.AckTimeout = shortTimeout
	return cfg
}

const shortTimeout = time.Second

func newSink(t testing.TB, cfg Config, log *slog.Logger) *Sink {
	t.Helper()
	s, err := New(cfg, format.JSON, log)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// openSink returns a sink that is closed at the end of the test.
func openSink(t testing.TB, cfg Config, log *slog.Logger) *Sink {
	t.Helper()
	s := newSink(t, cfg, log)
	closeAtEnd(t, s)
	return s
}

func closeAtEnd(t testing.TB, s *Sink) {
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// connectClient returns an ordinary connection, to read and to edit streams.
func connectClient(t testing.TB, url string, options ...nats.Option) jetstream.JetStream {
	t.Helper()
	closed := make(chan struct{})
	options = append(options, nats.Timeout(testTimeout), nats.MaxReconnects(-1), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	nc, err := nats.Connect(url, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close(); <-closed })
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(testTimeout))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// readDelivered reads all messages of a stream, in order.
func readDelivered(t testing.TB, js jetstream.JetStream, stream string) []sinktest.Delivered {
	t.Helper()
	var all []sinktest.Delivered
	for _, m := range readMessages(t, js, stream) {
		all = append(all, sinktest.Delivered{ID: changeIDOf(m.Headers(), m.Data()), Value: m.Data(), Topic: m.Subject()})
	}
	return all
}

// changeIDOf returns the ID of a change: from the headers if there is one, else from the payload.
func changeIDOf(header nats.Header, data []byte) string {
	if id := header.Get(nats.MsgIdHdr); id != "" {
		return id
	}
	var native struct {
		ID string `json:"id"`
	}
	_ = json.Unmarshal(data, &native) // an attribute of CloudEvents, or none
	return cmp.Or(header.Get(headerID), header.Get("ce-id"), native.ID)
}

// readMessages reads all messages of a stream, in order.
func readMessages(t testing.TB, js jetstream.JetStream, stream string) []jetstream.Msg {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	s, err := retryUntilAnswered(ctx, func(ctx context.Context) (jetstream.Stream, error) { return js.Stream(ctx, stream) })
	if err != nil {
		t.Fatal(err)
	}
	last := s.CachedInfo().State.LastSeq
	if s.CachedInfo().State.Msgs == 0 {
		return nil
	}
	consumer, err := retryUntilAnswered(ctx, func(ctx context.Context) (jetstream.Consumer, error) {
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

// retryUntilAnswered repeats a request until it is answered: servers that have just lost each other may drop a request, or
// report that none of them leads.
func retryUntilAnswered[T any](ctx context.Context, ask func(context.Context) (T, error)) (T, error) {
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

// newHarness describes the stream of a server to the suite.
func newHarness(server *natsserver.Server, url string) sinktest.Harness {
	return sinktest.Harness{
		New: func(t testing.TB) sinks.Sink {
			return newSink(t, shortTimeoutConfig(url), slog.New(slog.DiscardHandler))
		},
		Read: func(t testing.TB) []sinktest.Delivered {
			return readDelivered(t, connectClient(t, server.URL()), "K8S")
		},
		ExactRetry: true, ExactRestart: true,
	}
}

// createStreamWithoutBatches creates the stream of testConfig as servers before 2.14 have it: changes go there by message
// ID.
func createStreamWithoutBatches(t testing.TB, server *natsserver.Server, options ...nats.Option) {
	t.Helper()
	if _, err := connectClient(t, server.URL(), options...).CreateStream(t.Context(), jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}}); err != nil {
		t.Fatal(err)
	}
}

// testRoutes are templates of routes. Each gives every object a subject of its own.
var testRoutes = []string{"k8s.audit.of.{group}.{resource}.{namespace}.{name}", "k8s.one.copy.of.{group}.{resource}.{namespace}.{name}"}

// addRoutes makes the suite publish to routes, too. The sinks that it opens must be configured with them.
func addRoutes(h *sinktest.Harness) { h.Topics, h.Escape = testRoutes, AppendToken }

// warningsOf returns what a sink warns of.
func warningsOf(s *Sink) (all []string) {
	for _, c := range condition.Summarize(s.Conditions()) {
		all = append(all, c.Cause)
	}
	return all
}
