package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// endlessJournal is a journal without an end: changes come at a rate, one of each lane in turn, in frames of ten.
type endlessJournal struct {
	lanes      []string
	rate       int // changes a second
	began      time.Time
	body       []byte        // of all changes
	lastOffset atomic.Uint64 // 0 while there are more changes to come
	storedProgress
}

func newEndlessJournal(rate, lanes int) *endlessJournal {
	s := &endlessJournal{rate: rate, began: time.Now(), body: make([]byte, 1000)}
	for i := range lanes {
		s.lanes = append(s.lanes, fmt.Sprint("lane", i))
	}
	return s
}

func (s *endlessJournal) newestOffset() uint64 {
	if last := s.lastOffset.Load(); last > 0 {
		return last
	}
	return uint64(time.Since(s.began).Seconds()*float64(s.rate)) / 10 * 10
}

func (s *endlessJournal) changeAt(offset uint64) *event.Change {
	at := s.began.Add(time.Duration(offset) * time.Second / time.Duration(s.rate))
	return &event.Change{
		Type: event.Updated, Namespace: s.lanes[offset%uint64(len(s.lanes))], Name: strconv.FormatUint(offset, 10), Generation: int64(offset),
		After: s.body, ObservedAt: at,
	}
}

func (s *endlessJournal) Read(ctx context.Context, after uint64) ([]event.Record, error) {
	for after >= s.newestOffset() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	time.Sleep(200 * time.Microsecond)
	var frame []event.Record
	for offset := after + 1; offset <= s.newestOffset() && (offset-1)/10 == after/10; offset++ {
		frame = append(frame, event.Record{Offset: offset, Change: s.changeAt(offset)})
	}
	return frame, nil
}

func (s *endlessJournal) Settle(_ context.Context, c event.Cursor, dead []event.DeadLetter) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cursor, s.writes = c, s.writes+1
	s.dead = append(s.dead, dead...)
	return nil
}

// countingSink is a destination that counts accepted changes by lane, checks their order, and fails some lanes.
type countingSink struct {
	t            *testing.T
	mu           sync.Mutex
	accepted     map[sinks.Lane]int
	last         map[sinks.Lane]uint64
	ahead        map[sinks.Lane]bool // a change was accepted before those that precede it
	failure      func(sinks.Lane) error
	callDuration time.Duration // that a call takes
}

func newCountingSink(t *testing.T) *countingSink {
	return &countingSink{
		t: t, accepted: map[sinks.Lane]int{}, last: map[sinks.Lane]uint64{}, ahead: map[sinks.Lane]bool{}, callDuration: 5 * time.Millisecond,
	}
}

func (c *countingSink) publishCounted(_ context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	time.Sleep(c.callDuration)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure != nil {
		if err := c.failure(lane); err != nil {
			return 0, err
		}
	}
	if isAhead := len(batch) == 1 && batch[0].Offset > c.last[lane]+100 && !c.ahead[lane]; isAhead {
		// A look-ahead may find a change that is accepted: it comes again, and each change is of an object of its own.
		c.ahead[lane] = true
		c.accepted[lane]++
		return 1, nil
	}
	for _, m := range batch {
		if m.Offset <= c.last[lane] { // I3, and nothing twice
			c.t.Errorf("lane %s: %d after %d", lane, m.Offset, c.last[lane])
		}
		c.last[lane] = m.Offset
		c.accepted[lane]++
	}
	return len(batch), nil
}

// setFailure sets which lanes fail from now on, and returns how many changes each lane has accepted so far.
func (c *countingSink) setFailure(failing func(sinks.Lane) error) map[sinks.Lane]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure = failing
	took := map[sinks.Lane]int{}
	for l, n := range c.accepted {
		took[l] = n
	}
	return took
}

