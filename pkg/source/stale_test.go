package source

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

// addWithoutEvent adds b without an event on open streams.
func addWithoutEvent(f *fakeAPI) {
	f.rv++
	f.history = append(f.history, fakeEvent{f.rv, "ADDED", "b"})
}

func TestSilentWatchResumesFromPosition(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.bookmark = true
		s, log, stop := startSource(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Live)
		time.Sleep(2*time.Minute + time.Second)
		f.silenceStreams(func() { addWithoutEvent(f) })
		time.Sleep(staleAfter - 10*time.Second)
		if got := s.Status()[0]; got.State != Live {
			t.Errorf("status %+v", got)
		}
		st.awaitEmitted(t, "snapshot a@11", "added b@12")
		awaitState(t, st, s, Live)
		if got := s.Status()[0]; got.Relists != 0 || got.Lists != 1 {
			t.Errorf("status %+v requests %q", got, f.requestLog())
		}
		if log.CountOf("level=WARN") != 0 { // it recovered at once
			t.Errorf("log\n%s", log)
		}
	})
}

func TestStaleWatchRecoversOnFirstEvent(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.bookmark = true
		s, log, stop := startSource(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Live)
		time.Sleep(2*time.Minute + time.Second)
		f.silenceStreams(func() { f.mute = true })
		awaitState(t, st, s, Stale)
		requests := f.countRequests("WATCH rv=")
		for range 60 {
			time.Sleep(time.Minute)
			if got := s.Status()[0]; got.State != Stale || !strings.Contains(got.Condition.Cause, "received nothing for 3m0s") {
				t.Fatalf("status %+v", got)
			}
		}
		if n := f.countRequests("WATCH rv=") - requests; n < 19 || n > 21 {
			t.Errorf("%d watches in an hour, want one every three minutes", n)
		}
		if ready := s.Ready(); ready || log.CountOf("level=WARN") != 1 {
			t.Errorf("ready %v, log\n%s", ready, log)
		}
		f.update(func() { f.mute = false })
		awaitState(t, st, s, Live) // a bookmark is enough
		if got := st.transcript(); len(got) != 1 || s.Status()[0].Relists != 0 {
			t.Errorf("emitted %q", got)
		}
	})
}

func TestFailureAfterSilenceIsUnreachableThenLive(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.bookmark = true
		s, _, stop := startSource(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Live)
		time.Sleep(2*time.Minute + time.Second)
		f.silenceStreams(func() { f.down = true })
		awaitState(t, st, s, Unreachable)
		f.update(func() { f.down, f.bookmark = false, false }) // an API server that sends no bookmarks
		awaitState(t, st, s, Live)
	})
}

func TestWatchSilentFromStartIsDetected(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.bookmark = true
		s, _, stop := startSource(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Live)
		time.Sleep(2 * time.Minute)
		f.update(func() { f.mute = true })
		awaitState(t, st, s, Stale) // some time after the first watch ended
		f.update(func() { f.mute = false })
		awaitState(t, st, s, Live)
	})
}

func TestSilentWatchWithoutBookmarksIsNotStale(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		s, log, stop := startSource(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Live)
		time.Sleep(4 * time.Hour)
		awaitState(t, st, s, Live)
		if log.CountOf("stale") != 0 {
			t.Errorf("log\n%s", log)
		}
	})
}

func TestSlowJournalIsNotSilence(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.bookmark = true
		s, log, stop := startSource(t, f, st, on, func(c *Config) {
			c.Append = func(ctx context.Context, o event.Observation) error {
				if o.Position != "" { // the journal blocks again and again
					_ = ratelimit.Sleep(ctx, 2*staleAfter)
				}
				return st.appendObservation(ctx, o)
			}
		})
		defer stop()
		for i := range 3 {
			f.writeEvents("ADDED", fmt.Sprint("late", i))
			st.awaitTrue(t, "the change", func() bool { return len(st.transcript()) == i+2 })
		}
		if got := s.Status()[0]; got.State != Live || log.CountOf("stale") != 0 {
			t.Errorf("status %+v, log\n%s", got, log)
		}
	})
}
