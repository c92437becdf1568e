package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// awaitSettle lets the pipeline store what it has done so far.
func awaitSettle() {
	time.Sleep(250 * time.Millisecond)
	synctest.Wait()
}

func wantCursor(t *testing.T, s *storedProgress, want string) {
	t.Helper()
	if c, _ := s.currentProgress(); fmt.Sprint(c.Low, c.Lanes) != want {
		t.Errorf("stored cursor %d %v, want %s", c.Low, c.Lanes, want)
	}
}

func TestOneFailingLaneDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var to laneRecorder
		var s storedProgress
		var tries []time.Duration
		start := time.Now().Add(startTakes)
		sink := sinkFuncs{publish: func(_ context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
			if lane == "bad" && time.Since(start) < 12*time.Second {
				tries = append(tries, time.Since(start))
				return 0, errors.New("leader of bad is unknown")
			}
			if lane == "good" && batch[0].Offset == 1 {
				synctest.Wait() // all is read, and the only worker finds both changes of the other lane
			}
			to.recordBatch(lane, batch)
			return len(batch), nil
		}}
		records := changesIn("good", "bad", "good", "bad", "good")
		p := startPipeline(t, sink, afterTheStart(journalOf(records, &s)), event.Cursor{}, Config{Workers: 1})
		time.Sleep(startTakes)
		awaitSettle()
		to.wantLanes(t, "map[good:[1 3 5]]")
		wantCursor(t, &s, "1 map[bad:1]")
		got := p.Stats()
		if got.LanesFailing != 1 || !got.Conditions()[0].OK() || got.Delivered != 3 ||
			got.Pending != 2 || got.LanesLagging != 0 || got.Low != 1 || got.Read != 5 || got.Lag != time.Since(records[1].Change.ObservedAt) {
			t.Errorf("while a lane fails: %+v", got)
		}
		if want := []LaneStatus{{Name: "bad", Failing: true, Queued: 2, Oldest: records[1].Change.ObservedAt}, {Name: "good"}}; !slices.Equal(got.ListedLanes, want) {
			t.Errorf("the lanes are %+v, want %+v", got.ListedLanes, want)
		}
		time.Sleep(11 * time.Second)
		if got := p.Stats().Conditions()[0]; got.Name() != "sink/test/bad" || got.Cause != "leader of bad is unknown" {
			t.Errorf("after ten seconds: %+v", got)
		}
		time.Sleep(15 * time.Second)
		to.wantLanes(t, "map[bad:[2 4] good:[1 3 5]]")
		wantCursor(t, &s, "5 map[]")
		// Changes that arrive for a lane in back-off do not cut its wait short.
		if len(tries) != 12 || tries[1] != 1e9 || tries[11] != 11e9 {
			t.Errorf("tries at %v, want one each second", tries)
		}
		if got := p.Stats(); got.LanesFailing != 0 || !got.Condition.OK() || got.Retries != 12 || got.Lag != 0 {
			t.Errorf("after recovery: %+v", got)
		}
		p.log.wantOnce(t, "other lanes continue")
		p.drainUpTo(t, 5)
		p.log.wantOnce(t, "ended=SinkFailing")
	})
}

func TestAnOutageIsProbedByOneMessageAtATimeAndLoggedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var to laneRecorder
		var s storedProgress
		var inside, most atomic.Int32
		var probes []time.Duration
		start := time.Now().Add(startTakes)
		sink := sinkFuncs{publish: func(_ context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
			since := time.Since(start)
			if since > 0 && since < 10*time.Second {
				probes = append(probes, since)
				most.Store(max(most.Load(), inside.Add(1)))
				defer inside.Add(-1)
			}
			time.Sleep(50 * time.Millisecond)
			if since < 10*time.Second {
				return 0, &sinks.UnavailableError{Reason: "no broker answers"}
			}
			to.recordBatch(lane, batch)
			return len(batch), nil
		}}
		p := startPipeline(t, sink, afterTheStart(journalOf(changesIn("a", "b", "c", "d", "e"), &s)), event.Cursor{}, Config{Workers: 3})
		time.Sleep(startTakes + 9*time.Second)
		if got := p.Stats(); !got.GateClosed || got.LanesFailing != 0 || got.Condition.Cause != "no broker answers" {
			t.Errorf("in the outage: %+v", got)
		}
		time.Sleep(10 * time.Second)
		to.wantLanes(t, "map[a:[1] b:[2] c:[3] d:[4] e:[5]]")
		if most.Load() != 1 {
			t.Errorf("%d probes at once, want 1", most.Load())
		}
		if len(probes) != 9 || probes[0] != 1050*time.Millisecond || probes[1] != 2100*time.Millisecond {
			t.Errorf("probes at %v, want one each 1.05 s", probes)
		}
		p.log.wantOnce(t, "other sinks continue")
		p.log.wantOnce(t, "msg=delivers")
		p.drainUpTo(t, 5)
	})
}