// recoverAndCheck ends all failures. The pipeline must be healthy a minute later.
func (c *countingSink) recoverAndCheck(p *runningPipeline) {
	c.t.Helper()
	c.setFailure(nil)
	time.Sleep(time.Minute)
	if got := p.Stats(); !got.Condition.OK() {
		c.t.Errorf("%+v", got.Condition)
	}
}

func failOnly(failing sinks.Lane, err error) func(sinks.Lane) error {
	return func(l sinks.Lane) error {
		if l == failing {
			return err
		}
		return nil
	}
}

// TestOneFailingLaneOfTenCostsTheOthersNothing has one lane fail for twelve minutes at 300 changes a second, 30 of them its
// own, with a window of half a second of that. After its recovery it catches up at ten times its live rate or more, and the
// others keep theirs.
func TestOneFailingLaneOfTenCostsTheOthersNothing(t *testing.T) {
	for name, err := range map[string]error{
		"missing":       errors.New("topic does not exist"),
		"rejecting all": &sinks.RejectedError{Reason: "too small"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, to := newEndlessJournal(300, 10), newCountingSink(t)
				to.failure = failOnly("lane3", err)
				cfg := Config{WindowBytes: 150_000, Retry: RetryConfig{Min: time.Second, Max: 30 * time.Second}}
				p := startPipeline(t, sinkFuncs{publish: to.publishCounted}, s, event.Cursor{}, cfg)
				time.Sleep(time.Minute)
				early := p.Stats().WindowBytes
				time.Sleep(12*time.Minute - time.Minute) // it lacks more then than a minute of catching up has to bring
				synctest.Wait()
				if got := p.Stats(); got.WindowBytes > early+50_000 || got.Lanes != 10 || got.LanesFailing != 1 {
					t.Errorf("after twelve minutes %d bytes are held, after a minute %d: %+v", got.WindowBytes, early, got)
				}
				if c, _ := s.currentProgress(); len(c.Lanes) > 10 || c.High < 300*710 || c.Lanes["lane3"] > 10*(maxUnprovenRejections+1) {
					t.Errorf("cursor %d %d %v", c.Low, c.High, c.Lanes)
				}
				if got := p.Stats().Conditions(); len(got) != 1 || got[0].Name() != "sink/test/lane3" || got[0].Severity != condition.Degraded {
					t.Errorf("conditions %+v", got)
				}
				before := to.setFailure(nil)
				for l, n := range before {
					if l != "lane3" && n < 30*710 {
						t.Errorf("%s got %d changes, want all of %d", l, n, 30*720)
					}
				}
				time.Sleep(30*time.Second + time.Minute) // until its retry, and a minute of catching up
				after := to.setFailure(nil)
				for l, n := range after {
					if want := 30 * 80; n-before[l] < want {
						t.Errorf("%s got %d changes while lane3 caught up, want %d", l, n-before[l], want)
					}
				}
				if n := after["lane3"] - before["lane3"]; n < 10*30*60 {
					t.Errorf("lane3 got %d changes in a minute, want ten times as many as the %d that are made", n, 30*60)
				}
				s.lastOffset.Store(s.newestOffset())
				p.drainUpTo(t, s.lastOffset.Load())
				if _, dead := s.currentProgress(); len(dead) > maxUnprovenRejections {
					t.Errorf("%d dead letters", len(dead))
				}
				p.log.wantOnce(t, "other lanes continue")
				p.log.wantOnce(t, "msg=delivers")
			})
		})
	}
}

