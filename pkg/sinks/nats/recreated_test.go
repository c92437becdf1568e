package nats

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/form"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

// foreignStream is a stream that other clients write to, too.
type foreignStream struct {
	*testing.T
	js      jetstream.JetStream
	batches bool
}

// startForeignStream starts a server with a store of its own, and a sink that has published versions 1 to 5.
func startForeignStream(t *testing.T, batches bool) (f foreignStream, server *natsserver.Server, store string, s *Sink) {
	t.Helper()
	dir := t.TempDir()
	server = startServerIn(t, dir)
	f = foreignStream{t, connectClient(t, server.URL()), batches}
	f.create()
	s = openSink(t, testConfig(server.URL()), discardLog)
	publishAllNumbered(t, s, 1, 5)
	return f, server, filepath.Join(dir, "store"), s
}

func (f foreignStream) create() {
	f.Helper()
	createStream(f.T, f.js, jetstream.StreamConfig{
		Name: "K8S", Subjects: []string{"k8s.>", "kubecdc.fence.K8S.>"}, AllowBatchPublish: f.batches, AllowDirect: true,
	})
}

func (f foreignStream) write(n int) {
	f.Helper()
	for range n {
		if _, err := f.js.Publish(f.Context(), "k8s.mine.a.b.c.d", []byte("mine")); err != nil {
			f.Fatal(err)
		}
	}
}

// recreate deletes the stream and creates it again.
func (f foreignStream) recreate() {
	f.Helper()
	config := streamSettings(f.T, f.js, "K8S")
	deleteStream(f, f.js, "K8S")
	createStream(f.T, f.js, config)
}

// mustBeLost publishes version v until a loss is reported.
func (f foreignStream) mustBeLost(s *Sink, v int) *sinks.LostError {
	f.Helper()
	for {
		s.verifier.lastLook.Store(&time.Time{}) // a minute later
		n, err := publishNumbered(f.T, s, v, v)
		var lost *sinks.LostError
		switch v += n; {
		case errors.As(err, &lost):
			return lost
		case err != nil || v > 20:
			f.Fatalf("no loss is reported up to version %d: %v", v, err)
		}
	}
}

// TestARecreatedStreamIsNotTakenForTheOneBefore: others fill it up to where the exporter was acknowledged, and beyond,
// before it publishes again. What was acknowledged is sent again, while it runs, after a restart, and after a failover.
func TestARecreatedStreamIsNotTakenForTheOneBefore(t *testing.T) {
	for _, way := range []string{"while it runs", "restarted", "failed over"} {
		for _, filled := range []int{0, 4, 5, 6, 30} {
			for when, early := range map[string]bool{"before it looks": true, "after it has looked": false} {
				t.Run(fmt.Sprintf("%s, %d %s", way, filled, when), func(t *testing.T) {
					forBatchesAndIDs(t, func(t *testing.T, batches bool) { testRecreated(t, batches, way, filled, early) })
				})
			}
		}
	}
}

func testRecreated(t *testing.T, batches bool, way string, filled int, early bool) {
	server := startServer(t, "")
	f := foreignStream{t, connectClient(t, server.URL()), batches}
	f.create()
	cfg := testConfig(server.URL())
	s := openSink(t, cfg, discardLog)
	if way == "failed over" {
		s = f.failOver(cfg, "one", nil)
	}
	publishAllNumbered(t, s, 1, 3)
	s.State(3)
	publishAllNumbered(t, s, 4, 5)
	state, lanes := s.State(5), s.LaneProgress()
	f.recreate()
	if early {
		f.write(filled)
	}
	switch way {
	case "restarted":
		s = restartSink(t, server.URL(), state, 6)
	case "failed over":
		s = f.failOver(cfg, "two", lanes)
	}
	s.verifier.lastLook.Store(&time.Time{})
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !early {
		f.write(filled)
	}
	lost := f.mustBeLost(s, 6)
	if gone := lost.Gone >= 5; lost.From != 0 || gone != (way == "failed over") {
		t.Errorf("got %+v", lost)
	}
	mustRestore(t, s, s.State(0), 6)
	if way == "failed over" { // what was of the former stream is accepted
		s = f.failOver(cfg, "three", s.LaneProgress())
	}
	publishAllNumbered(t, s, 1, 9)
	s.verifier.lastLook.Store(&time.Time{})
	publishAllNumbered(t, s, 10, 10)
	f.mustEndWith(10)
}

