package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

func bucket(url string) Config {
	return Config{URL: url, Mode: modeKV, Bucket: "objects", Subject: "{group}.{resource}.{namespace}.{name}", AckTimeout: patience,
		Create: Create{Enabled: true}}
}

func core(url string) Config {
	return Config{URL: url, Mode: modeCore, Subject: testSubject, AckTimeout: patience}
}

// A bucket forgets what its keys held before, so the suite looks at what the bucket told of itself as it stored it.
func TestABucketKeepsTheContract(t *testing.T) {
	server := serve(t, "")
	js := client(t, server.URL())
	listener := subscribe(t, server, "seen.>")
	if _, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "objects",
		RePublish: &jetstream.RePublish{Source: ">", Destination: "seen.>"}}); err != nil {
		t.Fatal(err)
	}
	h := harness(server, server.URL())
	h.New = func(t testing.TB) sinks.Sink {
		cfg := bucket(server.URL())
		cfg.AckTimeout = time.Second
		return newSink(t, cfg, quiet)
	}
	h.StateOnly, h.ObjectsApart = true, true
	h.Value = func(c *event.Change) []byte {
		if c.Type == event.Deleted {
			return nil
		}
		return format.JSON.AppendValue(nil, c)
	}
	h.Read = listener.all
	sinktest.Run(t, h)
}

func TestABucketHoldsTheCurrentState(t *testing.T) {
	server := serve(t, "")
	s := opened(t, bucket(server.URL()), quiet)
	gone := pod("old", 3)
	gone.Type, gone.After = event.Deleted, nil
	gap := &event.Change{Type: event.Gap, Cluster: "c", Resource: gone.Resource, Gap: &event.GapInfo{}}
	accepted(t, s, pod("web.eu", 1), pod("web.eu", 2))
	accepted(t, s, pod("old", 1), gone)
	accepted(t, s, gap)
	kv, err := client(t, server.URL()).KeyValue(t.Context(), "objects")
	if err != nil {
		t.Fatal(err)
	}
	entry, err := kv.Get(t.Context(), "core.pods.shop.web=2Eeu")
	if err != nil || string(entry.Value()) != string(format.JSON.AppendValue(nil, pod("web.eu", 2))) {
		t.Errorf("the bucket holds %v, %v", entry, err)
	}
	if _, err := kv.Get(t.Context(), "core.pods.shop.old"); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("what was deleted is answered with %v", err)
	}
	history, err := kv.History(t.Context(), "core.pods.shop.old")
	if err != nil || len(history) != 1 || history[0].Operation() != jetstream.KeyValuePurge {
		t.Errorf("the deleted object left %v, %v", history, err)
	}
	if got := s.Omitted(); got != 1 {
		t.Errorf("%d control records omitted, want 1", got)
	}
	keys, err := kv.Keys(t.Context())
	if err != nil || !slices.Equal(keys, []string{"core.pods.shop.web=2Eeu"}) {
		t.Errorf("keys %q, %v", keys, err)
	}
}

func TestAMarkerExpiresWhereTheBucketTakesThat(t *testing.T) {
	server := serve(t, "")
	js := client(t, server.URL())
	for name, expires := range map[string]bool{"made": true, "found": false} {
		cfg := bucket(server.URL())
		cfg.Bucket = name
		if !expires {
			if _, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: name}); err != nil {
				t.Fatal(err)
			}
		}
		gone := pod("web", 1)
		gone.Type = event.Deleted
		accepted(t, opened(t, cfg, quiet), gone)
		last := messages(t, js, "KV_"+name)[0].Headers()
		if got := last.Get(nats.MsgTTLHdr) != ""; got != expires {
			t.Errorf("bucket %s: the marker has the headers %v", name, last)
		}
	}
}

func TestABucketCanBeExact(t *testing.T) {
	server := serve(t, "")
	cfg := bucket(server.URL())
	cfg.Exact = true
	s := opened(t, cfg, quiet)
	gone := pod("web", 2)
	gone.Type = event.Deleted
	accepted(t, s, pod("web", 1), gone, pod("web", 3))
	kv, err := client(t, server.URL()).KeyValue(t.Context(), "objects")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), "core.pods.shop.web", []byte("mine")); err != nil {
		t.Fatal(err)
	}
	unavailable(t, s, pod("web", 4), `nats.exact cannot be kept`, `another writer publishes to stream "KV_objects", for example to "$KV.objects.core.pods.shop.web"`)
}