// TestASlowLaneDelaysNoOtherAndCatchesUpLater has one of ten lanes accept one change per second of the thirty that are made.
func TestASlowLaneDelaysNoOtherAndCatchesUpLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, to := newEndlessJournal(300, 10), newCountingSink(t)
		var cured atomic.Bool
		publish := func(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
			if lane == "lane3" && !cured.Load() {
				time.Sleep(time.Duration(len(batch)) * time.Second)
			}
			return to.publishCounted(ctx, lane, batch)
		}
		p := startPipeline(t, sinkFuncs{publish: publish}, s, event.Cursor{}, Config{WindowBytes: 300_000, BatchMessages: 10})
		kept := func(minutes int, slow string) {
			t.Helper()
			for l, n := range to.setFailure(nil) {
				if want := 30 * 60 * minutes * 95 / 100; string(l) != slow && n < want {
					t.Errorf("%s got %d changes, want %d", l, n, want)
				}
			}
		}
		time.Sleep(10 * time.Minute)
		kept(10, "lane3")
		cured.Store(true)
		time.Sleep(time.Minute) // ten seconds for the last slow call, the rest to catch up with ten minutes of changes
		kept(11, "")
		p.stopAndWait(t)
	})
}

// TestHangingDestinationsKeepNoWorkerFromOthers has a third of the lanes, more than there are workers, lead to a broker
// that does not answer.
func TestHangingDestinationsKeepNoWorkerFromOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, to := newEndlessJournal(300, 30), newCountingSink(t)
		publish := func(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
			if !strings.HasPrefix(string(lane), "lane1") {
				return to.publishCounted(ctx, lane, batch)
			}
			select {
			case <-time.After(10 * time.Second):
			case <-ctx.Done():
			}
			return 0, errors.New("no answer")
		}
		p := startPipeline(t, sinkFuncs{publish: publish}, s, event.Cursor{}, Config{WindowBytes: 300_000, Workers: 8})
		time.Sleep(10 * time.Minute)
		for l, n := range to.setFailure(nil) {
			if want := 10 * 600 * 95 / 100; !strings.HasPrefix(string(l), "lane1") && n < want {
				t.Errorf("%s got %d changes, want %d", l, n, want)
			}
		}
		if n := p.workers.substituted.Load(); n > 11 {
			t.Errorf("%d workers have a substitute", n)
		}
		p.stopAndWait(t)
	})
}

// TestAProbedLaneIsRetriedAtTheIntervalOfItsSink has back-offs that are longer.
func TestAProbedLaneIsRetriedAtTheIntervalOfItsSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s storedProgress
		var tries int
		sink := sinkFuncs{publish: func(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
			if tries++; tries < 10 {
				return 0, fmt.Errorf("a: %w", &sinks.ProbedError{Every: time.Second, Err: errors.New("broker 1 does not answer")})
			}
			return len(batch), nil
		}}
		began := time.Now()
		p := startPipeline(t, sink, journalOf(changesIn("a"), &s), event.Cursor{}, Config{Retry: RetryConfig{Min: time.Minute, Max: time.Hour}})
		p.drainUpTo(t, 1)
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestAParkedLaneResumesAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, to := newEndlessJournal(300, 10), newCountingSink(t)
		to.failure = failOnly("lane3", errors.New("no leader"))
		var start event.Cursor
		for range 3 {
			p := startPipeline(t, sinkFuncs{publish: to.publishCounted}, s, start, Config{WindowBytes: 150_000})
			time.Sleep(time.Minute)
			p.stopAndWait(t)
			start, _ = s.currentProgress()
		}
		if len(start.Lanes) > 10 || start.Lanes["lane3"] > 10 || start.High < 300*179 {
			t.Errorf("cursor %d %d %v", start.Low, start.High, start.Lanes)
		}
		to.setFailure(nil)
		p := startPipeline(t, sinkFuncs{publish: to.publishCounted}, s, start, Config{WindowBytes: 150_000})
		time.Sleep(time.Minute)
		s.lastOffset.Store(s.newestOffset())
		p.drainUpTo(t, s.lastOffset.Load())
		want := int(s.lastOffset.Load()) / 10
		for l, n := range to.setFailure(nil) { // the sink has checked that none came twice
			if n != want {
				t.Errorf("%s got %d changes, want %d", l, n, want)
			}
		}
	})
}