// failOver returns the sink of another process that has taken over.
func (f foreignStream) failOver(cfg Config, owner string, lanes map[sinks.Lane]sinks.LanePosition) *Sink {
	f.Helper()
	s := openSink(f.T, cfg, discardLog)
	claim, tails := sinks.Claim{Group: "group", Sink: "bus", Owner: owner}, map[sinks.Lane]sinks.Tail{}
	for lane, position := range lanes {
		tails[lane] = sinks.Tail{From: position, Reached: position}
	}
	if _, err := s.Fence(f.Context(), claim, slices.Collect(maps.Keys(lanes))); err != nil {
		f.Fatal(err)
	}
	if _, err := s.ReadTail(f.Context(), tails, func(sinks.Lane, sinks.Emitted) error { return nil }); err != nil {
		f.Fatal(err)
	}
	for _, gone := range s.GoneLanes(f.Context(), slices.Collect(maps.Keys(lanes))) {
		if strings.HasSuffix(string(gone), "@"+s.fence.current.Load().owner.Load().Life) {
			f.Errorf("%s is gone", gone)
		}
	}
	mustRestore(f, s, nil, 0)
	return s
}

// mustEndWith fails the test unless the stream holds versions 1 to last, and the last one is its newest.
func (f foreignStream) mustEndWith(last int) {
	f.Helper()
	held, newest := map[int]bool{}, 0
	for _, m := range readMessages(f.T, f.js, "K8S") {
		if id, ours := strings.CutPrefix(changeIDOf(m.Headers(), m.Data()), "c/uid-web/"); ours {
			if _, err := fmt.Sscanf(id, "%d/", &newest); err != nil {
				f.Fatal(err)
			}
			held[newest] = true
		}
	}
	if len(held) != last || newest != last {
		f.Errorf("the stream holds %d versions and ends with %d, want %d", len(held), newest, last)
	}
}

// TestAStreamIsTheSameAfterWhatKeepsIt: none of this loses anything of a stream, even where it gets another creation time.
func TestAStreamIsTheSameAfterWhatKeepsIt(t *testing.T) {
	for name, happen := range map[string]func(f foreignStream, restart func(), s *Sink){
		"written by others": func(f foreignStream, _ func(), _ *Sink) { f.write(20) },
		"a restart":         func(f foreignStream, restart func(), _ *Sink) { restart() },
		"edited": func(f foreignStream, _ func(), _ *Sink) {
			config := streamSettings(f.T, f.js, "K8S")
			config.MaxAge = 24 * time.Hour
			updateStream(f.T, f.js, config)
		},
		"purged": func(f foreignStream, _ func(), _ *Sink) {
			purgeStream(f, f.js, "K8S")
			f.write(20)
		},
		"another creation time": func(f foreignStream, _ func(), s *Sink) { // as a cluster gives it
			f.write(20)
			s.end.seen.Load().Created = s.end.seen.Load().Created.Add(-time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			forBatchesAndIDs(t, func(t *testing.T, batches bool) {
				f, server, _, s := startForeignStream(t, batches)
				s.verifier.lastLook.Store(&time.Time{})
				publishAllNumbered(t, s, 6, 6)
				happen(f, func() { whileStopped(t, server, func() {}) }, s)
				state := s.State(6)
				s.verifier.lastLook.Store(&time.Time{})
				publishAllNumbered(t, s, 7, 9)
				s = restartSink(t, server.URL(), state, 12)
				publishAllNumbered(t, s, 7, 12)
			})
		})
	}
}

