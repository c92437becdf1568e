package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/logs"
)

var discardLog = slog.New(slog.DiscardHandler)

// newPod returns one version of a pod.
func newPod(name string, version int) *event.Change {
	return &event.Change{Type: event.Updated, Cluster: "c", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
		Namespace: "shop", Name: name, UID: "uid-" + name, ResourceVersion: fmt.Sprint(version), After: []byte(`{"a":1}`)}
}

// publishChanges publishes changes of one object in one call.
func publishChanges(t *testing.T, s *Sink, changes ...*event.Change) (int, error) {
	t.Helper()
	lane, err := s.Lane(changes[0])
	if err != nil {
		t.Fatal(err)
	}
	var batch []sinks.Message
	for _, c := range changes {
		batch = append(batch, sinks.Message{Offset: offsets.Add(1), Change: c})
	}
	return s.Publish(t.Context(), lane, batch)
}

// offsets is the offset of the last message.
var offsets atomic.Uint64

// mustPublish publishes changes and fails the test unless all are acknowledged.
func mustPublish(t *testing.T, s *Sink, changes ...*event.Change) {
	t.Helper()
	if n, err := publishChanges(t, s, changes...); n != len(changes) || err != nil {
		t.Fatalf("publish: %d of %d, %v", n, len(changes), err)
	}
}

// mustBeUnavailable publishes one change and fails the test unless the result is an UnavailableError with these words.
func mustBeUnavailable(t *testing.T, s *Sink, c *event.Change, words ...string) {
	t.Helper()
	n, err := publishChanges(t, s, c)
	var away *sinks.UnavailableError
	if n != 0 || !errors.As(err, &away) {
		t.Fatalf("publish: %d, %v; want 0 and an UnavailableError", n, err)
	}
	for _, word := range words {
		if !strings.Contains(away.Error(), word) {
			t.Errorf("%q is not in %q", word, away)
		}
	}
}

// waitUnreachable publishes one change until the result is that there is no connection, with these words as the reason. It
// takes a while until the server has reported that. The sink needs a short timeout.
func waitUnreachable(t *testing.T, s *Sink, c *event.Change, words ...string) {
	t.Helper()
	waitUnavailable(t, s, c, append(words, "not connected to NATS")...)
}

// waitUnavailable publishes one change until the result is an UnavailableError with these words.
func waitUnavailable(t *testing.T, s *Sink, c *event.Change, words ...string) {
	t.Helper()
	for begun := time.Now(); ; {
		n, err := publishChanges(t, s, c)
		var away *sinks.UnavailableError
		matches := n == 0 && errors.As(err, &away)
		for _, word := range words {
			matches = matches && strings.Contains(away.Error(), word)
		}
		if matches {
			break
		}
		if time.Since(begun) > testTimeout {
			t.Fatalf("publish: %d, %v; want an UnavailableError with %q", n, err, words)
		}
	}
}

// createStream creates a stream. A server that still removes the directory of one of that name cannot, for a moment.
func createStream(t *testing.T, js jetstream.JetStream, cfg jetstream.StreamConfig) {
	t.Helper()
	await.Condition(t, "the stream is created", testTimeout, time.Millisecond, func() string {
		_, err := js.CreateStream(t.Context(), cfg)
		var refused *jetstream.APIError
		if errors.As(err, &refused) && refused.ErrorCode == streamStoreFailed {
			return refused.Error()
		}
		if err != nil {
			t.Fatal(err)
		}
		return ""
	})
}

const streamStoreFailed = 10049 // of nats-server: JSStreamStoreFailedF

func updateStream(t *testing.T, js jetstream.JetStream, cfg jetstream.StreamConfig) {
	t.Helper()
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
}

func deleteStream(t testing.TB, js jetstream.JetStream, name string) {
	t.Helper()
	if err := js.DeleteStream(t.Context(), name); err != nil {
		t.Fatal(err)
	}
}

