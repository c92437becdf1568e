package nats

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

func TestBatchesKeepTheFailoverContract(t *testing.T) {
	t.Parallel()
	server := startServer(t, "")
	sinktest.RunFailover(t, newHarness(server, server.URL()))
}

// fencedPublisher is a process that publishes numbered changes of one object until it is deposed.
type fencedPublisher struct {
	t     testing.TB
	sink  *Sink
	claim sinks.Claim

	running sync.WaitGroup
	acked   atomic.Int64 // the newest version that is acknowledged
	err     error        // why it ended
}

// startFencedPublisher opens a sink, as another process would, and fences it.
func startFencedPublisher(t testing.TB, cfg Config, owner string, changes ...func(*sinks.Claim)) *fencedPublisher {
	t.Helper()
	r := &fencedPublisher{t: t, sink: openSink(t, cfg, discardLog), claim: sinks.Claim{Group: "group", Sink: "bus"}}
	for _, change := range changes {
		change(&r.claim)
	}
	r.fenceSink(owner)
	return r
}

func (r *fencedPublisher) fenceSink(owner string) {
	r.t.Helper()
	for begun := time.Now(); ; {
		r.claim.Owner = owner
		_, err := r.sink.Fence(r.t.Context(), r.claim, []sinks.Lane{singleLane})
		if err == nil {
			return
		}
		if time.Since(begun) > testTimeout {
			r.t.Fatal(err)
		}
	}
}

// singlePlace returns the progress of a sink with one lane.
func singlePlace(s *Sink) (place sinks.LanePosition) {
	for lane, at := range s.LaneProgress() {
		if name, _ := sinks.SplitRecordedLane(lane); name == singleLane {
			place = at
		}
	}
	return place
}

// podVersions returns changes of one object.
func podVersions(first, last int) (batch []sinks.Message) {
	for v := first; v <= last; v++ {
		batch = append(batch, sinks.Message{Offset: uint64(v), Change: newPod("web", v)})
	}
	return batch
}

// mustHoldVersions fails the test unless the stream holds versions 1 to last of the object, each once, in order.
func mustHoldVersions(t *testing.T, js jetstream.JetStream, last int) {
	t.Helper()
	if found := mustBeContinuous(t, js, "K8S"); found != last {
		t.Errorf("the stream ends with version %d, want %d", found, last)
	}
}

// startPublishing publishes from a version on, in large batches, until the process is deposed.
func (r *fencedPublisher) startPublishing(first int) {
	r.acked.Store(int64(first - 1))
	r.running.Go(func() {
		for begun := time.Now(); r.err == nil; {
			at := int(r.acked.Load())
			n, err := r.sink.Publish(r.t.Context(), singleLane, podVersions(at+1, at+2000))
			if r.acked.Add(int64(n)); errors.As(err, new(*sinks.DeposedError)) || time.Since(begun) > testTimeout {
				r.err = err
			}
		}
	})
}

// newestInTail returns the newest version in the tail from a position on. It fails the test unless the versions are
// consecutive.
func (r *fencedPublisher) newestInTail(from sinks.LanePosition) (newest int) {
	r.t.Helper()
	for begun := time.Now(); ; {
		newest = 0
		_, err := r.sink.ReadTail(r.t.Context(), map[sinks.Lane]sinks.Tail{singleLane: {From: from}}, func(_ sinks.Lane, e sinks.Emitted) error {
			version := 0
			if _, err := fmt.Sscan(e.ResourceVersion, &version); err != nil {
				return err
			}
			if newest != 0 && version != newest+1 {
				r.t.Errorf("version %d follows %d", version, newest)
			}
			newest = version
			return nil
		})
		if err == nil {
			return newest
		}
		if time.Since(begun) > testTimeout {
			r.t.Fatal(err)
		}
	}
}