// TestAnOlderCopyThatOthersFillIsNotTakenForTheStream: only what the copy lacks is sent again.
func TestAnOlderCopyThatOthersFillIsNotTakenForTheStream(t *testing.T) {
	forBatchesAndIDs(t, func(t *testing.T, batches bool) {
		f, server, at, s := startForeignStream(t, batches)
		s.State(5)
		whileStopped(t, server, func() { copyDir(t, at, at+"-old") })
		publishAllNumbered(t, s, 6, 9)
		s.verifier.lastLook.Store(&time.Time{})
		publishAllNumbered(t, s, 10, 10)
		state := s.State(10)
		whileStopped(t, server, func() { replaceDir(t, at, at+"-old") })
		f.write(30)
		if lost := f.mustBeLost(restartSink(t, server.URL(), state, 11), 11); lost.From != 5 {
			t.Errorf("got %+v, want one from offset 5", lost)
		}
	})
}

// TestWhatTheFirstReleaseStoredIsOfTheStreamAsItIsFound: 0.9.0 stored neither its time of creation nor its last message.
func TestWhatTheFirstReleaseStoredIsOfTheStreamAsItIsFound(t *testing.T) {
	forBatchesAndIDs(t, func(t *testing.T, batches bool) {
		server := startServer(t, "")
		f := foreignStream{t, connectClient(t, server.URL()), batches}
		f.create()
		f.write(20)
		cfg := testConfig(server.URL())
		s := openSink(t, cfg, discardLog)
		publishAllNumbered(t, s, 1, 5)
		stored := storedState{seen: new(stream.Info)}
		if err := form.DecodeValue("state", s.State(5), codeState, &stored); err != nil || stored.seen.Created.IsZero() {
			t.Fatalf("%+v, %v", stored, err)
		}
		s = restartSink(t, server.URL(), form.EncodeValue(nil, func(f *form.Coder, s *storedState) {
			f.CodeFormat(stateFormat)
			f.CodeText(&s.epoch)
			form.CodeList(f, &s.values, 1, (*form.Coder).CodeUvarint)
		}, &stored), 6)
		publishAllNumbered(t, s, 6, 6)
		f.recreate()
		f.write(40)
		if lost := f.mustBeLost(s, 7); lost.From != 0 {
			t.Errorf("got %+v", lost)
		}
		s = f.failOver(cfg, "one", map[sinks.Lane]sinks.LanePosition{singleLane: 41})
		publishAllNumbered(t, s, 1, 2)
		lanes := s.LaneProgress()
		if _, life := sinks.SplitRecordedLane(slices.Collect(maps.Keys(lanes))[0]); len(lanes) != 1 || life == "" {
			t.Errorf("lanes %v", lanes)
		}
		lanes[singleLane] = 41
		s = f.failOver(cfg, "two", lanes)
		if gone := s.GoneLanes(t.Context(), slices.Collect(maps.Keys(lanes))); !slices.Equal(gone, []sinks.Lane{singleLane}) {
			t.Errorf("gone: %q", gone)
		}
		publishAllNumbered(t, s, 3, 4)
	})
}

// TestAStreamThatIsNotUsedAnyMoreHasLostNothing: the configuration names another one, of the same moment.
func TestAStreamThatIsNotUsedAnyMoreHasLostNothing(t *testing.T) {
	server := startServer(t, "")
	f := foreignStream{t, connectClient(t, server.URL()), true}
	f.create()
	createStream(t, f.js, jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"other.>", "kubecdc.fence.OTHER.>"}, AllowBatchPublish: true})
	cfg := testConfig(server.URL())
	s := f.failOver(cfg, "one", nil)
	publishAllNumbered(t, s, 1, 5)
	lanes := s.LaneProgress()
	cfg.Stream, cfg.Subject = "OTHER", strings.Replace(testSubject, "k8s", "other", 1)
	s = f.failOver(cfg, "two", lanes)
	if gone := s.GoneLanes(t.Context(), slices.Collect(maps.Keys(lanes))); len(gone) != len(lanes) {
		t.Errorf("gone: %q of %v", gone, lanes)
	}
	publishAllNumbered(t, s, 6, 9)
}