func TestManyFailingLanesAreReportedAndRecover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lanes = 1000
		s, to := newEndlessJournal(lanes, lanes), newCountingSink(t)
		to.failure = func(l sinks.Lane) error {
			if l != "lane7" {
				return errors.New("no such topic")
			}
			return nil
		}
		cfg := Config{WindowBytes: 1 << 19, Workers: 64, Retry: RetryConfig{Min: time.Second, Max: 30 * time.Second}}
		p := startPipeline(t, sinkFuncs{publish: to.publishCounted}, s, event.Cursor{}, cfg)
		time.Sleep(time.Minute)
		if got := p.Stats(); got.LanesFailing != lanes-1 || len(got.FailingLanes) != 1 || len(got.FailingLanes[0].Members) != lanes-1 || got.WindowBytes > 1<<19 {
			t.Errorf("%d lanes fail, %d are listed, the window holds %d bytes", got.LanesFailing, len(got.FailingLanes), got.WindowBytes)
		}
		got := p.Stats().ListedLanes
		if len(got) != maxListedLanes || !got[0].Failing || !got[maxListedLanes-1].Failing || !slices.IsSortedFunc(got, compareLanes) {
			t.Errorf("%d lanes are listed: %+v", len(got), got)
		}
		to.setFailure(nil)
		s.lastOffset.Store(s.newestOffset())
		p.drainUpTo(t, s.lastOffset.Load())
		for l, n := range to.setFailure(nil) {
			if n != int(s.lastOffset.Load())/lanes {
				t.Errorf("%s got %d changes of %d", l, n, s.lastOffset.Load()/lanes)
			}
		}
		if n := strings.Count(p.log.String(), "other lanes continue"); n > 3 {
			t.Errorf("%d lines for one fault", n)
		}
	})
}

func TestLanesUsedOnceLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lanes = 60_000
		s, to := newEndlessJournal(lanes, lanes), newCountingSink(t)
		s.lastOffset.Store(lanes)
		var forgotten atomic.Int64
		sink := releaseCounter{sinkFuncs{publish: to.publishCounted}, &forgotten}
		p := startPipeline(t, sink, s, event.Cursor{}, Config{Workers: 64})
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if got := p.Stats(); got.Lanes != 0 || forgotten.Load() != lanes || got.Delivered != lanes {
			t.Errorf("%d lanes are in memory, %d were released: %+v", got.Lanes, forgotten.Load(), got)
		}
		if c, _ := s.currentProgress(); len(c.Lanes) != 0 || c.Low != lanes {
			t.Errorf("the cursor names %d lanes", len(c.Lanes))
		}
		p.drainUpTo(t, lanes)
	})
}

// TestLanesThatReplacedOthersAreReleasedUnused replaces the only lane of a topic once its partitions are known, and has
// nothing more for that topic: the sink keeps nothing of its lanes, of which it may have used each to publish for the first
// one.
func TestLanesThatReplacedOthersAreReleasedUnused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s storedProgress
		to := newCountingSink(t)
		var released atomic.Int64
		sink := releasingRepartitioner{&repartitioningSink{sinkFuncs: sinkFuncs{publish: to.publishCounted}, using: 1, have: 3}, &released}
		p := startPipeline(t, sink, journalOf(changesIn("a"), &s), event.Cursor{}, Config{})
		time.Sleep(3 * laneIdleTimeout)
		if got := released.Load(); got != 3 {
			t.Errorf("%d of 3 lanes were released", got)
		}
		p.drainUpTo(t, 1)
	})
}

// releasingRepartitioner counts lanes of the last layout that are released.
type releasingRepartitioner struct {
	*repartitioningSink
	released *atomic.Int64
}

func (r releasingRepartitioner) ReleaseLanes(lanes []sinks.Lane) {
	for _, l := range lanes {
		if strings.HasSuffix(string(l), fmt.Sprint(" of ", r.have)) {
			r.released.Add(1)
		}
	}
}

// releaseCounter counts released lanes.
type releaseCounter struct {
	sinkFuncs
	forgotten *atomic.Int64
}