// runFailovers lets processes take over from each other in the middle of batches. Each starts after the tail of the previous
// one.
func runFailovers(t *testing.T, cfg Config, lives, each int, before func(life int), changes ...func(*sinks.Claim)) {
	var older *fencedPublisher
	for life := range lives {
		place := sinks.LanePosition(1)
		if older != nil {
			place = singlePlace(older.sink)
		}
		newer, from := startFencedPublisher(t, cfg, fmt.Sprint("life ", life), changes...), 1
		if older != nil {
			older.running.Wait()
			mustBeDeposedBy(t, older.err, fmt.Sprint("life ", life))
			from = max(newer.newestInTail(place), int(older.acked.Load())) + 1
		}
		if life < lives-1 {
			newer.startPublishing(from)
			goal := int64(from + each)
			for begun := time.Now(); newer.acked.Load() < goal; time.Sleep(time.Millisecond) {
				if time.Since(begun) > testTimeout {
					t.Fatalf("life %d got to %d", life, newer.acked.Load())
				}
			}
			before(life)
		}
		older = newer
	}
}

// mustBeContinuous fails the test unless a stream holds each version of the object once, in order.
func mustBeContinuous(t *testing.T, js jetstream.JetStream, stream string) (last int) {
	t.Helper()
	for _, m := range readMessages(t, js, stream) {
		id, ours := strings.CutPrefix(changeIDOf(m.Headers(), m.Data()), "c/uid-web/")
		if !ours {
			continue
		}
		if last++; id != fmt.Sprintf("%d/updated", last) {
			t.Fatalf("%s is where %d should be", id, last)
		}
	}
	return last
}

