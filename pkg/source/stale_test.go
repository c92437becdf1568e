package source

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// addUnseen adds b without a word to streams.
func addUnseen(f *fakeAPI) {
	f.rv++
	f.history = append(f.history, fakeEvent{f.rv, "ADDED", "b"})
}

func TestAWatchThatFellSilentGoesOnFromItsPosition(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.bookmark = true
		s, log, stop := running(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Live)
		time.Sleep(2*time.Minute + time.Second)
		f.silence(func() { addUnseen(f) })
		time.Sleep(staleAfter - 10*time.Second)
		if got := s.Status()[0]; got.State != Live {
			t.Errorf("status %+v", got)
		}
		st.awaitEmitted(t, "snapshot a@11", "added b@12")
		awaitState(t, st, s, Live)
		if got := s.Status()[0]; got.Relists != 0 || got.Lists != 0 || f.count("WATCHLIST") != 1 {
			t.Errorf("status %+v requests %q", got, f.requests())
		}
		if log.count("level=WARN") != 0 { // it was over in a moment
			t.Errorf("log\n%s", log)
		}
	})
}

func TestAWatchIsStaleUntilSomethingIsHeard(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.bookmark = true
		s, log, stop := running(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Live)
		time.Sleep(2*time.Minute + time.Second)
		f.silence(func() { f.mute = true })
		awaitState(t, st, s, Stale)
		requests := f.count("WATCH rv=")
		for range 60 {
			time.Sleep(time.Minute)
			if got := s.Status()[0]; got.State != Stale || !strings.Contains(got.Reason, "nothing was heard for 3m0s") {
				t.Fatalf("status %+v", got)
			}
		}
		if n := f.count("WATCH rv=") - requests; n < 19 || n > 21 {
			t.Errorf("%d watches in an hour, want one every three minutes", n)
		}
		if ready, _ := s.Ready(); ready || log.count("level=WARN") != 1 {
			t.Errorf("ready %v, log\n%s", ready, log)
		}
		f.change(func() { f.mute = false })
		awaitState(t, st, s, Live) // a bookmark is enough
		if got := st.emitted(); len(got) != 1 || s.Status()[0].Relists != 0 {
			t.Errorf("emitted %q", got)
		}
	})
}

func TestAnAPIServerThatFailsAfterASilenceIsUnreachableAndThenLive(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.bookmark = true
		s, _, stop := running(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Live)
		time.Sleep(2*time.Minute + time.Second)
		f.silence(func() { f.down = true })
		awaitState(t, st, s, Unreachable)
		f.change(func() { f.down, f.bookmark = false, false }) // whatever answers now
		awaitState(t, st, s, Live)
	})
}

func TestAConnectionThatIsSilentFromItsBeginningIsNoticed(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.bookmark = true
		s, _, stop := running(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Live)
		time.Sleep(2 * time.Minute)
		f.change(func() { f.mute = true })
		awaitState(t, st, s, Stale) // some time after the API server ended the first watch
		f.change(func() { f.mute = false })
		awaitState(t, st, s, Live)
	})
}

func TestAWatchWithoutBookmarksMayBeSilent(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		s, log, stop := running(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Live)
		time.Sleep(4 * time.Hour)
		awaitState(t, st, s, Live)
		if log.count("stale") != 0 {
			t.Errorf("log\n%s", log)
		}
	})
}

func TestAJournalThatTakesItsTimeIsNoSilence(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.bookmark = true
		s, log, stop := running(t, f, st, on, func(c *Config) {
			c.Append = func(ctx context.Context, o event.Observation) error {
				if o.Position != "" { // the journal is full for some time, again and again
					_ = sleep(ctx, 2*staleAfter)
				}
				return st.append(ctx, o)
			}
		})
		defer stop()
		for i := range 3 {
			f.write("ADDED", fmt.Sprint("late", i))
			st.await(t, "the change", func() bool { return len(st.emitted()) == i+2 })
		}
		if got := s.Status()[0]; got.State != Live || log.count("stale") != 0 {
			t.Errorf("status %+v, log\n%s", got, log)
		}
	})
}