func (f releaseCounter) ReleaseLanes(lanes []sinks.Lane) { f.forgotten.Add(int64(len(lanes))) }

// repartitioningSink is a sink of one topic. Its lanes are "N of COUNT", by the generation of a change.
type repartitioningSink struct {
	sinkFuncs
	mu          sync.Mutex
	using, have int
	gone        bool
	reason      string
}

func (g *repartitioningSink) Lane(c *event.Change) (sinks.Lane, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return laneOfCount(int(c.Generation)%g.using, g.using), nil
}

func laneOfCount(n, count int) sinks.Lane { return sinks.Lane(fmt.Sprint(n, " of ", count)) }

func (g *repartitioningSink) ResumeLanes(lanes []sinks.Lane) {
	for _, l := range lanes {
		if _, err := fmt.Sscanf(string(l), "%d of %d", new(int), &g.using); err != nil {
			panic(err)
		}
	}
}

func (g *repartitioningSink) PendingRepartitions() []sinks.Repartition {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.using == g.have {
		return nil
	}
	r := sinks.Repartition{Reason: g.reason, Lost: g.gone}
	for n := range g.using {
		r.From = append(r.From, laneOfCount(n, g.using))
	}
	for n := range g.have {
		r.To = append(r.To, laneOfCount(n, g.have))
	}
	return []sinks.Repartition{r}
}

func (g *repartitioningSink) ApplyRepartition(sinks.Repartition) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.using = g.have
}

func (g *repartitioningSink) growTo(to int) { g.changeLayout(to, false) }

func (g *repartitioningSink) changeLayout(to int, gone bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.have, g.gone = to, gone
}

// TestLanesAreReplacedWhenAllOfThemDeliver has a topic grow while one of its partitions has no leader. The others continue,
// the dispatcher is not blocked, and objects move when the failing one recovers, also after a restart.
func TestLanesAreReplacedWhenAllOfThemDeliver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, to := newEndlessJournal(300, 1), newCountingSink(t)
		to.failure = failOnly("1 of 3", errors.New("no leader"))
		g := &repartitioningSink{sinkFuncs: sinkFuncs{publish: to.publishCounted}, using: 3, have: 3, reason: "grown"}
		p := startPipeline(t, g, s, event.Cursor{}, Config{WindowBytes: 150_000})
		time.Sleep(time.Second)
		g.growTo(6)
		time.Sleep(time.Minute)
		if got := to.setFailure(to.failure); got["0 of 3"] < 5900 || got["2 of 3"] < 5900 || got["0 of 6"] > 0 {
			t.Errorf("while one lane fails: %v", got)
		}
		p.stopAndWait(t)
		start, _ := s.currentProgress()
		g = &repartitioningSink{sinkFuncs: g.sinkFuncs, using: 6, have: 6, reason: "grown"}
		p = startPipeline(t, g, s, start, Config{WindowBytes: 150_000})
		time.Sleep(time.Minute)
		if got := to.setFailure(nil); got["0 of 3"] < 11900 || got["0 of 6"] > 0 {
			t.Errorf("after a restart: %v", got)
		}
		time.Sleep(time.Minute)
		s.lastOffset.Store(s.newestOffset())
		p.drainUpTo(t, s.lastOffset.Load())
		got, sum := to.setFailure(nil), 0
		for _, n := range got {
			sum += n
		}
		if sum != int(s.lastOffset.Load()) || got["5 of 6"] == 0 {
			t.Errorf("%d of %d changes: %v", sum, s.lastOffset.Load(), got)
		}
		// An object that moves is never in two lanes at once: each new one begins after the end of the old ones.
		p.log.wantOnce(t, "lanes replaced")
	})
}