func TestAnInconclusiveProbeLeavesProbingToAnotherLane(t *testing.T) {
	for lanes, want := range map[string]string{
		"a": "[0s 1.1s 2.2s]",
		// All three find the sink unavailable at 0 s. From 1.1 s on they probe one by one; those without a result back off.
		"a b c": "[0s 0s 0s 1.1s 1.2s 1.3s 2.2s 2.3s]",
	} {
		synctest.Test(t, func(t *testing.T) {
			var s storedProgress
			var mu sync.Mutex
			var calls []time.Duration
			start := time.Now()
			sink := sinkFuncs{publish: func(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
				since := time.Since(start)
				mu.Lock()
				calls = append(calls, since)
				mu.Unlock()
				time.Sleep(100 * time.Millisecond)
				switch {
				case since == 0:
					return 0, &sinks.UnavailableError{Reason: "no broker answers"}
				case since < 1300*time.Millisecond:
					return 0, errors.New("timeout")
				}
				return len(batch), nil
			}}
			records := changesIn(strings.Fields(lanes)...)
			p := startPipeline(t, sink, journalOf(records, &s), event.Cursor{}, Config{})
			p.drainUpTo(t, uint64(len(records)))
			if got := fmt.Sprint(calls); got != want {
				t.Errorf("lanes %s: calls at %s, want %s", lanes, got, want)
			}
		})
	}
}

func TestProgressEndsTheBackOffOfALane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s storedProgress
		var tries []time.Time
		sink := sinkFuncs{publish: func(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
			tries = append(tries, time.Now())
			switch len(tries) {
			case 6:
				return 1, errors.New("only one")
			case 7:
				return len(batch), nil
			}
			return 0, errors.New("none")
		}}
		records := changesIn("a", "a")
		journal := journalOf(records, &s)
		journal.read = func(ctx context.Context, after uint64) ([]event.Record, error) { return records[after:], nil }
		p := startPipeline(t, sink, journal, event.Cursor{}, Config{Retry: RetryConfig{Min: time.Second, Max: time.Hour}})
		p.drainUpTo(t, 2)
		if wait := tries[5].Sub(tries[4]); wait < 16*time.Second {
			t.Errorf("the fifth failure in a row waits %v, want at least 16s", wait)
		}
		if wait := tries[6].Sub(tries[5]); wait >= 2*time.Second {
			t.Errorf("the first failure after progress waits %v, want less than 2s", wait)
		}
	})
}

func TestARejectedMessageBecomesADeadLetterAndItsLaneGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var to laneRecorder
		var s storedProgress
		sink := acceptUnless(&to, sinks.RejectedError{Reason: "exceeds 1 MB"}, isAt(3))
		journal := journalOf(changesIn("a", "a", "a", "a", "a"), &s)
		begin := time.Now()
		p := startPipeline(t, sink, journal, event.Cursor{}, Config{})
		p.drainUpTo(t, 5)
		to.wantLanes(t, "map[a:[1 2 4 5]]")
		wantCursor(t, &s, "5 map[]")
		_, dead := s.currentProgress()
		if len(dead) != 1 || dead[0].Offset != 3 || dead[0].Reason != "rejected: exceeds 1 MB" ||
			dead[0].Change.ResourceVersion != "3" || !dead[0].Time.Equal(begin) || s.writes != 1 {
			t.Errorf("dead letters %+v in %d writes", dead, s.writes)
		}
		if got := p.Stats(); got.DeadLetters != 1 || got.Delivered != 4 || got.WindowBytes != 0 {
			t.Errorf("stats %+v", got)
		}
	})
}