func TestAStreamThatIsNoBucketIsAFault(t *testing.T) {
	server := serve(t, "")
	createStream(t, client(t, server.URL()), jetstream.StreamConfig{Name: "KV_objects", Subjects: []string{"$KV.objects.>"}})
	unavailable(t, opened(t, bucket(server.URL()), quiet), pod("web", 1), `stream "KV_objects" is no key-value bucket`)
}

// subscriber keeps what an ordinary subscriber hears. It is heard again after the server was away.
type subscriber struct {
	nc    *nats.Conn
	mu    sync.Mutex
	heard []sinktest.Delivered
}

func subscribe(t *testing.T, server *natsserver.Server, subject string) *subscriber {
	t.Helper()
	s, closed := &subscriber{}, make(chan struct{})
	nc, err := nats.Connect(server.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.Timeout(patience),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		t.Fatal(err)
	}
	s.nc = nc
	t.Cleanup(func() { nc.Close(); <-closed })
	if _, err := nc.Subscribe(subject, func(m *nats.Msg) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.heard = append(s.heard, sinktest.Delivered{ID: idOf(m.Header, m.Data), Value: m.Data, Topic: m.Subject})
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.FlushTimeout(patience); err != nil {
		t.Fatal(err)
	}
	return s
}

// all returns what was heard when everything on its way has come.
func (s *subscriber) all(t testing.TB) []sinktest.Delivered {
	t.Helper()
	if err := s.nc.FlushTimeout(patience); err != nil {
		t.Fatal(err)
	}
	arrived := make(chan struct{})
	if err := s.nc.Barrier(func() { close(arrived) }); err != nil {
		t.Fatal(err)
	}
	<-arrived
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.heard)
}

func TestCoreKeepsTheContractForWhoListens(t *testing.T) {
	server := serve(t, "")
	listener := subscribe(t, server, "k8s.>")
	h := harness(server, server.URL())
	h.New = func(t testing.TB) sinks.Sink {
		cfg := core(server.URL())
		cfg.Routed = routes
		return struct{ sinks.Router }{newSink(t, cfg, quiet)} // its state says nothing without a stream
	}
	toRoutes(&h)
	h.Read = listener.all
	h.ExactRetry, h.ExactReplay, h.ExactRestart = false, false, false
	sinktest.Run(t, h)
}

func TestCoreSaysThatItForgets(t *testing.T) {
	server := serve(t, "")
	var lines transcript
	s := opened(t, core(server.URL()), lines.logger())
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(lines.String(), "what is sent while nobody listens is lost") {
		t.Errorf("the log is\n%s", lines.String())
	}
}

func TestCoreNamesAForbiddenSubjectAndGoesOnWhenItIsAllowed(t *testing.T) {
	server := serve(t, users)
	s := opened(t, as(core(server.URL()), "nopods"), quiet)
	for range 3 {
		denied(t, s, pod("web", 1))
	}
	node := pod("n1", 1)
	node.Resource.Resource = "nodes"
	if n, err := deliver(t, s, node); n != 1 || err != nil {
		t.Errorf("a subject that is allowed: %d, %v", n, err)
	}
}

func TestCoreRejectsWhatIsTooLargeAlone(t *testing.T) {
	server := serve(t, "max_payload: 2000\n")
	s := opened(t, core(server.URL()), quiet)
	large := pod("web", 2)
	large.After = fmt.Appendf(nil, "%q", strings.Repeat("x", 3000))
	n, err := deliver(t, s, pod("web", 1), large, pod("web", 3))
	var rejected *sinks.RejectedError
	if n != 1 || !errors.As(err, &rejected) || !rejected.TooLarge {
		t.Errorf("got %d, %v; want 1 and a RejectedError", n, err)
	}
}

func TestCoreWaitsWhileThereIsNoServer(t *testing.T) {
	server := serve(t, "")
	cfg := core(server.URL())
	cfg.AckTimeout = time.Second
	s := opened(t, cfg, quiet)
	finally(t, s, pod("web", 1))
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	unreachable(t, s, pod("web", 2))
	if err := server.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
	finally(t, s, pod("web", 2))
}

// finally publishes until it is accepted.
func finally(t *testing.T, s *Sink, c *event.Change) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		n, err := deliver(t, s, c)
		if n == 1 {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}