// TestLanesWithoutAReasonAreReplacedSilently: such lanes exist until the layout of a topic is known.
func TestLanesWithoutAReasonAreReplacedSilently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, to := newEndlessJournal(300, 1), newCountingSink(t)
		p := startPipeline(t, &repartitioningSink{sinkFuncs: sinkFuncs{publish: to.publishCounted}, using: 1, have: 3}, s, event.Cursor{}, Config{})
		time.Sleep(time.Minute)
		if got := to.setFailure(nil); got["2 of 3"] == 0 || strings.Contains(p.log.String(), "replaced") {
			t.Errorf("%v in:\n%s", got, p.log)
		}
		p.stopAndWait(t)
	})
}

// TestReplacedLanesRepeatNothing replaces lanes, of which some have accepted more than others: by fewer ones while one of
// them fails, twice, with a destination that has lost all that it held, and by more ones that fail at first, so that they
// are read again from the journal.
func TestReplacedLanesRepeatNothing(t *testing.T) {
	failOf := func(count int) func(sinks.Lane) error {
		return func(lane sinks.Lane) error {
			if strings.HasSuffix(string(lane), fmt.Sprint(" of ", count)) {
				return errors.New("no leader")
			}
			return nil
		}
	}
	for name, replace := range map[string]func(g *repartitioningSink, to *countingSink, lose func()){
		"by fewer": func(g *repartitioningSink, to *countingSink, lose func()) {
			for _, count := range []int{2, 1} {
				to.setFailure(failOnly(laneOfCount(count, count+1), errors.New("no such partition")))
				time.Sleep(10 * time.Second)
				to.setFailure(failOf(count + 1))
				lose()
				g.changeLayout(count, true)
			}
		},
		"by more": func(g *repartitioningSink, to *countingSink, _ func()) {
			to.setFailure(failOf(4))
			g.growTo(4)
			time.Sleep(10 * time.Second)
			to.setFailure(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, to := newEndlessJournal(300, 1), newCountingSink(t)
				var mu sync.Mutex
				held, delivered := map[uint64]sinks.Lane{}, map[uint64]bool{}
				g := &repartitioningSink{using: 3, have: 3, reason: "replaced"}
				g.publish = func(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
					time.Sleep(time.Duration(1+lane[0]-'0') * 100 * time.Millisecond) // some are ahead of others
					n, err := to.publishCounted(ctx, lane, batch)
					mu.Lock()
					defer mu.Unlock()
					for _, m := range batch[:n] {
						if before, again := held[m.Offset]; again {
							t.Errorf("%q accepted the change at %d, which %q has", lane, m.Offset, before)
						}
						held[m.Offset], delivered[m.Offset] = lane, true
					}
					return n, err
				}
				p := startPipeline(t, g, s, event.Cursor{}, Config{WindowBytes: 150_000})
				time.Sleep(10 * time.Second)
				replace(g, to, func() {
					mu.Lock()
					defer mu.Unlock()
					clear(held)
				})
				time.Sleep(20 * time.Second)
				s.lastOffset.Store(s.newestOffset())
				p.drainUpTo(t, s.lastOffset.Load())
				if missing := int(s.lastOffset.Load()) - len(delivered); missing > 0 {
					t.Errorf("%d changes are missing", missing)
				}
			})
		})
	}
}

// TestLanesResumeWhenTheirReplacementIsWithdrawn deletes a topic, recreates it with fewer partitions, and recreates
// it as it was, all during one Publish.
func TestLanesResumeWhenTheirReplacementIsWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, to := newEndlessJournal(300, 1), newCountingSink(t)
		g := &repartitioningSink{using: 3, have: 3, reason: "grown"}
		slow := make(chan struct{})
		g.publish = func(ctx context.Context, l sinks.Lane, batch []sinks.Message) (int, error) {
			if l == "1 of 3" {
				<-slow
			}
			return to.publishCounted(ctx, l, batch)
		}
		p := startPipeline(t, g, s, event.Cursor{}, Config{WindowBytes: 15_000_000})
		time.Sleep(time.Second)
		g.changeLayout(2, true)
		time.Sleep(10 * time.Second)
		paused := to.setFailure(nil)
		time.Sleep(10 * time.Second)
		if got := to.setFailure(nil); !maps.Equal(got, paused) {
			t.Errorf("lanes that are to be replaced are served: %v, then %v", paused, got)
		}
		g.changeLayout(3, false)
		time.Sleep(10 * time.Second)
		close(slow)
		time.Sleep(10 * time.Second)
		p.stopAndWait(t)
		if got := to.setFailure(nil); got["0 of 3"] == paused["0 of 3"] || got["1 of 3"] == 0 || got["2 of 3"] == paused["2 of 3"] {
			t.Errorf("delivered while lanes were to be replaced: %v, and in the end: %v", paused, got)
		}
	})
}