func TestADeadLetterIsPublishedBeforeItsLaneGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var to laneRecorder
		var s storedProgress
		sink := acceptUnless(&to, sinks.RejectedError{Reason: "never"}, isAt(2, 5))
		records := changesIn("a", "a", "b", "a", "a", "a")
		records[2].Change.Withheld = "not shown"
		var mu sync.Mutex
		var buried []string
		failures := 2
		bury := func(_ context.Context, c *event.Change, reason string) error {
			mu.Lock()
			defer mu.Unlock()
			if len(buried) == 0 && failures > 0 { // the destination of dead letters is unavailable at first
				failures--
				return errors.New("away")
			}
			buried = append(buried, c.ResourceVersion+" "+reason)
			if c.ResourceVersion == "5" {
				return &sinks.RejectedError{Reason: "nor here"}
			}
			return nil
		}
		p := startPipeline(t, sink, journalOf(records, &s), event.Cursor{}, Config{Workers: 1, PublishDeadLetter: bury})
		p.drainUpTo(t, 6)
		to.wantLanes(t, "map[a:[1 4 6]]")
		slices.Sort(buried)
		if want := []string{"2 rejected: never", "3 rejected: withheld: not shown", "5 rejected: never"}; !slices.Equal(buried, want) {
			t.Errorf("buried %q", buried)
		}
		_, dead := s.currentProgress()
		reasons := map[uint64]string{}
		for _, d := range dead {
			reasons[d.Offset] = d.Reason
		}
		if len(reasons) != 3 || reasons[2] != "rejected: never" || reasons[5] != "rejected: never; rejected: nor here" {
			t.Errorf("stored with the reasons %v", reasons)
		}
	})
}

// acceptUnless returns a sink that rejects the messages of which bad returns true.
func acceptUnless(to *laneRecorder, why sinks.RejectedError, bad func(sinks.Message) bool) sinkFuncs {
	return sinkFuncs{publish: func(_ context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
		if i := slices.IndexFunc(batch, bad); i >= 0 {
			to.recordBatch(lane, batch[:i])
			return i, &why
		}
		to.recordBatch(lane, batch)
		return len(batch), nil
	}}
}

func isAt(offsets ...uint64) func(sinks.Message) bool {
	return func(m sinks.Message) bool { return slices.Contains(offsets, m.Offset) }
}

// acceptUpTo accepts changes with an After of at most limit bytes.
func acceptUpTo(limit int, to *laneRecorder) sinkFuncs {
	return acceptUnless(to, sinks.RejectedError{Reason: "too large", TooLarge: true},
		func(m sinks.Message) bool { return len(m.Change.After) > limit })
}

func TestAnOversizedChangeIsDeliveredTruncated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var to laneRecorder
		var s storedProgress
		records := changesIn("a", "a", "a", "a")
		records[1].Change.After = []byte("[1,2,3,4,5]")
		records[2].Change.After = []byte("[1,2,3,4,5,6,7,8]")
		halve := func(c *event.Change) (*event.Change, bool) {
			d := *c
			d.After = c.After[:len(c.After)/2]
			return &d, len(c.After) > 4
		}
		p := startPipeline(t, acceptUpTo(5, &to), journalOf(records, &s), event.Cursor{}, Config{Truncate: halve})
		p.drainUpTo(t, 4)
		to.wantLanes(t, "map[a:[1 2 3 4]]") // I3
		if got := p.Stats(); got.Truncated != 2 || got.DeadLetters != 0 || got.WindowBytes != 0 {
			t.Errorf("stats %+v", got)
		}
	})
}

func TestADeadLetterOfAnOversizedChangeIsComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var to laneRecorder
		var s storedProgress
		records := changesIn("a", "a", "a")
		records[1].Change.After = []byte("[1,2,3,4,5]")
		once := func(c *event.Change) (*event.Change, bool) {
			d := *c
			d.After = c.After[:9]
			return &d, len(c.After) > 9
		}
		p := startPipeline(t, acceptUpTo(5, &to), journalOf(records, &s), event.Cursor{}, Config{Truncate: once})
		p.drainUpTo(t, 3)
		to.wantLanes(t, "map[a:[1 3]]")
		if _, dead := s.currentProgress(); len(dead) != 1 || dead[0].Offset != 2 || string(dead[0].Change.After) != "[1,2,3,4,5]" {
			t.Errorf("dead letters %+v", dead)
		}
		if got := p.Stats(); got.Truncated != 0 || got.DeadLetters != 1 || got.WindowBytes != 0 {
			t.Errorf("stats %+v", got)
		}
	})
}

