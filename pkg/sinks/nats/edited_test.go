package nats

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The stream is edited while the exporter writes to it, or while it is down, and later edited back.
func TestAnEditedStreamLosesRepeatsAndReordersNothing(t *testing.T) {
	for name, edit := range map[string]func(*jetstream.StreamConfig){
		"no batches any more": func(c *jetstream.StreamConfig) { c.AllowBatchPublish = false },
		"no batches, and a short window": func(c *jetstream.StreamConfig) {
			c.AllowBatchPublish, c.Duplicates = false, 10*time.Second
		},
		"other subjects":   func(c *jetstream.StreamConfig) { c.Subjects = []string{"k8s.c.>", "k8s.other.>"} },
		"a source":         func(c *jetstream.StreamConfig) { c.Sources = []*jetstream.StreamSource{{Name: "ELSEWHERE"}} },
		"no direct access": func(c *jetstream.StreamConfig) { c.AllowDirect = false },
	} {
		for _, down := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", while the exporter is down"}[down], func(t *testing.T) {
				server := startServer(t, "")
				js := connectClient(t, server.URL())
				createStream(t, js, jetstream.StreamConfig{Name: "ELSEWHERE", Subjects: []string{"elsewhere.>"}})
				before := jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, AllowBatchPublish: true, AllowDirect: true}
				createStream(t, js, before)
				s := openSink(t, testConfig(server.URL()), discardLog)
				publishAllNumbered(t, s, 1, 3)
				state, next := s.State(0), 4
				publishAllNumbered(t, s, next, 6) // the stored state does not cover these
				edited := before
				edited.Subjects = slices.Clone(before.Subjects)
				edit(&edited)
				updateStream(t, js, edited)
				if down {
					s = restartSink(t, server.URL(), state, 9)
				} else {
					next = 7
				}
				publishAllNumbered(t, s, next, 9)
				updateStream(t, js, before)
				publishAllNumbered(t, s, 10, 12)
				mustHoldVersions(t, js, 12)
			})
		}
	}
}

// Messages cannot be read by the subjects they were sent to if the stream stores them under others.
func TestAfterACrashPublishingResumesInAStreamThatTransformsSubjects(t *testing.T) {
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	config := jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, AllowBatchPublish: true,
		SubjectTransform: &jetstream.SubjectTransformConfig{Source: "k8s.>", Destination: "kept.>"}}
	createStream(t, js, config)
	s := openSink(t, testConfig(server.URL()), discardLog)
	publishAllNumbered(t, s, 1, 3)
	state := s.State(0)
	publishAllNumbered(t, s, 4, 6)
	s = restartSink(t, server.URL(), state, 9)
	if n, err := publishNumbered(t, s, 4, 9); n != 6 || err != nil {
		t.Fatalf("%d accepted, %v", n, err)
	}
	state = s.State(0)
	publishAllNumbered(t, s, 10, 12)
	config.AllowBatchPublish = false
	updateStream(t, js, config)
	if n, err := publishNumbered(t, restartSink(t, server.URL(), state, 15), 10, 15); n != 6 || err != nil {
		t.Fatalf("by ID: %d accepted, %v", n, err)
	}
	mustHoldVersions(t, js, 15)
}

// The stream could not recognise copies in a batch, because messages in a batch have no ID.
func TestWhatWentByIDBeforeACrashGoesByIDAfterIt(t *testing.T) {
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	createStreamWithoutBatches(t, server)
	s := openSink(t, testConfig(server.URL()), discardLog)
	publishAllNumbered(t, s, 1, 3)
	state := s.State(3)
	publishAllNumbered(t, s, 4, 6) // the state is not stored after these
	updateStream(t, js, jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, AllowBatchPublish: true})
	after := restartSink(t, server.URL(), state, 9)
	publishAllNumbered(t, after, 4, 9)
	publishAllNumbered(t, after, 10, 12)
	mustHoldVersions(t, js, 12)
	if after.batches.count == 0 {
		t.Error("new changes go by ID, too")
	}
}

// The stream is edited so that it no longer answers.
func TestAStreamThatIsEditedNotToAcknowledgeIsNamed(t *testing.T) {
	t.Parallel()
	forBatchesAndIDs(t, func(t *testing.T, batches bool) {
		server := startServer(t, "")
		js := connectClient(t, server.URL())
		config := jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, AllowBatchPublish: batches}
		createStream(t, js, config)
		s := openSink(t, shortTimeoutConfig(server.URL()), discardLog)
		waitAccepted(t, s, newPod("web", 1))
		config.NoAck, config.AllowBatchPublish = true, false
		updateStream(t, js, config)
		if n, err := publishChanges(t, s, newPod("web", 2)); n != 0 || err == nil {
			t.Fatalf("%d accepted, %v", n, err)
		}
		waitUnavailable(t, s, newPod("web", 2), `stream "K8S" does not acknowledge (no_ack)`)
	})
}

// The answers to a batch come too late, and when the sink asks about the batch the stream no longer takes any.
func TestABatchInDoubtIsResolvedWhenTheStreamStopsTakingBatches(t *testing.T) {
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	p := startProxy(t, strings.TrimPrefix(server.URL(), "nats://"))
	before := jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, AllowBatchPublish: true}
	createStream(t, js, before)
	s := openSink(t, shortTimeoutConfig("nats://"+p.listenAddress()), discardLog)
	publishAllNumbered(t, s, 1, 3)
	release := p.holdAnswers()
	defer release()
	if _, err := publishNumbered(t, s, 4, 6); err == nil {
		t.Fatal("delivered without an answer")
	}
	before.AllowBatchPublish = false
	updateStream(t, js, before)
	release()
	publishAllNumbered(t, s, 4, 9)
	mustHoldVersions(t, js, 9)
}
