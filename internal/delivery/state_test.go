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

// statefulSink is a sinks.Stateful with a text as its state.
type statefulSink struct {
	sinkFuncs
	mu       sync.Mutex
	state    string
	restored string
	newest   uint64
	save     func(context.Context) error
}

func (s *statefulSink) RestoreState(state []byte, newest uint64, save func(context.Context) error) error {
	s.restored, s.newest, s.save = string(state), newest, save
	return nil
}

func (s *statefulSink) State(uint64) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return []byte(s.state)
}

func (s *statefulSink) setState(state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
}

func TestASinksStateIsStoredWithTheCursorAndRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &storedProgress{}
		sink := &statefulSink{}
		sink.publish = func(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
			sink.setState("one")
			return len(batch), nil
		}
		cfg := Config{NewestOffset: 7, RoutingFingerprint: "this"}
		p := startPipeline(t, sink, journalOf(changesIn("a"), s), event.Cursor{}, cfg)
		synctest.Wait()
		p.stopAndWait(t)
		cursor, _ := s.currentProgress()

		again := func(selection string) *statefulSink {
			later := &statefulSink{}
			p := startPipeline(t, later, journalOf(nil, &storedProgress{}), cursor, Config{NewestOffset: 7, RoutingFingerprint: selection})
			synctest.Wait()
			p.stopAndWait(t)
			return later
		}
		if later := again("this"); later.restored != "one" || later.newest != 7 {
			t.Errorf("restored %q, newest %d", later.restored, later.newest)
		}
		if later := again("that"); later.newest != 0 {
			t.Errorf("under another selection messages up to %d are said to be the same", later.newest)
		}
	})
}

func TestAStatefulSinkCanStoreBeforeItPublishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &storedProgress{}
		sink := &statefulSink{}
		sink.publish = func(ctx context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
			sink.setState("before")
			if err := sink.save(ctx); err != nil {
				return 0, err
			}
			if c, _ := s.currentProgress(); string(c.State) != "\x00before" {
				t.Errorf("state %q is stored", c.State)
			}
			return len(batch), nil
		}
		p := startPipeline(t, sink, journalOf(changesIn("a", "b", "c"), s), event.Cursor{}, Config{})
		synctest.Wait()
		p.stopAndWait(t)
		if got := p.Stats().Delivered; got != 3 {
			t.Errorf("delivered %d", got)
		}
	})
}

// A sink that counts messages after a crash must not take a dead letter for a message that it has sent.
func TestADeadLetterIsDurableBeforeAStatefulSinkContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &storedProgress{}
		journal := journalOf(changesIn("a", "a"), s)
		store, broken := journal.settle, 2
		journal.settle = func(ctx context.Context, c event.Cursor, dead []event.DeadLetter) error {
			if len(dead) > 0 && broken > 0 {
				broken--
				return errors.New("disk")
			}
			return store(ctx, c, dead)
		}
		sink := &statefulSink{}
		sink.publish = func(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
			if batch[0].Offset == 1 {
				return 0, &sinks.RejectedError{Reason: "never"}
			}
			if _, dead := s.currentProgress(); len(dead) != 1 {
				t.Errorf("%d dead letters are stored when the lane goes on", len(dead))
			}
			return len(batch), nil
		}
		p := startPipeline(t, sink, journal, event.Cursor{}, Config{BatchMessages: 1})
		p.Drain(2)
		if err := <-p.done; err != nil {
			t.Error(err)
		}
	})
}

// settlingSink is a sinks.SettleObserver.
type settlingSink struct {
	statefulSink
	settled func(low uint64)
}

func (s *settlingSink) ObserveSettled(low uint64) { s.settled(low) }

func TestASinkIsNotifiedOnceProgressIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, last := &storedProgress{}, uint64(0)
		sink := &settlingSink{settled: func(low uint64) {
			if c, _ := s.currentProgress(); c.Low != low {
				t.Errorf("settled up to %d, and the stored cursor says %d", low, c.Low)
			}
			last = low
		}}
		sink.publish = func(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) { return len(batch), nil }
		p := startPipeline(t, sink, journalOf(changesIn("a", "b", "a"), s), event.Cursor{}, Config{})
		p.Drain(3)
		if err := <-p.done; err != nil {
			t.Error(err)
		}
		if last != 3 {
			t.Errorf("settled up to %d, want 3", last)
		}
	})
}

// stopAndWait stops the pipeline.
func (r *runningPipeline) stopAndWait(t *testing.T) {
	t.Helper()
	r.stop()
	if err := <-r.done; !errors.Is(err, context.Canceled) {
		t.Errorf("stopped with %v", err)
	}
}

// TestALongCursorIsStoredLessOften has a sink with a state of very many lanes, most of them idle.
func TestALongCursorIsStoredLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		writes := func(state string) int {
			s, to := newEndlessJournal(100, 10), newCountingSink(t)
			sink := &statefulSink{sinkFuncs: sinkFuncs{publish: to.publishCounted}, state: state}
			p := startPipeline(t, sink, s, event.Cursor{}, Config{})
			time.Sleep(time.Minute)
			p.stopAndWait(t)
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.writes
		}
		if short, long := writes("short"), writes(strings.Repeat("lane", cursorBytesPerSecond/2)); short < 250 || long > 32 || long < 25 {
			t.Errorf("a short cursor was stored %d times in a minute, one that takes two seconds %d times", short, long)
		}
	})
}