// routingSink is a sinks.Router that names lanes by topics.
type routingSink struct{ sinkFuncs }

func (routingSink) LaneTo(_ *event.Change, topic *sinks.Template) (sinks.Lane, error) {
	return sinks.Lane(topic.String()), nil
}

func TestRoutesSkipAndRedirectChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var to laneRecorder
		var s storedProgress
		other, err := sinks.ParseTemplate("other")
		if err != nil {
			t.Fatal(err)
		}
		var topics []string
		sink := routingSink{sinkFuncs{publish: func(_ context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
			for _, m := range batch {
				if m.Topic != nil {
					topics = append(topics, m.Topic.String())
				}
			}
			to.recordBatch(lane, batch)
			return len(batch), nil
		}}}
		route := func(c *event.Change) Route {
			switch c.ResourceVersion {
			case "2", "5":
				return Route{Skip: true}
			case "3":
				return Route{Topic: other}
			}
			return Route{}
		}
		p := startPipeline(t, sink, journalOf(changesIn("a", "a", "a", "a", "a"), &s), event.Cursor{}, Config{Route: route, Workers: 1})
		p.drainUpTo(t, 5)
		to.wantLanes(t, "map[a:[1 4] other:[3]]")
		wantCursor(t, &s, "5 map[]") // the cursor passes what is not for this sink
		if got := p.Stats(); got.NotRouted != 2 || got.Delivered != 3 || !slices.Equal(topics, []string{"other"}) {
			t.Errorf("stats %+v, topics %v", got, topics)
		}
	})
}

func TestRecordsOfOneSinkAreSkippedByAllOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var to laneRecorder
		var s storedProgress
		sink := acceptAll(&to)
		records := changesIn("a", "a", "a", "a", "a", "a", "a")
		for i, name := range []string{"", "another", "test"} {
			records[i].Change.Type, records[i].Change.Gap = event.Gap, &event.GapInfo{Sink: name}
			records[i+3].Change.Type, records[i+3].Change.OnlySink = event.Snapshot, name
		}
		p := startPipeline(t, sink, journalOf(records, &s), event.Cursor{}, Config{Workers: 1})
		p.drainUpTo(t, 7)
		to.wantLanes(t, "map[a:[1 3 4 6 7]]")
		wantCursor(t, &s, "7 map[]")
	})
}

func TestADeadLetterIsNotRepeatedWhenAnotherLaneHoldsTheCursorBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s storedProgress
		journal := journalOf(changesIn("stuck", "a"), &s)
		sink := sinkFuncs{publish: func(_ context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
			if lane == "stuck" {
				return 0, errors.New("not now")
			}
			return 0, &sinks.RejectedError{Reason: "never"}
		}}
		for range 2 {
			start, _ := s.currentProgress()
			p := startPipeline(t, sink, journal, start, Config{})
			awaitSettle()
			p.stop()
			if err := <-p.done; !errors.Is(err, context.Canceled) {
				t.Errorf("Run: %v", err)
			}
		}
		if _, dead := s.currentProgress(); len(dead) != 1 {
			t.Errorf("dead letters %+v, want one", dead)
		}
		wantCursor(t, &s, "0 map[stuck:0]")
	})
}

func TestRejectedMessagesHoldTheirMemoryUntilStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := changesIn(slices.Repeat([]string{"a"}, 100)...)
		size := int64(records[0].Change.Size())
		var s storedProgress
		var full atomic.Bool
		full.Store(true)
		journal := journalOf(records, &s)
		store := journal.settle
		journal.settle = func(ctx context.Context, c event.Cursor, dead []event.DeadLetter) error {
			if full.Load() {
				return errors.New("no space left on device")
			}
			return store(ctx, c, dead)
		}
		sink := sinkFuncs{publish: func(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
			switch first := batch[0].Offset % 2; { // a sink that accepts nothing would be unavailable
			case first == 0:
				return 0, &sinks.RejectedError{Reason: "never"}
			case len(batch) > 1:
				return 1, &sinks.RejectedError{Reason: "never"}
			}
			return 1, nil
		}}
		p := startPipeline(t, sink, journal, event.Cursor{}, Config{WindowBytes: 10 * size})
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := p.Stats(); got.Read != 20 || got.WindowBytes != 10*size || !strings.Contains(got.Condition.Cause, "no space left") {
			t.Errorf("dead letters that cannot be stored: %+v", got)
		}
		p.log.wantOnce(t, "progress cannot be stored")
		full.Store(false)
		p.drainUpTo(t, 100)
		if _, dead := s.currentProgress(); len(dead) != 50 {
			t.Errorf("%d dead letters stored, want 50", len(dead))
		}
		p.log.wantOnce(t, "msg=delivers")
		if got := p.Stats(); !got.Condition.OK() || got.WindowBytes != 0 {
			t.Errorf("at the end: %+v", got)
		}
	})
}

