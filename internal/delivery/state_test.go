package delivery

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// rememberingSink is a Stateful whose state is a text.
type rememberingSink struct {
	sinkFuncs
	mu       sync.Mutex
	state    string
	restored string
	newest   uint64
	save     func(context.Context) error
}

func (s *rememberingSink) Restore(state []byte, newest uint64, save func(context.Context) error) error {
	s.restored, s.newest, s.save = string(state), newest, save
	return nil
}

func (s *rememberingSink) State(uint64) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return []byte(s.state)
}

func (s *rememberingSink) remember(state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
}

func TestASinksStateIsStoredWithTheCursorAndHandedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stored{}
		sink := &rememberingSink{}
		sink.publish = func(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
			sink.remember("one")
			return len(batch), nil
		}
		cfg := Config{Newest: 7, Selection: "this"}
		p := run(t, sink, journalOf(changesIn("a"), s), event.Cursor{}, cfg)
		synctest.Wait()
		p.end(t)
		cursor, _ := s.get()

		again := func(selection string) *rememberingSink {
			later := &rememberingSink{}
			p := run(t, later, journalOf(nil, &stored{}), cursor, Config{Newest: 7, Selection: selection})
			synctest.Wait()
			p.end(t)
			return later
		}
		if later := again("this"); later.restored != "one" || later.newest != 7 {
			t.Errorf("restored %q, newest %d", later.restored, later.newest)
		}
		if later := again("that"); later.restored != "" {
			t.Errorf("restored %q under another selection", later.restored)
		}
	})
}

func TestAStatefulSinkCanStoreBeforeItPublishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stored{}
		sink := &rememberingSink{}
		sink.publish = func(ctx context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
			sink.remember("before")
			if err := sink.save(ctx); err != nil {
				return 0, err
			}
			if c, _ := s.get(); string(c.State) != "\x00before" {
				t.Errorf("state %q is stored", c.State)
			}
			return len(batch), nil
		}
		p := run(t, sink, journalOf(changesIn("a", "b", "c"), s), event.Cursor{}, Config{})
		synctest.Wait()
		p.end(t)
		if got := p.Stats().Delivered; got != 3 {
			t.Errorf("delivered %d", got)
		}
	})
}

// A sink that counts messages after a crash must not take one that was given up for one that it has sent.
func TestADeadLetterIsDurableBeforeAStatefulSinkGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stored{}
		journal := journalOf(changesIn("a", "a"), s)
		store, broken := journal.settle, 2
		journal.settle = func(ctx context.Context, c event.Cursor, dead []event.DeadLetter) error {
			if len(dead) > 0 && broken > 0 {
				broken--
				return errors.New("disk")
			}
			return store(ctx, c, dead)
		}
		sink := &rememberingSink{}
		sink.publish = func(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
			if batch[0].Offset == 1 {
				return 0, &sinks.RejectedError{Reason: "never"}
			}
			if _, dead := s.get(); len(dead) != 1 {
				t.Errorf("%d dead letters are stored when the lane goes on", len(dead))
			}
			return len(batch), nil
		}
		p := run(t, sink, journal, event.Cursor{}, Config{BatchMessages: 1})
		p.Drain(2)
		if err := <-p.done; err != nil {
			t.Error(err)
		}
	})
}

// settlingSink is a Stateful that notes what it is told to be settled.
type settlingSink struct {
	rememberingSink
	settled func(low uint64)
}

func (s *settlingSink) Settled(low uint64) { s.settled(low) }

// TestASinkIsToldWhatIsSettledWhenThatIsStored is about a sink that was fenced, too, which stores no state.
func TestASinkIsToldWhatIsSettledWhenThatIsStored(t *testing.T) {
	for _, fenced := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, last := &stored{}, uint64(0)
			sink := &settlingSink{settled: func(low uint64) {
				if c, _ := s.get(); c.Low != low {
					t.Errorf("settled up to %d, and the stored cursor says %d", low, c.Low)
				}
				last = low
			}}
			sink.publish = func(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) { return len(batch), nil }
			p := run(t, sink, journalOf(changesIn("a", "b", "a"), s), event.Cursor{}, Config{Fenced: fenced})
			p.Drain(3)
			if err := <-p.done; err != nil {
				t.Error(err)
			}
			if last != 3 {
				t.Errorf("fenced %v: settled up to %d, want 3", fenced, last)
			}
		})
	}
}

// end stops the pipeline.
func (r *running) end(t *testing.T) {
	t.Helper()
	r.stop()
	if err := <-r.done; !errors.Is(err, context.Canceled) {
		t.Errorf("stopped with %v", err)
	}
}

// TestALongCursorIsStoredLessOften has a sink whose state names very many lanes, of which few do anything.
func TestALongCursorIsStoredLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		writes := func(state string) int {
			s, to := newStream(100, 10), newCounts(t)
			sink := &rememberingSink{sinkFuncs: sinkFuncs{publish: to.publish}, state: state}
			p := run(t, sink, s, event.Cursor{}, Config{})
			time.Sleep(time.Minute)
			p.end(t)
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.writes
		}
		if short, long := writes("short"), writes(strings.Repeat("lane", cursorPace/2)); short < 250 || long > 32 || long < 25 {
			t.Errorf("a short cursor was stored %d times in a minute, one that takes two seconds %d times", short, long)
		}
	})
}