func findStream(t testing.TB, js jetstream.JetStream, name string) jetstream.Stream {
	t.Helper()
	stream, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func purgeStream(t testing.TB, js jetstream.JetStream, name string) {
	t.Helper()
	if err := findStream(t, js, name).Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestAMessageCarriesTheDocumentedHeaders(t *testing.T) {
	server := startServer(t, "")
	cfg := testConfig(server.URL())
	cfg.Headers = true
	s := openSink(t, cfg, discardLog)
	mustPublish(t, s, newPod("web.eu", 7))
	stream := findStream(t, connectClient(t, server.URL()), "K8S")
	m, err := stream.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if want := "k8s.c.core.pods.shop.web=2Eeu"; m.Subject != want {
		t.Errorf("subject %s, want %s", m.Subject, want)
	}
	for name, want := range map[string]string{
		"Kubecdc-Id": "c/uid-web.eu/7/updated", "Nats-Expected-Stream": "K8S", "Nats-Expected-Last-Sequence": "0", "Content-Type": "application/json", "Kubecdc-Type": "updated",
		"Kubecdc-Cluster": "c", "Kubecdc-Resource": "pods", "Kubecdc-Key": "c/core/pods/shop/web.eu", "Kubecdc-Resource-Version": "7",
	} {
		if got := m.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// TestTheStreamIsCreatedAsConfigured by whatever looks for it first, and it can be fenced.
func TestTheStreamIsCreatedAsConfigured(t *testing.T) {
	server := startServer(t, "")
	cfg := testConfig(server.URL())
	cfg.Create = Create{Enabled: true, MaxAge: time.Hour, MaxBytes: 1 << 20}
	s := openSink(t, cfg, discardLog)
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Fence(t.Context(), sinks.Claim{Group: "group", Sink: "bus", Elected: true}, nil); err != nil {
		t.Error(err)
	}
	stream := findStream(t, connectClient(t, server.URL()), "K8S")
	got := stream.CachedInfo().Config
	if got.Discard != jetstream.DiscardNew || got.Storage != jetstream.FileStorage || got.Duplicates != 2*time.Minute ||
		got.MaxAge != time.Hour || !got.AllowBatchPublish || got.MaxBytes != 1<<20 || got.Replicas != 1 ||
		!slices.Equal(got.Subjects, []string{"k8s.*.*.*.*.*", "kubecdc.fence.K8S.>"}) {
		t.Errorf("created %+v", got)
	}
}

func TestAMissingStreamIsAnErrorWithARemedyUntilItExists(t *testing.T) {
	server := startServer(t, "")
	cfg := testConfig(server.URL())
	cfg.Create = Create{}
	s := openSink(t, cfg, discardLog)
	for range 3 {
		mustBeUnavailable(t, s, newPod("web", 1), `stream "K8S" does not exist`, `"k8s.*.*.*.*.*"`, "nats.create.enabled")
	}
	createStream(t, connectClient(t, server.URL()), jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}})
	mustPublish(t, s, newPod("web", 1))
}

func TestAStreamDeletedMeanwhileIsCreatedAgain(t *testing.T) {
	server := startServer(t, "")
	s := openSink(t, testConfig(server.URL()), discardLog)
	mustPublish(t, s, newPod("web", 1))
	deleteStream(t, connectClient(t, server.URL()), "K8S")
	mustBeUnavailable(t, s, newPod("web", 2), `no stream takes the subject "k8s.`, `"K8S"`)
	var lost *sinks.LostError
	if n, err := publishChanges(t, s, newPod("web", 2)); n != 0 || !errors.As(err, &lost) || lost.From != 0 {
		t.Fatalf("the stream is empty, and the result is %d, %v; want a LostError", n, err)
	}
	mustRestore(t, s, nil, 0)
	mustPublish(t, s, newPod("web", 1), newPod("web", 2))
}

func TestAMirrorIsAnErrorWithARemedy(t *testing.T) {
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	createStream(t, js, jetstream.StreamConfig{Name: "ORIGIN", Subjects: []string{"k8s.>"}})
	createStream(t, js, jetstream.StreamConfig{Name: "K8S", Mirror: &jetstream.StreamSource{Name: "ORIGIN"}})
	mustBeUnavailable(t, openSink(t, testConfig(server.URL()), discardLog), newPod("web", 1), `stream "K8S" is a mirror of "ORIGIN"`)
}

func TestASubjectThatBeginsWithAWildcardIsAnErrorWithARemedy(t *testing.T) {
	cfg := testConfig(startServer(t, "").URL())
	cfg.Subject = "{cluster}.{resource}.{name}"
	mustBeUnavailable(t, openSink(t, cfg, discardLog), newPod("web", 1), `"*.*.*"`, "start nats.subject")
}

func TestAStreamWithoutARoutedSubjectIsAnErrorWithARemedy(t *testing.T) {
	server := startServer(t, "")
	createStream(t, connectClient(t, server.URL()), jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}})
	cfg := testConfig(server.URL())
	cfg.Routed = []string{"audit.{resource}.{name}"}
	s := openSink(t, cfg, discardLog)
	mustBeUnavailable(t, s, newPod("web", 1), `["k8s.>"]`, `"audit.*.*"`, "routes")
}