// TestFailoversInASharedStreamLoseRepeatAndReorderNothing has another client and the exporter of another deployment publish
// to the stream all the time. With an election each exporter starts its batches between the messages of the others: it
// never publishes by message ID, which would not be refused once it is replaced.
func TestFailoversInASharedStreamLoseRepeatAndReorderNothing(t *testing.T) {
	t.Parallel()
	server := startServer(t, "")
	cfg := testConfig(server.URL())
	electedAs := func(deployment string) func(*sinks.Claim) {
		return func(c *sinks.Claim) { c.Group, c.Deployment, c.Elected = deployment, deployment, true }
	}
	other := startFencedPublisher(t, cfg, "other", electedAs("other"))
	js := connectClient(t, server.URL())
	var writing sync.WaitGroup
	stop := make(chan struct{})
	repeatUntilStopped := func(do func(n int) error) {
		writing.Go(func() {
			for n := 1; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := do(n); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	repeatUntilStopped(func(int) error {
		time.Sleep(2 * time.Millisecond) // is the rate of the client, not a wait
		_, err := js.Publish(t.Context(), "k8s.mine.a.b.c.d", []byte("mine"))
		return err
	})
	published := 0
	repeatUntilStopped(func(int) error {
		n, _ := other.sink.Publish(t.Context(), singleLane, []sinks.Message{{Offset: uint64(published + 1), Change: newPod("other", published+1)}})
		published += n // what is refused is published again
		return nil
	})
	runFailovers(t, cfg, 6, 300, func(int) {}, electedAs("own"))
	close(stop)
	writing.Wait()
	t.Logf("%d versions, and %d of the other deployment", mustBeContinuous(t, js, "K8S"), published)
	byID := 0
	for _, m := range readMessages(t, js, "K8S") {
		if m.Headers().Get(headerDeployment) != "" && m.Headers().Get(nats.MsgIdHdr) != "" {
			byID++
		}
	}
	if byID > 0 {
		t.Errorf("%d changes were published by message ID", byID)
	}
}

// TestABatchBehindManyMessagesOfOthersIsFenced: an exporter is frozen in a batch, and another client writes on. The next one
// finds the batch and ends it, with few requests: a take-over has seconds, and servers that have just lost one are slow.
func TestABatchBehindManyMessagesOfOthersIsFenced(t *testing.T) {
	t.Parallel()
	server := startServer(t, "")
	slow := startProxy(t, strings.TrimPrefix(server.URL(), "nats://"))
	elected := func(c *sinks.Claim) { c.Deployment, c.Elected = "own", true }
	js := connectClient(t, server.URL())
	frozen := startFencedPublisher(t, testConfig("nats://"+slow.listenAddress()), "frozen", elected)
	frozen.startPublishing(1)
	for begun := time.Now(); frozen.acked.Load() < 2500; time.Sleep(time.Millisecond) {
		if time.Since(begun) > testTimeout {
			t.Fatalf("published %d", frozen.acked.Load())
		}
	}
	resume := slow.holdAnswers()
	defer resume()
	end := func() uint64 {
		s := findStream(t, js, "K8S")
		return s.CachedInfo().State.LastSeq
	}
	for before := uint64(0); before != end(); before = end() { // it sends until too much of the batch is unanswered
		time.Sleep(50 * time.Millisecond)
	}
	for range 3000 {
		if _, err := js.PublishAsync("k8s.mine.a.b.c.d", []byte("mine")); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	var requests atomic.Int64
	watched, err := js.Conn().Subscribe("$JS.API.>", func(*nats.Msg) { requests.Add(1) })
	if err == nil {
		err = js.Conn().Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer watched.Unsubscribe() //nolint:errcheck // the test is over
	next := startFencedPublisher(t, testConfig(server.URL()), "next", elected)
	from := next.newestInTail(1) + 1
	if n := requests.Load(); n > 60 {
		t.Errorf("the fence took %d requests", n)
	}
	resume()
	frozen.running.Wait()
	mustBeDeposedBy(t, frozen.err, "next")
	if n, err := next.sink.Publish(t.Context(), singleLane, podVersions(from, from+9)); n != 10 || err != nil {
		t.Errorf("the next one published %d, %v", n, err)
	}
	mustHoldVersions(t, js, from+9)
}

func TestFailoversWhileStreamLeadersDieLoseRepeatAndReorderNothing(t *testing.T) {
	t.Parallel()
	servers := startCluster(t, samePort)
	js, cfg := connectClient(t, servers.URL()), shortTimeoutConfig(servers.URL())
	cfg.Create.Replicas = 3
	var killing sync.WaitGroup
	runFailovers(t, cfg, 6, 2000, func(life int) {
		if life%2 == 0 {
			killing.Wait()
			killing.Go(func() {
				if err := killServers(js, servers, "K8S", 1); err != nil {
					t.Error(err)
				}
			})
		}
	})
	killing.Wait()
	waitReplicated(t, js, "K8S")
	t.Logf("%d versions", mustBeContinuous(t, js, "K8S"))
}

func TestARecreatedFencedStreamIsRefilledByItsOwner(t *testing.T) {
	server := startServer(t, "")
	js, cfg := connectClient(t, server.URL()), testConfig(server.URL())
	older := startFencedPublisher(t, cfg, "one")
	mustPublish(t, older.sink, newPod("web", 1))
	owner := startFencedPublisher(t, cfg, "two")
	mustPublish(t, owner.sink, newPod("web", 2), newPod("web", 3))
	deleteStream(t, js, "K8S")
	var lost *sinks.LostError
	for begun, err := time.Now(), error(nil); !errors.As(err, &lost); _, err = publishChanges(t, owner.sink, newPod("web", 4)) {
		if time.Since(begun) > testTimeout {
			t.Fatalf("the loss was not detected: %v", err)
		}
	}
	_, err := publishChanges(t, older.sink, newPod("web", 4))
	mustBeDeposedBy(t, err, "two")
	mustRestore(t, owner.sink, owner.sink.State(0), 4)
	for lane, place := range owner.sink.LaneProgress() {
		if place > 2 {
			t.Errorf("the lane %s starts at %d", lane, place)
		}
	}
	mustPublish(t, owner.sink, newPod("web", 1), newPod("web", 2))
	mustHoldVersions(t, js, 2)
}

// The exporter has renewed its claim, as in a recreated stream, and the answer was lost.
func TestAnExporterIsNotDeposedByItself(t *testing.T) {
	server := startServer(t, "")
	s := startFencedPublisher(t, testConfig(server.URL()), "one").sink
	l, err := s.verifiedLink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	term := s.fence.current.Load()
	mine, record := *term.owner.Load(), s.fence.ownershipRecord(l, term.claim, term.found)
	for range 2 { // the result of the first one is dropped
		if _, err := record.Claim(t.Context(), term.claim, mine); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.fence.checkOwnership(t.Context(), l, 0); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, s, newPod("web", 1))
}

func TestAFencedStreamThatIsPurgedGoesOn(t *testing.T) {
	server := startServer(t, "")
	cfg := testConfig(server.URL())
	owner := startFencedPublisher(t, cfg, "one")
	mustPublish(t, owner.sink, newPod("web", 1))
	purgeStream(t, connectClient(t, server.URL()), "K8S")
	mustPublish(t, owner.sink, newPod("web", 2))
	newer := startFencedPublisher(t, cfg, "two")
	if newest := newer.newestInTail(1); newest != 2 {
		t.Errorf("the tail ends with %d", newest)
	}
	mustPublish(t, newer.sink, newPod("web", 3))
}

func TestAStreamWithoutTheFenceSubjectIsAnErrorWithARemedy(t *testing.T) {
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	createStream(t, js, jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, AllowBatchPublish: true})
	s := openSink(t, testConfig(server.URL()), discardLog)
	_, err := s.Fence(t.Context(), sinks.Claim{Group: "group", Owner: "one"}, nil)
	var away *sinks.UnavailableError
	if !errors.As(err, &away) || !strings.Contains(away.Remedy, "nats stream edit K8S --subjects k8s.>,kubecdc.fence.K8S.>") {
		t.Fatalf("got %v", err)
	}
	updateStream(t, js, jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>", "kubecdc.fence.K8S.>"}, AllowBatchPublish: true})
	if _, err := s.Fence(t.Context(), sinks.Claim{Group: "group", Owner: "one"}, nil); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, s, newPod("web", 1))
}

// By message ID the server refuses no message. A warning reports that, and an older exporter is deposed before its next
// Publish.
func TestByMessageIDAnOlderExporterIsDeposedBeforeItSendsMore(t *testing.T) {
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	createStream(t, js, jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>", "kubecdc.fence.>"}})
	cfg := testConfig(server.URL())
	older := startFencedPublisher(t, cfg, "one")
	mustPublish(t, older.sink, newPod("web", 1))
	if all := warningsOf(older.sink); !slices.ContainsFunc(all, func(c string) bool { return strings.Contains(c, "allow_batched") }) {
		t.Errorf("warnings: %q", all)
	}
	place := singlePlace(older.sink)
	mustPublish(t, older.sink, newPod("web", 2))
	newer := startFencedPublisher(t, cfg, "two")
	_, err := publishChanges(t, older.sink, newPod("web", 3))
	mustBeDeposedBy(t, err, "two")
	var tail []string
	if _, err := newer.sink.ReadTail(t.Context(), map[sinks.Lane]sinks.Tail{singleLane: {From: place}}, func(_ sinks.Lane, e sinks.Emitted) error { tail = append(tail, e.ResourceVersion); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(tail) != 1 || tail[0] != "2" {
		t.Errorf("tail after %d: %q", place, tail)
	}
	mustPublish(t, newer.sink, newPod("web", 3))
	mustHoldVersions(t, js, 3)
}

// TestTheFenceIsARecordThatConsumersIgnore: a reader of the whole stream does not end at a failover.
func TestTheFenceIsARecordThatConsumersIgnore(t *testing.T) {
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	createStream(t, js, jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>", "kubecdc.fence.>"}, AllowBatchPublish: true})
	startFencedPublisher(t, testConfig(server.URL()), "one")
	s := findStream(t, js, "K8S")
	fence, err := s.GetLastMsgForSubject(t.Context(), "kubecdc.fence.K8S.>")
	if err != nil {
		t.Fatal(err)
	}
	record, err := consumer.Parse(fence.Data)
	if err != nil || record.Type != "fence" {
		t.Fatalf("%s is the record %+v (%v)", fence.Data, record, err)
	}
	if err := new(consumer.Table).Apply(record); err != nil {
		t.Error(err)
	}
}

// Without batches the server refuses no message of an exporter that was frozen and resumes, so a stream like that serves no
// election: nothing is fenced or published there until the stream takes batches.
func TestAnElectionIsRefusedWithAStreamThatTakesNoBatches(t *testing.T) {
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	config := jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>", "kubecdc.fence.K8S.>"}, Duplicates: time.Minute}
	createStream(t, js, config)
	s := openSink(t, testConfig(server.URL()), discardLog)
	claim := sinks.Claim{Group: "group", Owner: "one", Elected: true}
	lastSequence := func() uint64 {
		found := findStream(t, js, "K8S")
		return found.CachedInfo().State.LastSeq
	}
	allowBatches := func(allow bool) {
		config.AllowBatchPublish = allow
		updateStream(t, js, config)
	}
	mustRefuse := func(err error) {
		t.Helper()
		var away *sinks.UnavailableError
		if !errors.As(err, &away) || away.Code != condition.SinkMisconfigured ||
			!strings.Contains(away.Remedy, "nats stream edit K8S --allow-batched") {
			t.Fatalf("got %v", err)
		}
	}
	_, err := s.Fence(t.Context(), claim, nil)
	mustRefuse(err)
	if last := lastSequence(); last != 0 {
		t.Fatalf("the stream holds %d messages", last)
	}

	allowBatches(true)
	if _, err := s.Fence(t.Context(), claim, nil); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, s, newPod("web", 1))
	before := lastSequence()

	allowBatches(false)
	_, err = publishChanges(t, s, newPod("web", 2)) // as a batch, which the server refuses; the stream is looked up after it
	if err == nil {
		t.Fatal("the stream was edited, and nothing failed")
	}
	_, err = publishChanges(t, s, newPod("web", 2))
	mustRefuse(err)
	if last := lastSequence(); last != before {
		t.Fatalf("the stream ends at %d, before the edit at %d", last, before)
	}
	allowBatches(true)
	mustPublish(t, s, newPod("web", 2))
	mustBeContinuous(t, js, "K8S")
}

func TestABucketIsFencedAndItsTailIsRead(t *testing.T) {
	server := startServer(t, "")
	cfg := testConfig(server.URL())
	cfg.Mode, cfg.Stream, cfg.Bucket, cfg.Subject = modeKV, "", "k8s", "{cluster}.{group}.{resource}.{namespace}.{name}"
	older := startFencedPublisher(t, cfg, "one")
	mustPublish(t, older.sink, newPod("a", 1), newPod("b", 2), newPod("a", 3))
	gone := newPod("b", 4)
	gone.Type = event.Deleted
	mustPublish(t, older.sink, gone)
	newer := startFencedPublisher(t, cfg, "two")
	_, err := publishChanges(t, older.sink, newPod("a", 5))
	mustBeDeposedBy(t, err, "two")
	var tail []string
	if _, err := newer.sink.ReadTail(t.Context(), map[sinks.Lane]sinks.Tail{singleLane: {From: 1}}, func(_ sinks.Lane, e sinks.Emitted) error { tail = append(tail, e.ID); return nil }); err != nil {
		t.Fatal(err)
	}
	if want := "c/uid-a/3/updated c/uid-b/4/deleted"; strings.Join(tail, " ") != want {
		t.Errorf("the bucket holds %q, want %s", tail, want)
	}
	mustPublish(t, newer.sink, newPod("a", 5))
}

// state is removed from the configuration: the fence in the stream is no other writer, and the stored state is used.
func TestAFenceIsNoOtherWriterForAnExporterWithoutState(t *testing.T) {
	server := startServer(t, "")
	cfg := testConfig(server.URL())
	before := openSink(t, cfg, discardLog)
	mustRestore(t, before, nil, 0)
	mustPublish(t, before, newPod("web", 1))
	state := before.State(0)
	startFencedPublisher(t, cfg, "one")
	s := restartSink(t, server.URL(), state, offsets.Load())
	mustPublish(t, s, newPod("web", 2))
	if all := warningsOf(s); len(all) != 0 {
		t.Errorf("warnings: %q", all)
	}
	mustHoldVersions(t, connectClient(t, server.URL()), 2)
}
