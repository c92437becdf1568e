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

// numbered publishes versions first to last of one object under offsets of the same numbers.
func numbered(t *testing.T, s *Sink, first, last int) (int, error) {
	t.Helper()
	lane, err := s.Lane(pod("web", first))
	if err != nil {
		t.Fatal(err)
	}
	var batch []sinks.Message
	for version := first; version <= last; version++ {
		batch = append(batch, sinks.Message{Offset: uint64(version), Change: pod("web", version)})
	}
	return s.Publish(t.Context(), lane, batch)
}

// allNumbered publishes until everything is accepted.
func allNumbered(t *testing.T, s *Sink, first, last int) {
	t.Helper()
	for first <= last {
		n, err := numbered(t, s, first, last)
		var lost *sinks.LostError
		if errors.As(err, &lost) || t.Context().Err() != nil {
			t.Fatal(err)
		}
		first += n
	}
}

// The server loses power before it has synced its disk: here, its store of an earlier moment takes the place of the newer
// one. The exporter may have been restarted meanwhile.
func TestAStreamThatWentBackIsFilledAgain(t *testing.T) {
	for name, test := range map[string]struct{ batches, restarted bool }{
		"by ID": {}, "in batches": {batches: true}, "by ID, restarted": {restarted: true}, "in batches, restarted": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			server := serveIn(t, dir, "")
			cfg := configFor(server.URL())
			if !test.batches {
				withoutBatches(t, server)
			}
			s := opened(t, cfg, quiet)
			allNumbered(t, s, 1, 5)
			s.State(5)
			at := filepath.Join(dir, "store")
			offline(t, server, func() { duplicate(t, at, at+"-old") })
			allNumbered(t, s, 6, 9)
			state := s.State(9)
			offline(t, server, func() { exchange(t, at, at+"-old") })

			if test.restarted {
				s = opened(t, cfg, quiet)
				if err := s.Restore(state, 10, nil); err != nil {
					t.Fatal(err)
				}
			}
			var lost *sinks.LostError
			for err := error(nil); !errors.As(err, &lost); {
				if _, err = numbered(t, s, 10, 10); err == nil || t.Context().Err() != nil {
					t.Fatalf("the loss was not seen: %v", err)
				}
			}
			if lost.From != 5 || !strings.Contains(lost.Reason, `stream "K8S" went back`) {
				t.Errorf("got %+v, want one from offset 5", lost)
			}
			if _, err := numbered(t, s, 6, 6); !errors.As(err, &lost) {
				t.Errorf("before it is told to go back: %v", err)
			}
			if err := s.Restore(s.State(5), 10, nil); err != nil {
				t.Fatal(err)
			}
			allNumbered(t, s, 6, 12)
			var held []string
			for _, m := range messages(t, client(t, server.URL()), "K8S") {
				held = append(held, strings.TrimPrefix(idOf(m.Headers(), m.Data()), "c/uid-web/"))
			}
			// 10 was stored before the loss was known; it is there again behind what it has to follow.
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

// offline does something while the server is killed.
func offline(t *testing.T, server *natsserver.Server, do func()) {
	t.Helper()
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	do()
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func duplicate(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

func exchange(t *testing.T, at, with string) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(at), os.Rename(with, at)); err != nil {
		t.Fatal(err)
	}
}

func TestASinkOfManyLanesGoesBackFarEnough(t *testing.T) {
	p := progress{}
	for sequence := uint64(1); sequence <= 20; sequence++ {
		before, err := p.before()
		if err != nil {
			t.Fatal(err)
		}
		p.marks = append(p.marks, mark{offset: 100 + sequence - 1, sequence: sequence - 1})
		if err := p.acknowledged("S", before, sequence, 1); err != nil {
			t.Fatal(err)
		}
	}
	var lost *sinks.LostError
	if err := p.acknowledged("S", 20, 12, 4); !errors.As(err, &lost) || lost.From != 108 { // 9 to 12 may all be new
		t.Errorf("got %v, want one from offset 108", err)
	}
}

func FuzzAStateIsReadAsItWasWritten(f *testing.F) {
	s := &Sink{}
	s.progress.newest, s.progress.again, s.progress.losses = 7, 8, 9
	s.ordered.epoch, s.ordered.last, s.ordered.through, s.ordered.known = "epoch", 10, 11, true
	f.Add(s.State(5))
	f.Add([]byte{firstFormat})
	f.Add([]byte{stateFormat, 0})
	f.Fuzz(func(t *testing.T, state []byte) {
		var first, again Sink
		if first.Restore(state, 0, nil) != nil {
			return
		}
		first.progress.lost = &sinks.LostError{} // no new mark
		if err := again.Restore(first.State(0), 0, nil); err != nil {
			t.Fatalf("%x: %v", state, err)
		}
		was, is := &first.ordered, &again.ordered
		if fmt.Sprint(first.progress.newest, first.progress.again, first.progress.losses, len(first.progress.marks), was.epoch, was.last, was.through, was.known) !=
			fmt.Sprint(again.progress.newest, again.progress.again, again.progress.losses, len(again.progress.marks), is.epoch, is.last, is.through, is.known) {
			t.Errorf("%x is not read as it was written", state)
		}
	})
}