func TestAnotherStreamDoesNotSwallowChanges(t *testing.T) {
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	createStream(t, js, jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.*.*.nodes.>"}})
	createStream(t, js, jetstream.StreamConfig{Name: "PODS", Subjects: []string{"k8s.*.*.pods.>"}})
	var lines logs.Buffer
	s := openSink(t, testConfig(server.URL()), lines.Logger())
	mustBeUnavailable(t, s, newPod("web", 1), `"k8s.c.core.pods.shop.web" belongs to another stream than "K8S"`)
	if all := readDelivered(t, js, "PODS"); len(all) != 0 {
		t.Errorf("stream PODS holds %v", all)
	}
	if !strings.Contains(lines.String(), "does not take every subject") {
		t.Errorf("no warning about the subjects:\n%s", lines.String())
	}
}

// forBatchesAndIDs runs a test with a stream that takes batches, and with one that does not.
func forBatchesAndIDs(t *testing.T, test func(t *testing.T, batches bool)) {
	t.Run("in batches", func(t *testing.T) { test(t, true) })
	t.Run("by ID", func(t *testing.T) { test(t, false) })
}

func TestAControlRecordIsBetweenTheChangesItSpeaksAbout(t *testing.T) {
	forBatchesAndIDs(t, testControlRecord)
}

func testControlRecord(t *testing.T, batches bool) {
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	createStream(t, js, jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, AllowBatchPublish: batches})
	s := openSink(t, testConfig(server.URL()), discardLog)
	record := func(kind event.Type, version string) *event.Change {
		return &event.Change{Type: kind, Cluster: "c", Resource: newPod("web", 1).Resource, ResourceVersion: version, Gap: &event.GapInfo{},
			Snapshot: &event.SnapshotInfo{ID: version}, Watermark: &event.WatermarkInfo{Epoch: version, Sequence: 1}}
	}
	published := []*event.Change{
		record(event.SnapshotBegin, "1"), newPod("web", 2), newPod("web", 3), newPod("web", 4), record(event.SnapshotEnd, "4"),
		newPod("web", 5), newPod("web", 6), record(event.Watermark, "6"), record(event.Gap, "7"), newPod("web", 8), newPod("web", 9),
	}
	mustPublish(t, s, published...)
	var want, found []string
	for _, c := range published {
		want = append(want, c.ID())
	}
	for _, m := range readMessages(t, js, "K8S") {
		found = append(found, changeIDOf(m.Headers(), m.Data()))
	}
	if !slices.Equal(found, want) {
		t.Errorf("the stream has\n%q, want\n%q", found, want)
	}
}

func TestWhatIsTooLargeIsRejectedAlone(t *testing.T) { forBatchesAndIDs(t, testTooLarge) }

func testTooLarge(t *testing.T, batches bool) {
	for name, test := range map[string]struct {
		server string
		stream int32
	}{
		"for the server": {"max_payload: 2000\n", -1},
		"for the stream": {"", 2000},
	} {
		t.Run(name, func(t *testing.T) {
			server := startServer(t, test.server)
			createStream(t, connectClient(t, server.URL()), jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, MaxMsgSize: test.stream, AllowBatchPublish: batches})
			s := openSink(t, testConfig(server.URL()), discardLog)
			large := newPod("web", 2)
			large.After = fmt.Appendf(nil, "%q", strings.Repeat("x", 3000))
			n, err := publishChanges(t, s, newPod("web", 1), large, newPod("web", 3))
			var rejected *sinks.RejectedError
			if n != 1 || !errors.As(err, &rejected) || !rejected.TooLarge || !strings.Contains(rejected.Reason, "max_") {
				t.Fatalf("got %d, %v; want 1 and a RejectedError that names the limit", n, err)
			}
			mustPublish(t, s, newPod("web", 3))
		})
	}
}

// testUsers configures users of a server: one that may do everything, and others that lack one right each.
const testUsers = `authorization {
  users: [
    {user: all, password: secret-all}
    {user: nopods, password: secret, permissions: {publish: {deny: "k8s.*.*.pods.>"}}}
    {user: nolookup, password: secret, permissions: {publish: {deny: "$JS.API.>"}}}
    {user: noinbox, password: secret, permissions: {subscribe: {allow: "mine.>"}}}
  ]
}
`

func asUser(cfg Config, user string) Config {
	cfg.User, cfg.Password, cfg.AllowCleartextCredentials = user, credentials.Text("secret"), true
	return cfg
}

func TestAForbiddenSubjectIsNamedAndOnlyItsLaneWaits(t *testing.T) {
	forBatchesAndIDs(t, func(t *testing.T, batches bool) {
		server := startServer(t, testUsers)
		createStream(t, connectClient(t, server.URL(), nats.UserInfo("all", "secret-all")),
			jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, AllowBatchPublish: batches})
		s := openSink(t, asUser(testConfig(server.URL()), "nopods"), discardLog)
		node := newPod("n1", 1)
		node.Resource.Resource = "nodes"
		mustPublish(t, s, node)
		mustBeDenied(t, s, newPod("web", 1))
		due := s.PendingRepartitions()
		if len(due) != 1 || !due[0].Lost || len(due[0].To) != defaultLanes {
			t.Fatalf("to be replaced: %+v", due)
		}
		s.ApplyRepartition(due[0])
		mustBeDenied(t, s, newPod("web", 1))
		for version := 2; version < 20; version++ {
			node.ResourceVersion = fmt.Sprint(version)
			mustPublish(t, s, node)
		}
		if merge := s.PendingRepartitions(); len(merge) != 1 || merge[0].Lost || len(merge[0].From) != defaultLanes {
			t.Errorf("to be replaced again: %+v", merge)
		}
	})
}

