package nats

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/test/parts/logs"
)

// storedVersions lists the names and versions of the pods in the stream, in order.
func storedVersions(t *testing.T, js jetstream.JetStream) string {
	t.Helper()
	var all []string
	for _, m := range readMessages(t, js, "K8S") {
		if id, ours := strings.CutPrefix(changeIDOf(m.Headers(), m.Data()), "c/uid-"); ours {
			all = append(all, strings.TrimSuffix(id, "/updated"))
		}
	}
	return strings.Join(all, " ")
}

func TestAnotherWriterIsReportedAndSurvived(t *testing.T) {
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	var lines logs.Buffer
	s := openSink(t, testConfig(server.URL()), lines.Logger())
	mustPublish(t, s, newPod("web", 1))
	if _, err := js.Publish(t.Context(), "k8s.mine.a.b.c.d", []byte("mine")); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, s, newPod("web", 2), newPod("web", 3))
	mustPublish(t, s, newPod("web", 4))
	mustHoldVersions(t, js, 4)
	if got := strings.Count(lines.String(), "another writer publishes to stream"); got != 1 {
		t.Errorf("the warning is logged %d times:\n%s", got, lines.String())
	}
}

func TestDeadLettersInTheStreamAreNoOtherWriter(t *testing.T) {
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	var lines logs.Buffer
	s, letters := openSink(t, testConfig(server.URL()), lines.Logger()), openSink(t, testConfig(server.URL()), discardLog)
	mustPublish(t, s, newPod("web", 1))
	dead := newPod("big", 1)
	dead.DeadLetter = &event.DeadLetterInfo{Sink: "bus", Reason: "too large"}
	mustPublish(t, letters, dead)
	mustPublish(t, s, newPod("web", 2))
	if strings.Contains(lines.String(), "another writer") || !s.features.takesBatches() {
		t.Errorf("batches are possible: %v; the log is\n%s", s.features.takesBatches(), lines.String())
	}
	if got, want := storedVersions(t, js), "web/1 big/1/updated/dead-letter/bus web/2"; got != want {
		t.Errorf("the stream holds %s, want %s", got, want)
	}
}

// The server writes a marker when all messages of a subject have expired.
func TestMarkersOfTheServerAreNoOtherWriter(t *testing.T) {
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	createStream(t, js, jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, AllowBatchPublish: true,
		MaxAge: time.Second, Duplicates: time.Second, SubjectDeleteMarkerTTL: time.Hour})
	s := openSink(t, testConfig(server.URL()), discardLog)
	mustPublish(t, s, newPod("web", 1))
	stream := findStream(t, js, "K8S")
	if err := waitUntil(func(ctx context.Context) bool {
		m, err := stream.GetLastMsgForSubject(ctx, "k8s.c.core.pods.shop.web")
		return err == nil && m.Header.Get(jetstream.MarkerReasonHeader) != ""
	}); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, s, newPod("web", 2))
	if !s.features.takesBatches() {
		t.Errorf("batches are not possible any more: %q", warningsOf(s))
	}
}

func TestAPurgedStreamGoesOn(t *testing.T) {
	forBatchesAndIDs(t, func(t *testing.T, batches bool) {
		server := startServer(t, "")
		js := connectClient(t, server.URL())
		createStream(t, js, jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, AllowBatchPublish: batches})
		s := openSink(t, testConfig(server.URL()), discardLog)
		mustPublish(t, s, newPod("web", 1), newPod("web", 2))
		purgeStream(t, js, "K8S")
		mustPublish(t, s, newPod("web", 3))
		after := restartSink(t, server.URL(), s.State(0), offsets.Load())
		mustPublish(t, after, newPod("web", 4))
		if got, want := storedVersions(t, js), "web/3 web/4"; got != want {
			t.Errorf("the stream holds %s, want %s", got, want)
		}
	})
}

// restartSink returns a sink that restores the state of a previous one. newest is the highest offset that the journal had
// given out.
func restartSink(t *testing.T, url string, state []byte, newest uint64) *Sink {
	t.Helper()
	s := openSink(t, testConfig(url), discardLog)
	mustRestore(t, s, state, newest)
	return s
}