func TestProgressThatCouldNotBeStoredIsStoredLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s storedProgress
		journal, failures := journalOf(changesIn("a"), &s), 3
		store := journal.settle
		journal.settle = func(ctx context.Context, c event.Cursor, dead []event.DeadLetter) error {
			if failures--; failures >= 0 {
				return errors.New("busy")
			}
			return store(ctx, c, dead)
		}
		p := startPipeline(t, acceptAll(&laneRecorder{}), journal, event.Cursor{}, Config{})
		time.Sleep(time.Second)
		synctest.Wait()
		wantCursor(t, &s, "1 map[]")
		p.drainUpTo(t, 1)
	})
}

func acceptAll(to *laneRecorder) sinkFuncs { return acceptUnless(to, sinks.RejectedError{}, isAt()) }

func TestAContradictoryAnswerNeverCountsAsDelivery(t *testing.T) {
	for name, c := range map[string]struct {
		n    int
		err  error
		want string // what is sent next
	}{
		"less than nothing":      {-1, nil, "[1 2 3]"},
		"more than there is":     {4, nil, "[1 2 3]"},
		"nothing and no error":   {0, nil, "[1 2 3]"},
		"all and an error":       {3, errors.New("broken pipe"), "[1 2 3]"},
		"all and a rejection":    {3, &sinks.RejectedError{Reason: "never"}, "[1 2 3]"},
		"too many and rejection": {9, &sinks.RejectedError{Reason: "never"}, "[1 2 3]"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s storedProgress
				var next []uint64
				calls := 0
				sink := sinkFuncs{publish: func(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
					if calls++; calls == 1 {
						return c.n, c.err
					}
					for _, m := range batch {
						next = append(next, m.Offset)
					}
					return len(batch), nil
				}}
				records := changesIn("a", "a", "a")
				journal := journalOf(records, &s)
				journal.read = func(ctx context.Context, after uint64) ([]event.Record, error) {
					if after < 3 {
						return records[after:], nil
					}
					<-ctx.Done()
					return nil, ctx.Err()
				}
				p := startPipeline(t, sink, journal, event.Cursor{}, Config{})
				p.drainUpTo(t, 3)
				if got := fmt.Sprint(next); got != c.want {
					t.Errorf("sent next %s, want %s", got, c.want)
				}
				if got := p.Stats(); got.ContractViolations != 1 || got.DeadLetters != 0 {
					t.Errorf("stats %+v", got)
				}
				p.log.wantOnce(t, "defect in the sink")
			})
		})
	}
}

// TestChangesQueuedMeanwhileFollowThoseInFlight: a sink that leaves messages in flight gets these again, and the changes
// read since, without a pass through the workqueue.
func TestChangesQueuedMeanwhileFollowThoseInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s storedProgress
		var calls []string
		read := make(chan struct{})
		sink := sinkFuncs{publish: func(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
			first, last := batch[0].Offset, batch[len(batch)-1].Offset
			if calls = append(calls, fmt.Sprint(first, " to ", last)); len(calls) > 1 {
				return len(batch), nil
			}
			close(read)
			synctest.Wait() // the rest is queued
			return 1, nil
		}}
		records := changesIn("a", "a", "a", "a", "a")
		journal := journalOf(records, &s)
		journal.read = func(ctx context.Context, after uint64) ([]event.Record, error) {
			switch after {
			case 0:
				return records[:3], nil
			case 3:
				<-read
				return records[3:], nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		p := startPipeline(t, sink, journal, event.Cursor{}, Config{BatchMessages: 4})
		p.drainUpTo(t, 5)
		if got := fmt.Sprint(calls); got != "[1 to 3 2 to 5]" {
			t.Errorf("calls with %s", got)
		}
		if got := p.Stats(); got.ContractViolations != 0 || got.Delivered != 5 {
			t.Errorf("stats %+v", got)
		}
	})
}

func TestAFullWindowStopsReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := changesIn(slices.Repeat([]string{"a", "b"}, 50)...)
		size := int64(records[0].Change.Size())
		records[60].Change.After = make([]byte, 100*size) // larger than the window: passes alone
		var s storedProgress
		var to laneRecorder
		var most atomic.Int64
		release := make(chan struct{})
		sink := sinkFuncs{publish: func(_ context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
			<-release
			to.recordBatch(lane, batch[:1])
			if len(batch) > 1 {
				return 1, &sinks.UnavailableError{Reason: "throttled", After: time.Second}
			}
			return 1, nil
		}}
		p := startPipeline(t, sink, journalOf(records, &s), event.Cursor{}, Config{WindowBytes: 7*size + 1})
		synctest.Wait()
		if got := p.Stats(); got.Read != 7 || got.WindowBytes != 7*size {
			t.Errorf("with a sink that accepts nothing: %+v", got)
		}
		close(release)
		stop := make(chan struct{})
		var watcher sync.WaitGroup
		watcher.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Second / 10):
					if got := p.Stats(); got.Pending > 1 {
						most.Store(max(most.Load(), got.WindowBytes))
					}
				}
			}
		})
		p.drainUpTo(t, 100)
		close(stop)
		watcher.Wait()
		// The large one passes alone among the changes that are read for the first time; half of the window is for
		// those that are read again.
		if got := most.Load(); got > 7*size+int64(records[60].Change.Size()) || got == 0 {
			t.Errorf("window held up to %d bytes, want at most %d and the large change", got, 7*size)
		}
		if got := p.Stats(); got.Delivered != 100 || got.WindowBytes != 0 {
			t.Errorf("at the end: %+v", got)
		}
	})
}

func TestAWindowWithoutABoundFollowsFromTheLanes(t *testing.T) {
	for lanes, want := range map[int]int64{1: 16<<20 + 16<<10, 100: 16<<20 + 100*16<<10, 4000: 64 << 20} {
		synctest.Test(t, func(t *testing.T) {
			var names []string
			for i := range lanes {
				names = append(names, fmt.Sprint("lane", i))
			}
			var s storedProgress
			var to laneRecorder
			p := startPipeline(t, acceptAll(&to), journalOf(changesIn(names...), &s), event.Cursor{}, Config{})
			synctest.Wait()
			if got := p.Stats(); got.Lanes != lanes || got.WindowLimit != want {
				t.Errorf("%d of %d lanes have a window of %d bytes, want %d", got.Lanes, lanes, got.WindowLimit, want)
			}
			time.Sleep(5 * time.Minute)
			if got := p.Stats(); got.Lanes != 0 || got.WindowLimit != 16<<20 {
				t.Errorf("after a while without changes %d lanes have a window of %d bytes", got.Lanes, got.WindowLimit)
			}
			p.drainUpTo(t, uint64(lanes))
		})
	}
}

func TestARestartedLaneContinuesAfterItsOwnPosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := changesIn("a", "b", "a", "b", "a", "b")
		start := event.Cursor{Low: 1, Lanes: map[string]uint64{"a": 3, "b": 4, "unused": 5}}
		var to laneRecorder
		var s storedProgress
		p := startPipeline(t, acceptAll(&to), journalOf(records, &s), start, Config{})
		p.drainUpTo(t, 6)
		to.wantLanes(t, "map[a:[5] b:[6]]")
		wantCursor(t, &s, "6 map[]")
		if got := p.Stats(); got.AlreadySettled != 3 {
			t.Errorf("%d changes passed over, want 3", got.AlreadySettled)
		}
	})
}

func TestStoredLanePositionsOutliveASettleBeforeTheyAreReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s storedProgress
		sink := sinkFuncs{publish: func(ctx context.Context, _ sinks.Lane, _ []sinks.Message) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}}
		records := changesIn("a", "b", "a", "b", "c", "b")
		size := int64(records[0].Change.Size())
		start := event.Cursor{Low: 0, Lanes: map[string]uint64{"a": 1, "b": 6}}
		p := startPipeline(t, sink, journalOf(records, &s), start, Config{WindowBytes: size})
		awaitSettle()
		p.stop()
		if err := <-p.done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		wantCursor(t, &s, "2 map[a:2 b:6]")
	})
}

func TestLanePositionsOfAnotherLayoutAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var to laneRecorder
		var s storedProgress
		start := event.Cursor{Low: 1, Lanes: map[string]uint64{"a": 3}, Layout: "another"}
		p := startPipeline(t, acceptAll(&to), journalOf(changesIn("a", "b", "a", "b"), &s), start, Config{})
		p.drainUpTo(t, 4)
		to.wantLanes(t, "map[a:[3] b:[2 4]]")
		if c, _ := s.currentProgress(); c.Layout != "" {
			t.Errorf("stored layout %q, want the present one", c.Layout)
		}
	})
}

func TestADrainDeliversEverythingAndReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, when := range []string{"at once", "while delivering", "when idle"} {
			var to laneRecorder
			var s storedProgress
			sink := sinkFuncs{publish: func(_ context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
				time.Sleep(time.Second)
				to.recordBatch(lane, batch[:1])
				if len(batch) > 1 {
					return 1, errors.New("one at a time")
				}
				return 1, nil
			}}
			p := startPipeline(t, sink, journalOf(changesIn("a", "a", "a", "b"), &s), event.Cursor{}, Config{})
			switch when {
			case "while delivering":
				time.Sleep(1500 * time.Millisecond)
			case "when idle":
				time.Sleep(time.Minute)
			}
			p.drainUpTo(t, 4)
			to.wantLanes(t, "map[a:[1 2 3] b:[4]]")
			wantCursor(t, &s, "4 map[]")
			p.log.wantOnce(t, "drained: everything is delivered")
		}
	})
}

func TestAnEmptyJournalIsDrainedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s storedProgress
		start := time.Now()
		p := startPipeline(t, acceptAll(&laneRecorder{}), journalOf(nil, &s), event.Cursor{}, Config{})
		p.drainUpTo(t, 0)
		if time.Since(start) != 0 || s.writes != 0 {
			t.Errorf("took %v and %d writes", time.Since(start), s.writes)
		}
	})
}

func TestAStopLogsTheRestAndStoresProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var to laneRecorder
		var s storedProgress
		returned := false
		sink := sinkFuncs{publish: func(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
			if lane == "a" {
				to.recordBatch(lane, batch)
				return len(batch), nil
			}
			<-ctx.Done()
			time.Sleep(time.Second) // the Publish in flight takes long
			returned = true
			to.recordBatch(lane, batch[:1])
			if len(batch) == 1 { // the lane may have begun before its second message was read
				return 1, nil
			}
			return 1, ctx.Err()
		}}
		records := changesIn("a", "b", "a", "b", "b")
		journal := journalOf(records, &s)
		read := journal.read
		journal.read = func(ctx context.Context, after uint64) ([]event.Record, error) {
			if after == 4 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return read(ctx, after)
		}
		p := startPipeline(t, sink, journal, event.Cursor{}, Config{})
		synctest.Wait()
		p.Drain(5)
		synctest.Wait()
		p.stop()
		if err := <-p.done; !errors.Is(err, context.Canceled) || !returned {
			t.Errorf("returned %v; after Publish: %v", err, returned)
		}
		to.wantLanes(t, "map[a:[1 3] b:[2]]")
		wantCursor(t, &s, "3 map[b:3]")
		p.log.wantOnce(t, "stopped before everything was delivered")
		p.log.wantOnce(t, "sink=test settledUpTo=3 readUpTo=4 readButUndelivered=1 lanesBehind=0 deadLetters=0 unread=1")
	})
}

func TestAJournalThatCannotBeReadEndsThePipelineWithAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s storedProgress
		for want, read := range map[string]func(context.Context, uint64) ([]event.Record, error){
			`sink "test": read the journal after offset 1: checksum`: func(_ context.Context, after uint64) ([]event.Record, error) {
				if after == 1 {
					return nil, errors.New("checksum")
				}
				return changesIn("a"), nil
			},
			`sink "test": read the journal: offset 1 follows 1: offsets must ascend`: func(context.Context, uint64) ([]event.Record, error) {
				return changesIn("a"), nil
			},
		} {
			journal := journalOf(nil, &s)
			journal.read = read
			p := startPipeline(t, acceptAll(&laneRecorder{}), journal, event.Cursor{}, Config{})
			if err := <-p.done; err == nil || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
		}
	})
}