// TestOversizedChangesBecomeDeadLettersHoweverManyInARow has nine of ten changes be larger than everything that the
// destination has accepted.
func TestOversizedChangesBecomeDeadLettersHoweverManyInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := changesIn(slices.Repeat([]string{"a"}, 100)...)
		for i, r := range records {
			if i%10 != 0 {
				r.Change.After = make([]byte, 1000)
			}
		}
		var s storedProgress
		p := startPipeline(t, acceptUpTo(900, &laneRecorder{}), journalOf(records, &s), event.Cursor{}, Config{})
		p.drainUpTo(t, 100)
		if _, dead := s.currentProgress(); len(dead) != 90 {
			t.Errorf("%d dead letters of 90", len(dead))
		}
	})
}

// A dead letter that cannot be published yet blocks its lane, but not the dispatcher.
func TestAWaitingDeadLetterBlocksOnlyItsLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, to := newEndlessJournal(300, 10), newCountingSink(t)
		publish := func(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
			i := slices.IndexFunc(batch, func(m sinks.Message) bool { return m.Offset == 1003 })
			if i < 0 {
				return to.publishCounted(ctx, lane, batch)
			}
			n, _ := to.publishCounted(ctx, lane, batch[:i])
			return n, &sinks.RejectedError{Reason: "never"}
		}
		var open atomic.Bool
		bury := func(context.Context, *event.Change, string) error {
			if !open.Load() {
				return errors.New("topic of dead letters: away")
			}
			return nil
		}
		withheld := func(c *event.Change) Route {
			if c.Generation == 2005 {
				c.Withheld = "not shown"
			}
			return Route{}
		}
		p := startPipeline(t, sinkFuncs{publish: publish}, s, event.Cursor{}, Config{WindowBytes: 150_000, PublishDeadLetter: bury, Route: withheld})
		time.Sleep(4 * time.Minute)
		for l, n := range to.setFailure(nil) {
			if l != "lane3" && n < 7_190 {
				t.Errorf("%s got %d changes", l, n)
			}
		}
		if got := p.Stats(); got.LanesFailing != 2 || !strings.Contains(got.Conditions()[0].Cause, "topic of dead letters: away") {
			t.Errorf("%+v", got)
		}
		open.Store(true)
		time.Sleep(time.Minute)
		s.lastOffset.Store(s.newestOffset())
		p.drainUpTo(t, s.lastOffset.Load())
		if _, dead := s.currentProgress(); len(dead) != 2 {
			t.Errorf("%d dead letters", len(dead))
		}
	})
}

func TestNoDeliveringLaneIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, to := newEndlessJournal(300, 10), newCountingSink(t)
		p := startPipeline(t, sinkFuncs{publish: to.publishCounted}, s, event.Cursor{}, Config{WindowBytes: 150_000})
		time.Sleep(time.Minute)
		to.setFailure(func(l sinks.Lane) error { return fmt.Errorf("%s: leader unknown: start its broker", l) })
		time.Sleep(time.Minute)
		if got := p.Stats(); len(got.Conditions()) != 1 || got.Condition.Severity != condition.NotReady || !strings.HasPrefix(got.Condition.Effect, "no lane delivers, 10 of 10 wait") {
			t.Errorf("not ready: %+v", got.Conditions())
		}
		to.setFailure(failOnly("lane4", errors.New("leader unknown")))
		time.Sleep(time.Minute)
		if got := p.Stats(); !got.Condition.OK() || len(got.FailingLanes) != 1 || got.Conditions()[0].Name() != "sink/test/lane4" {
			t.Errorf("%+v", got.Condition)
		}
		to.recoverAndCheck(p)
		p.stopAndWait(t)
		p.log.wantOnce(t, "other sinks continue")
		if n := strings.Count(p.log.String(), "msg=delivers"); n != 2 { // the sink, and the last lane
			t.Errorf("%d lines\n%s", n, p.log)
		}
	})
}

