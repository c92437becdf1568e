package nats

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/ports"
)

// The leader of a stream is separated from the others, and a new leader takes changes. Then the connection of the sink moves
// to the old leader, which believes that it leads and lacks acknowledged messages. The sink must report neither a loss nor a
// lost fence, and must repeat nothing when the servers are connected again.
func TestAReplacedLeaderIsNotTrusted(t *testing.T) {
	t.Parallel()
	t.Run("in batches", func(t *testing.T) {
		t.Parallel()
		testReplacedLeader(t, true, func(*fencedPublisher) {})
	})
	t.Run("by ID, with a fence", func(t *testing.T) {
		t.Parallel()
		testReplacedLeader(t, false, func(r *fencedPublisher) { r.fenceSink("one") })
	})
}

func testReplacedLeader(t *testing.T, batches bool, begin func(r *fencedPublisher)) {
	ways := network{t: t, routes: make(map[[2]int]*proxy)}
	servers := startCluster(t, ways.proxyPort)
	js := connectClient(t, servers.URL())
	if _, err := retryUntilAnswered(t.Context(), func(ctx context.Context) (jetstream.Stream, error) {
		return js.CreateStream(ctx, jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>", "kubecdc.fence.>"}, Replicas: 3,
			AllowBatchPublish: batches})
	}); err != nil {
		t.Fatal(err)
	}
	old, err := leaderOf(js, servers, "K8S")
	if err != nil {
		t.Fatal(err)
	}
	at := slices.Index(servers, old)
	rest := slices.Concat(servers[at+1:], servers[:at])
	near, far := startProxy(t, strings.TrimPrefix(rest[0].URL(), "nats://")), startProxy(t, strings.TrimPrefix(old.URL(), "nats://"))
	far.setBlocked(true)
	ways.setIsolated(at, true)
	if _, err := leaderOf(connectClient(t, rest.URL()), rest, "K8S"); err != nil {
		t.Fatal(err)
	}
	r := &fencedPublisher{t: t, sink: openSink(t, shortTimeoutConfig("nats://"+near.listenAddress()+",nats://"+far.listenAddress()), discardLog)}
	begin(r)
	all, local := podVersions(1, 200), connectClient(t, old.URL())
	done := r.publishAll(all[:100], 0, func() bool { return false })
	near.setBlocked(true)
	far.setBlocked(false)
	done = r.publishAll(all, done, func() bool { return !leadsAny(t.Context(), local, []string{"K8S"}) })
	if done != 100 {
		t.Errorf("an isolated server acknowledged %d changes", done-100)
	}
	ways.setIsolated(at, false)
	r.publishAll(all, done, func() bool { return false })
	waitReplicated(t, js, "K8S")
	mustHoldVersions(t, js, len(all))
}

// publishAll publishes the rest of messages until all are acknowledged or enough returns true. It fails the test at a
// LostError or a DeposedError.
func (r *fencedPublisher) publishAll(messages []sinks.Message, done int, enough func() bool) int {
	r.t.Helper()
	var last error
	err := waitUntil(func(ctx context.Context) bool {
		var n int
		n, last = r.sink.Publish(ctx, singleLane, messages[done:])
		done += n
		if errors.As(last, new(*sinks.LostError)) || errors.As(last, new(*sinks.DeposedError)) {
			r.t.Fatalf("after %d of %d: %v", done, len(messages), last)
		}
		return done == len(messages) || enough()
	})
	if err != nil {
		r.t.Fatalf("%d of %d are acknowledged, %v, %v", done, len(messages), last, err)
	}
	return done
}

// network is the connections between the servers of a cluster.
type network struct {
	t      testing.TB
	routes map[[2]int]*proxy // from one server to another
}

// proxyPort starts the proxy from one server to another and returns its port.
func (n network) proxyPort(from, to, port int) int {
	p := startProxy(n.t, ports.Address(port))
	n.routes[[2]int{from, to}] = p
	return p.listener.Addr().(*net.TCPAddr).Port
}

// setBlocked separates two servers, or connects them again.
func (n network) setBlocked(a, b int, on bool) {
	n.routes[[2]int{a, b}].setBlocked(on)
	n.routes[[2]int{b, a}].setBlocked(on)
}

func (n network) setIsolated(at int, on bool) {
	n.setBlocked(at, (at+1)%3, on)
	n.setBlocked(at, (at+2)%3, on)
}

// leadsAny reports whether the server that is asked leads one of the streams, in its own opinion.
func leadsAny(ctx context.Context, js jetstream.JetStream, streams []string) bool {
	return slices.ContainsFunc(streams, func(stream string) bool {
		state, err := clusterInfo(ctx, js, stream)
		return err == nil && state.Leader != ""
	})
}

// waitUntil calls reached until it returns true.
func waitUntil(reached func(ctx context.Context) bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	for !reached(ctx) {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