// mustBeDenied publishes one change and fails the test unless the result is an error about its subject alone.
func mustBeDenied(t *testing.T, s *Sink, c *event.Change) {
	t.Helper()
	n, err := publishChanges(t, s, c)
	var away *sinks.UnavailableError
	if n != 0 || err == nil || errors.As(err, &away) || !strings.Contains(err.Error(), `may not publish to "k8s.c.core.pods.shop.web"; allow it on the server`) {
		t.Fatalf("publish: %d, %v; want an error that names the subject and stops no other lane", n, err)
	}
	if remedy := condition.ProblemOf(err, condition.SinkFailing).Remedy; remedy != `allow publishing to "k8s.*.*.*.*.*" on the server` {
		t.Errorf("the remedy is %s, want one for all objects", remedy)
	}
}

func TestWithoutTheRightToLookTheStreamUpDeliveryGoesOn(t *testing.T) {
	server := startServer(t, testUsers)
	createStream(t, connectClient(t, server.URL(), nats.UserInfo("all", "secret-all")), jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}})
	var lines logs.Buffer
	s := openSink(t, asUser(testConfig(server.URL()), "nolookup"), lines.Logger())
	mustPublish(t, s, newPod("web", 1))
	passLookInterval(s)
	mustPublish(t, s, newPod("web", 2))
	if n := strings.Count(lines.String(), "does not allow this user to look up the stream"); n != 1 {
		t.Errorf("reported %d times", n)
	}
}

func TestAForbiddenInboxIsNamedAndAnotherHelps(t *testing.T) {
	server := startServer(t, testUsers)
	s := openSink(t, asUser(testConfig(server.URL()), "noinbox"), discardLog)
	for range 2 {
		mustBeUnavailable(t, s, newPod("web", 1), "may not subscribe to its inbox", "nats.inboxPrefix")
	}
	cfg := asUser(testConfig(server.URL()), "noinbox")
	cfg.InboxPrefix = "mine.inbox"
	mustPublish(t, openSink(t, cfg, discardLog), newPod("web", 1))
}

func TestARefusedPasswordIsAnErrorWithoutTheSecret(t *testing.T) {
	t.Parallel()
	server := startServer(t, testUsers)
	cfg := asUser(shortTimeoutConfig(server.URL()), "all")
	cfg.Password, cfg.AllowCleartextCredentials = credentials.Text("hunter2"), true
	var lines logs.Buffer
	s := openSink(t, cfg, lines.Logger())
	waitUnreachable(t, s, newPod("web", 1), "uthorization")
	if err := s.Ping(t.Context()); err == nil || strings.Contains(err.Error(), "hunter2") || strings.Contains(lines.String(), "hunter2") {
		t.Errorf("%v; the log is\n%s", err, lines.String())
	}
}

func TestTheSinkWaitsWhileThereIsNoServer(t *testing.T) {
	server := startServer(t, "")
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(server.URL())
	cfg.AckTimeout = 200 * time.Millisecond
	s := openSink(t, cfg, discardLog)
	for range 3 {
		mustBeUnavailable(t, s, newPod("web", 1), "not connected to NATS")
	}
	var away *sinks.UnavailableError // the next call is there soon, to wait for the server, however long it is away
	if _, err := publishChanges(t, s, newPod("web", 1)); !errors.As(err, &away) || away.After != connection.UnavailablePause {
		t.Errorf("got %v, want one that asks for another call after %v", err, connection.UnavailablePause)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); ; {
		if n, err := publishChanges(t, s, newPod("web", 1)); n == 1 {
			break
		} else if time.Since(begun) > testTimeout {
			t.Fatal(err)
		}
	}
}

func TestCloseEndsAnUnansweredDial(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and does not greet
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	cfg := testConfig("nats://" + silent.Addr().String())
	cfg.AckTimeout = minAckTimeout
	s := newSink(t, cfg, discardLog)
	mustBeUnavailable(t, s, newPod("web", 1), "not connected")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second*9/10) // less than the dial itself would take to give up
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
}

func TestALaneOfAnotherCountIsAnError(t *testing.T) {
	s := openSink(t, testConfig("nats://127.0.0.1:1"), discardLog)
	if n, err := s.Publish(t.Context(), "7/1024", []sinks.Message{{Change: newPod("web", 1)}}); n != 0 || err == nil || !strings.Contains(err.Error(), "7/1024") {
		t.Errorf("got %d, %v", n, err)
	}
}
