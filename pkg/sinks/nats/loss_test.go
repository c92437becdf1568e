package nats

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

// publishNumbered publishes versions first to last of one object, with offsets of the same numbers.
func publishNumbered(t *testing.T, s *Sink, first, last int) (int, error) {
	t.Helper()
	lane, err := s.Lane(newPod("web", first))
	if err != nil {
		t.Fatal(err)
	}
	return s.Publish(t.Context(), lane, podVersions(first, last))
}

// publishAllNumbered is publishNumbered until all versions are accepted.
func publishAllNumbered(t *testing.T, s *Sink, first, last int) {
	t.Helper()
	for first <= last {
		n, err := publishNumbered(t, s, first, last)
		var lost *sinks.LostError
		if errors.As(err, &lost) || t.Context().Err() != nil {
			t.Fatal(err)
		}
		first += n
	}
}

// The server loses power before it syncs its disk: here an earlier copy of its store replaces the current one. The exporter
// may have been restarted meanwhile.
func TestAStreamThatWentBackIsFilledAgain(t *testing.T) {
	for name, test := range map[string]struct{ batches, restarted bool }{
		"by ID": {}, "in batches": {batches: true}, "by ID, restarted": {restarted: true}, "in batches, restarted": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			server := startServerIn(t, dir)
			cfg := testConfig(server.URL())
			if !test.batches {
				createStreamWithoutBatches(t, server)
			}
			s := openSink(t, cfg, discardLog)
			publishAllNumbered(t, s, 1, 5)
			s.State(5)
			at := filepath.Join(dir, "store")
			whileStopped(t, server, func() { copyDir(t, at, at+"-old") })
			publishAllNumbered(t, s, 6, 9)
			state := s.State(9)
			whileStopped(t, server, func() { replaceDir(t, at, at+"-old") })

			if test.restarted {
				s = restartSink(t, server.URL(), state, 10)
			}
			var lost *sinks.LostError
			for err := error(nil); !errors.As(err, &lost); {
				if _, err = publishNumbered(t, s, 10, 10); err == nil || t.Context().Err() != nil {
					t.Fatalf("the loss was not detected: %v", err)
				}
			}
			if lost.From != 5 || !strings.Contains(lost.Reason, `stream "K8S" went back`) {
				t.Errorf("got %+v, want one from offset 5", lost)
			}
			if _, err := publishNumbered(t, s, 6, 6); !errors.As(err, &lost) {
				t.Errorf("before RestoreState: %v", err)
			}
			mustRestore(t, s, s.State(5), 10)
			publishAllNumbered(t, s, 6, 12)
			var held []string
			for _, m := range readMessages(t, connectClient(t, server.URL()), "K8S") {
				held = append(held, strings.TrimPrefix(changeIDOf(m.Headers(), m.Data()), "c/uid-web/"))
			}
			// 10 was stored before the loss was known; it is stored again after the changes that must precede it.
			want := "1 2 3 4 5 10 6+ 7+ 8+ 9+ 10+ 11 12"
			if test.batches {
				want = "1 2 3 4 5 6 7 8 9 10 11 12" // nothing was stored before the loss was known
			}
			got := strings.NewReplacer("/updated/again-1", "+", "/updated", "").Replace(strings.Join(held, " "))
			if got != want {
				t.Errorf("the stream holds %s\nwant %s", got, want)
			}
		})
	}
}

// whileStopped kills the server, calls do, and restarts it.
func whileStopped(t *testing.T, server *natsserver.Server, do func()) {
	t.Helper()
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	do()
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

func replaceDir(t *testing.T, at, with string) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(at), os.Rename(with, at)); err != nil {
		t.Fatal(err)
	}
}

func TestASinkOfManyLanesGoesBackFarEnough(t *testing.T) {
	p := idProgress{}
	for sequence := uint64(1); sequence <= 20; sequence++ {
		before, err := p.newestBeforeSend()
		if err != nil {
			t.Fatal(err)
		}
		p.checkpoints = append(p.checkpoints, sequenceCheckpoint{offset: 100 + sequence - 1, sequence: sequence - 1})
		if err := p.recordAck("S", before, sequence, 1); err != nil {
			t.Fatal(err)
		}
	}
	var lost *sinks.LostError
	if err := p.recordAck("S", 20, 12, 4); !errors.As(err, &lost) || lost.From != 108 { // 9 to 12 may all be new
		t.Errorf("got %v, want one from offset 108", err)
	}
}

func FuzzAStateIsReadAsItWasWritten(f *testing.F) {
	s := newSink(f, validConfig(), discardLog)
	s.ids.progress.newest.Store(7)
	s.ids.progress.resendThrough, s.ids.progress.lossCount = 8, 9
	s.end.epoch, s.end.lastSequence, s.end.storedThrough, s.end.endKnown = "epoch", 10, 11, true
	f.Add(s.State(5))
	f.Add([]byte{stateFormat})
	f.Add([]byte{stateFormat, 0})
	f.Fuzz(func(t *testing.T, state []byte) {
		first, again := newSink(t, validConfig(), discardLog), newSink(t, validConfig(), discardLog)
		first.end.epoch, again.end.epoch = "", ""
		if first.RestoreState(state, 1, nil) != nil {
			return
		}
		first.ids.progress.lost = &sinks.LostError{} // no new checkpoint
		if err := again.RestoreState(first.State(0), 1, nil); err != nil {
			t.Fatalf("%x: %v", state, err)
		}
		if was, is := storedFields(first), storedFields(again); was != is {
			t.Errorf("%x is read as %s and written as %s", state, was, is)
		}
	})
}

// storedFields lists the fields of a sink that its state holds.
func storedFields(s *Sink) string {
	p, e := &s.ids.progress, s.end
	return fmt.Sprint(p.newest.Load(), e.seen.Load(), p.resendThrough, p.lossCount, len(p.checkpoints), e.epoch, e.lastSequence, e.storedThrough, e.endKnown)
}