// TestUnavailableForOneLaneFailsOnlyThatLane has a receiver answer 503 to one lane only.
func TestUnavailableForOneLaneFailsOnlyThatLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, to := newEndlessJournal(300, 10), newCountingSink(t)
		p := startPipeline(t, sinkFuncs{publish: to.publishCounted}, s, event.Cursor{}, Config{WindowBytes: 150_000})
		time.Sleep(time.Minute)
		var tries atomic.Int64
		to.setFailure(func(l sinks.Lane) error {
			if l != "lane4" {
				return nil
			}
			tries.Add(1)
			return &sinks.UnavailableError{Reason: "the webhook answers 503", After: 5 * time.Second}
		})
		time.Sleep(20 * time.Second)
		before := to.setFailure(to.failure)
		time.Sleep(time.Minute)
		after := to.setFailure(to.failure)
		for l, n := range before {
			if took := after[l] - n; l != "lane4" && took < 1750 { // of 1,800 in that minute
				t.Errorf("%s took %d", l, took)
			}
		}
		if n := tries.Load(); n < 10 || n > 20 {
			t.Errorf("%d tries in 80 s, though it is to be left alone for five", n)
		}
		if got := p.Stats(); !got.Condition.OK() || len(got.FailingLanes) != 1 || got.Conditions()[0].Name() != "sink/test/lane4" || got.FailingLanes[0].Cause != "the webhook answers 503" {
			t.Errorf("%+v, %+v", got.Condition, got.FailingLanes)
		}
		to.recoverAndCheck(p)
		p.stopAndWait(t)
		p.log.wantOnce(t, "other lanes continue")
		if n := strings.Count(p.log.String(), "level="); n > 3 { // of the fault, and of the stop
			t.Errorf("%d lines\n%s", n, p.log)
		}
	})
}

// unreachableSink is a sinks.Pinger. Its destination is unreachable for a while.
type unreachableSink struct {
	sinkFuncs
	until time.Time
	asked atomic.Int64
}

func (a *unreachableSink) Ping(context.Context) error {
	a.asked.Add(1)
	if time.Now().Before(a.until) {
		return &sinks.UnavailableError{Reason: "no broker answers: check kafka.brokers"}
	}
	return nil
}

func TestAnIdleSinkIsPinged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := newCountingSink(t)
		sink := &unreachableSink{sinkFuncs: sinkFuncs{publish: to.publishCounted}, until: time.Now().Add(time.Minute)}
		p := New("test", sink, "", journalOf(nil, &storedProgress{}), event.Cursor{}, Config{}, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		if p.Stats().Condition.Code != condition.SinkConnecting {
			t.Error("ready before the first ping")
		}
		go func() { done <- p.Run(ctx) }()
		time.Sleep(time.Second)
		if got := p.Stats().Condition; got.Severity != condition.NotReady || got.Cause != "no broker answers: check kafka.brokers" {
			t.Errorf("not ready: %+v", got)
		}
		time.Sleep(2 * time.Minute)
		if got := p.Stats().Condition; !got.OK() {
			t.Errorf("%+v", got)
		}
		before := sink.asked.Load()
		time.Sleep(10 * time.Minute)
		if n := sink.asked.Load() - before; n != 40 {
			t.Errorf("asked %d times in ten minutes", n)
		}
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