// mustRestore restores a state, with a journal that stores whatever it is given.
func mustRestore(t testing.TB, s *Sink, state []byte, newest uint64) {
	t.Helper()
	if err := s.RestoreState(state, newest, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
}

// While the server refuses a subject, changes go by ID in many lanes. The state stored then contains nothing about batches,
// and the process may die soon after it is back to batches.
func TestAfterChangesWentByIDForAWhileACrashRepeatsNothing(t *testing.T) {
	server := startServer(t, "")
	s, stored := openSink(t, testConfig(server.URL()), discardLog), []byte(nil)
	if err := s.RestoreState(nil, 0, func(context.Context) error { stored = s.State(0); return nil }); err != nil {
		t.Fatal(err)
	}
	publishAllNumbered(t, s, 1, 3)
	for version := 4; version <= 6; version++ {
		one := []sinks.Message{{Offset: uint64(version), Change: newPod("web", version)}}
		if _, err := s.Publish(t.Context(), s.splitLane(0), one); err != nil {
			t.Fatal(err)
		}
	}
	stored = s.State(6) // as with every stored cursor
	publishAllNumbered(t, s, 7, 9)
	publishAllNumbered(t, restartSink(t, server.URL(), stored, 9), 7, 10)
	mustHoldVersions(t, connectClient(t, server.URL()), 10)
}

// The journal is an older copy, which knows the epoch but now gives the same offsets to other changes.
func TestOffsetsUnknownToTheJournalAreNotTrusted(t *testing.T) {
	server := startServer(t, "")
	s := openSink(t, testConfig(server.URL()), discardLog)
	publishAllNumbered(t, s, 1, 3)
	state := s.State(0)
	publishAllNumbered(t, s, 4, 9)
	publishAllNumbered(t, restartSink(t, server.URL(), state, 5), 4, 6)
	if got, want := storedVersions(t, connectClient(t, server.URL())), "web/1 web/2 web/3 web/4 web/5 web/6 web/7 web/8 web/9 web/4 web/5 web/6"; got != want {
		t.Errorf("the stream holds %s, want %s", got, want)
	}
}

// openTestBatch returns a batch that follows sequence 3, and a function that sends one version of it and waits until the
// server has read that.
func openTestBatch(t *testing.T, s *Sink, id string) (open *openBatch, send func(version, operation int)) {
	t.Helper()
	l, err := s.verifiedLink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	open = newBatch(id)
	open.baseSequence, open.epoch = 3, s.end.currentEpoch()
	number := l.StartCall(connection.Call{SentTo: connection.IsStreamSubject, OnAnswer: open.handleAnswer})
	msg := s.encoder.newMessage()
	return open, func(version int, operation int) {
		t.Helper()
		m := sinks.Message{Offset: uint64(version), Change: newPod("web", version)}
		err := s.batches.sendMessage(t.Context(), l, open, l.ReplySubject(number), msg, m, operation)
		if err = errors.Join(err, l.Conn().FlushTimeout(testTimeout)); err != nil {
			t.Fatal(err)
		}
	}
}

// A process dies while one of its batches is open, and more messages of it may be in the buffers of the server.
func TestABatchOfADeadProcessIsEndedBeforeAnotherBegins(t *testing.T) {
	server := startServer(t, "")
	s := openSink(t, testConfig(server.URL()), discardLog)
	publishAllNumbered(t, s, 1, 3)
	state := s.State(0)
	_, send := openTestBatch(t, s, "dead-1")
	send(4, opStart)
	send(5, opAppend)
	after := restartSink(t, server.URL(), state, 9)
	publishAllNumbered(t, after, 4, 7)
	send(6, opAppend) // arrives late
	publishAllNumbered(t, after, 8, 8)
	mustHoldVersions(t, connectClient(t, server.URL()), 8)
}

// A connection breaks, and a server still has a batch that was sent over it. The leader, asked over another connection, does
// not know the batch yet.
func TestABatchThatArrivesAfterTheServerWasAskedForItIsEnded(t *testing.T) {
	server := startServer(t, "")
	s := openSink(t, testConfig(server.URL()), discardLog)
	publishAllNumbered(t, s, 1, 3)
	late, send := openTestBatch(t, s, s.batches.prefix+"-late")
	l, err := s.verifiedLink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	late.firstSubject, s.batches.inDoubt = "k8s.c.core.pods.shop.web", late
	if err := s.batches.resolveInDoubt(t.Context(), l); err != nil || s.batches.inDoubt != nil {
		t.Fatalf("in doubt: %v, %v", s.batches.inDoubt, err)
	}
	send(4, opStart)
	publishAllNumbered(t, s, 4, 6)
	send(5, opAppend)
	send(6, opCommit)
	publishAllNumbered(t, s, 7, 7)
	mustHoldVersions(t, connectClient(t, server.URL()), 7)
}

func TestABatchWithoutTheRightToReadTheStreamIsAnError(t *testing.T) {
	server := startServer(t, `authorization { users: [{user: u, password: secret, permissions: {publish: {deny: "$JS.API.STREAM.MSG.GET.>"}}},
		{user: all, password: secret}] }`+"\n")
	s := openSink(t, asUser(testConfig(server.URL()), "u"), discardLog)
	mustPublish(t, s, newPod("web", 1))
	if _, err := connectClient(t, server.URL(), nats.UserInfo("all", "secret")).Publish(t.Context(), "k8s.mine.a.b.c.d", []byte("mine")); err != nil {
		t.Fatal(err)
	}
	n, err := publishChanges(t, s, newPod("web", 2))
	if n != 0 || err == nil || !strings.Contains(err.Error(), `may not publish to "$JS.API.STREAM.MSG.GET.K8S"`) || len(s.PendingRepartitions()) != 0 {
		t.Errorf("got %d, %v, %v", n, err, s.PendingRepartitions())
	}
}

func TestAStateThatCannotBeStoredHoldsTheFirstBatch(t *testing.T) {
	s := openSink(t, testConfig(startServer(t, "").URL()), discardLog)
	full := errors.New("disk full")
	failing := true
	if err := s.RestoreState(nil, 0, func(context.Context) error {
		if failing {
			return full
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if n, err := publishChanges(t, s, newPod("web", 1)); n != 0 || !errors.Is(err, full) {
		t.Errorf("got %d, %v", n, err)
	}
	failing = false
	mustPublish(t, s, newPod("web", 1))
}

func TestManyChangesOfOneObjectAreInFlightAtOnce(t *testing.T) {
	server := startServer(t, "")
	s := openSink(t, testConfig(server.URL()), discardLog)
	const many = 3 * maxBatch
	publishAllNumbered(t, s, 1, many)
	if s.batches.count > 9 {
		t.Errorf("%d changes took %d batches", many, s.batches.count)
	}
	all := readMessages(t, connectClient(t, server.URL()), "K8S")
	for i, m := range all {
		if id := changeIDOf(m.Headers(), m.Data()); id != fmt.Sprintf("c/uid-web/%d/updated", i+1) {
			t.Fatalf("message %d is %s", i, id)
		}
	}
	if len(all) != many {
		t.Errorf("the stream holds %d of %d", len(all), many)
	}
}
