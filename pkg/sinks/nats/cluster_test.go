package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
	"github.com/kubecdc/kubecdc/test/parts/require"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

// Two streams of three replicas are filled at once, one by ID and one in batches, while every connection is cut repeatedly.
// The leader of a stream is killed; then a leader and another server, so that there is no majority; then a leader is paused
// until it is replaced; at last all servers are killed at once. In the end every stream has a leader and all replicas.
func TestReplicatedStreamsLoseRepeatAndReorderNothingWhenServersDieAndConnectionsBreak(t *testing.T) {
	t.Parallel()
	servers := startCluster(t, samePort)
	var proxies []*proxy
	var urls []string
	for _, server := range servers {
		proxy := startProxy(t, strings.TrimPrefix(server.URL(), "nats://"))
		proxies, urls = append(proxies, proxy), append(urls, "nats://"+proxy.listenAddress())
	}
	streams := replicatedStreams(t, servers, strings.Join(urls, ","))
	for _, h := range streams {
		acked := countAcks(h)
		for _, proxy := range proxies {
			stop := proxy.cutEvery(500*time.Millisecond, acked)
			t.Cleanup(func() { stop() })
		}
	}
	js := connectClient(t, servers.URL())
	driveStreams(t, streams,
		func() error { return killServers(js, servers, "BYID", 1) },
		func() error { return killServers(js, servers, "BATCHES", 2) },
		func() error { return pauseLeader(t, js, servers, "BYID") },
		func() error { return killServers(js, servers, "BATCHES", 3) })
}

// replicatedStreams describes two streams of three replicas to the suite, one filled by ID and one in batches, through url.
func replicatedStreams(t testing.TB, servers natsserver.Servers, url string) map[string]*sinktest.Harness {
	byID := jetstream.StreamConfig{Name: "BYID", Subjects: []string{"BYID.>"}, Replicas: 3}
	js := connectClient(t, servers.URL())
	if _, err := retryUntilAnswered(t.Context(), func(ctx context.Context) (jetstream.Stream, error) {
		return js.CreateOrUpdateStream(ctx, byID)
	}); err != nil {
		t.Fatal(err)
	}
	stream := func(name string) *sinktest.Harness {
		h := newHarness(servers[0], "")
		h.OrderPerObject = name == "BYID"
		h.Read = func(t testing.TB) []sinktest.Delivered {
			js := connectClient(t, servers.URL())
			waitReplicated(t, js, name)
			return slices.DeleteFunc(readDelivered(t, js, name), func(d sinktest.Delivered) bool { return strings.HasSuffix(d.Topic, ".end") })
		}
		h.New = func(t testing.TB) sinks.Sink {
			cfg := shortTimeoutConfig(url)
			cfg.Stream, cfg.Subject = name, name+"."+testSubject
			cfg.Create.Replicas = 3
			return newSink(t, cfg, discardLog)
		}
		return &h
	}
	return map[string]*sinktest.Harness{"BYID": stream("BYID"), "BATCHES": stream("BATCHES")}
}

// killServers kills count servers at once, the leader of a stream among them, and restarts them.
func killServers(js jetstream.JetStream, servers natsserver.Servers, stream string, count int) error {
	leader, err := leaderOf(js, servers, stream)
	if err != nil {
		return err
	}
	at := slices.Index(servers, leader)
	dying := slices.Concat(servers[at:], servers[:at])[:count]
	err = dying.Kill()
	for _, server := range dying {
		err = errors.Join(err, server.Restart(context.Background()))
	}
	return errors.Join(err, servers.WaitHealthy(context.Background()))
}

// pauseLeader stops the process of the leader of a stream until another server leads. When it continues, it believes that it
// leads.
func pauseLeader(t *testing.T, js jetstream.JetStream, servers natsserver.Servers, stream string) error {
	leader, err := leaderOf(js, servers, stream)
	if err != nil {
		return err
	}
	at := slices.Index(servers, leader)
	rest := slices.Concat(servers[at+1:], servers[:at])
	process := leader.Process()
	if err := process.Freeze(); err != nil {
		return err
	}
	_, err = leaderOf(connectClient(t, rest.URL()), rest, stream)
	return errors.Join(err, process.Resume(), servers.WaitHealthy(context.Background()))
}

func samePort(_, _, port int) int { return port }

// startCluster starts three servers for one test, connected as in natsserver.StartClusterThrough.
func startCluster(t testing.TB, between func(from, to, port int) int) natsserver.Servers {
	t.Helper()
	require.Integration(t)
	servers, err := natsserver.StartClusterThrough(context.Background(), t.TempDir(), 3, "", between)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := servers.Kill(); err != nil {
			t.Error(err)
		}
	})
	return servers
}

// leaderOf waits for the leader of a stream and returns its server.
func leaderOf(js jetstream.JetStream, servers natsserver.Servers, stream string) (*natsserver.Server, error) {
	var leader *natsserver.Server
	var state jetstream.ClusterInfo
	var last error
	err := waitUntil(func(ctx context.Context) bool {
		state, last = clusterInfo(ctx, js, stream)
		at := slices.IndexFunc(servers, func(server *natsserver.Server) bool { return state.Leader == server.Name() })
		if at >= 0 {
			leader = servers[at]
		}
		return at >= 0
	})
	if err != nil {
		return nil, fmt.Errorf("no server leads stream %s: %q, %w, %w", stream, state.Leader, last, err)
	}
	return leader, nil
}

// streamInfo sends one request with a short timeout: without a leader there is no answer.
func streamInfo(ctx context.Context, js jetstream.JetStream, stream string) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	return s.CachedInfo(), nil
}

// clusterInfo returns the leader and the followers of a stream.
func clusterInfo(ctx context.Context, js jetstream.JetStream, stream string) (jetstream.ClusterInfo, error) {
	info, err := streamInfo(ctx, js, stream)
	if err != nil || info.Cluster == nil {
		return jetstream.ClusterInfo{}, err
	}
	return *info.Cluster, nil
}

// waitReplicated waits until a stream has a leader and both other replicas are complete: a replica that cannot apply a
// message stays incomplete forever. A replaced leader that does not know it yet would report its own messages as complete.
// Therefore a message is stored first, which needs a majority.
func waitReplicated(t testing.TB, js jetstream.JetStream, stream string) {
	t.Helper()
	var end uint64
	var info *jetstream.StreamInfo
	var last error
	err := waitUntil(func(ctx context.Context) bool {
		if info, last = streamInfo(ctx, js, stream); last != nil || info.Cluster == nil {
			return false
		}
		if end == 0 {
			end, last = publishEndMarker(ctx, js, info.Config)
			return false
		}
		behind := slices.ContainsFunc(info.Cluster.Replicas, func(r *jetstream.PeerInfo) bool { return !r.Current || r.Offline })
		return info.Cluster.Leader != "" && info.State.LastSeq >= end && len(info.Cluster.Replicas) == 2 && !behind
	})
	if err != nil {
		t.Fatalf("stream %s is not complete at the end: %+v, %v, %v", stream, info, last, err)
	}
}

// publishEndMarker publishes a message to a stream, after all acknowledged ones, and returns its sequence.
func publishEndMarker(ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	stored, err := js.Publish(ctx, endSubject(config.Subjects[0]), nil, jetstream.WithExpectStream(config.Name))
	if err != nil {
		return 0, err
	}
	return stored.Sequence, nil
}

// endSubject returns the subject of an end marker, for a stream that takes subjects.
func endSubject(subjects string) string {
	return strings.NewReplacer("*", "end", ">", "end").Replace(subjects)
}
