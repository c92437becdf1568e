package delivery

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
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

// playedAnswers gives a policy random answers of one destination, with a clock of its own and restarts in between.
type playedAnswers struct {
	policy   *rejectionPolicy
	now      time.Time
	accepted time.Time // the last acceptance; zero: none
	believed int       // rejections since then
	usual    int       // about the mean of these
}

func (p *playedAnswers) wait(d time.Duration) { p.now = p.now.Add(d) }

func (p *playedAnswers) accept() {
	p.policy.recordAcceptance("topic", p.now)
	p.usual += (p.believed - p.usual) / 4
	p.accepted, p.believed = p.now, 0
}

func (p *playedAnswers) restart() {
	stored := p.policy.encode(p.now)
	p.policy = newRejectionPolicy(p.policy.suspectAfter)
	p.policy.decode(stored)
}

// TestRejectionsAreBelievedForAsMuchAsWasAccepted over some days. Every other destination accepts nothing.
func TestRejectionsAreBelievedForAsMuchAsWasAccepted(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 1))
		p := &playedAnswers{policy: newRejectionPolicy(10 * time.Minute), now: time.Unix(1e9, 0)}
		for range 2000 {
			switch n := random.IntN(20); n {
			case 0, 1:
				p.wait(time.Duration(random.IntN(200)) * []time.Duration{time.Second, time.Minute}[n])
				if p.believed > 0 && random.IntN(2) == 0 {
					p.restart()
				}
			case 2:
				if seed%2 == 0 {
					p.accept()
				}
			}
			atMost := maxUnprovenRejections
			if p.now.Sub(p.accepted) < 10*time.Minute {
				atMost = max(maxRejections, maxUsual*p.usual)
			}
			believed, _ := p.policy.believeRejection("topic", p.now)
			if want := p.believed < atMost; believed != want {
				t.Fatalf("seed %d: %d rejections and %v after the last acceptance: believed %v", seed, p.believed, p.now.Sub(p.accepted), believed)
			}
			if believed {
				p.believed++
			}
			p.policy.removeStale(p.now)
		}
	}
}

func TestDestinationsThatAreGoneAreForgotten(t *testing.T) {
	policy, now := newRejectionPolicy(10*time.Minute), time.Unix(1e9, 0)
	for i := range 2 * maxStoredDestinations {
		policy.recordAcceptance(fmt.Sprint("accepting", i), now)
		policy.believeRejection(fmt.Sprint("rejecting", i), now)
	}
	policy.removeStale(now.Add(10 * time.Minute))
	if n := len(policy.destinations); n != 2*maxStoredDestinations {
		t.Errorf("%d destinations are remembered, want those that reject", n)
	}
	again := newRejectionPolicy(10 * time.Minute)
	again.decode(policy.encode(now))
	if n := len(again.destinations); n != maxStoredDestinations {
		t.Errorf("%d destinations are stored", n)
	}
	if policy.removeStale(now.Add(rejectionMemory)); len(policy.destinations) != 0 {
		t.Errorf("%d destinations are remembered for ever", len(policy.destinations))
	}
}

// selectiveDestination rejects a share of the changes, and records the others.
type selectiveDestination struct {
	t       *testing.T
	percent uint64
	from    uint64 // changes up to here are all accepted, or all rejected
	accepts bool   // which of the two

	mu       sync.Mutex
	accepted map[uint64]bool
	last     map[sinks.Lane]uint64
}

func (d *selectiveDestination) rejects(offset uint64) bool {
	if offset <= d.from {
		return !d.accepts
	}
	return rand.New(rand.NewPCG(offset, 1)).Uint64()%100 < d.percent
}

func (d *selectiveDestination) publish(_ context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	time.Sleep(time.Millisecond)
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, m := range batch {
		if d.rejects(m.Offset) {
			return i, &sinks.RejectedError{Reason: "422 Unprocessable Entity"}
		}
		if m.Offset <= d.last[lane] && !d.accepted[m.Offset] { // I3
			d.t.Errorf("lane %s: %d after %d", lane, m.Offset, d.last[lane])
		}
		d.accepted[m.Offset] = true
		d.last[lane] = max(d.last[lane], m.Offset)
	}
	return len(batch), nil
}

// TestWhatIsAcceptableArrivesWhateverShareIsRejected has a destination reject a share of 2,000 changes, and the exporter
// restarted twice. One kind of sink may look ahead, and begins with a hundred rejections. The other stores state: its
// destination begins to reject under load, as a topic does whose limit was lowered.
func TestWhatIsAcceptableArrivesWhateverShareIsRejected(t *testing.T) {
	for _, stateful := range []bool{false, true} {
		for _, percent := range []uint64{1, 20, 60, 90, 99} {
			for _, lanes := range []int{1, 16, 300} {
				t.Run(fmt.Sprintf("stateful=%v/percent=%d/lanes=%d", stateful, percent, lanes), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						to := newSelectiveDestination(t, percent, 100)
						to.accepts = stateful
						deliverShare(t, to, stateful, lanes, Config{})
					})
				})
			}
		}
	}
}

// TestANewDestinationThatRejectsMuchGetsTheRest has one lane, of which the first acceptable change is far behind what one
// batch holds, and a destination that has accepted nothing before. One kind of sink may look ahead, for the other one the
// destination announces what it accepts.
func TestANewDestinationThatRejectsMuchGetsTheRest(t *testing.T) {
	for _, stateful := range []bool{false, true} {
		t.Run(fmt.Sprintf("stateful=%v", stateful), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				deliverShare(t, newSelectiveDestination(t, 99, 1500), stateful, 1, Config{BatchMessages: 10})
			})
		})
	}
}

func newSelectiveDestination(t *testing.T, percent, from uint64) *selectiveDestination {
	return &selectiveDestination{t: t, percent: percent, from: from, accepted: map[uint64]bool{}, last: map[sinks.Lane]uint64{}}
}

// announcingSink is a statefulSink of a destination that announces what it accepts.
type announcingSink struct {
	*statefulSink
	check func(sinks.Message) error
}

func (s announcingSink) SizeLimit(context.Context, sinks.Lane) (func(sinks.Message) error, error) {
	return s.check, nil
}

func deliverShare(t *testing.T, to *selectiveDestination, stateful bool, lanes int, config Config) {
	const end = 2000
	var sink sinks.Sink = singleDestination{sinkFuncs{publish: to.publish}}
	if stateful {
		sink = announcingSink{
			&statefulSink{sinkFuncs: sinkFuncs{publish: to.publish, destination: "topic"}},
			func(m sinks.Message) error {
				if to.rejects(m.Offset) {
					return &sinks.RejectedError{Reason: "announced", TooLarge: true}
				}
				return nil
			},
		}
	}
	s := newEndlessJournal(1000, lanes)
	for range 2 {
		start, _ := s.currentProgress()
		p := startPipeline(t, sink, s, start, config)
		time.Sleep(700 * time.Millisecond)
		p.stopAndWait(t)
	}
	start, _ := s.currentProgress()
	p := startPipeline(t, sink, s, start, config)
	s.lastOffset.Store(end)
	p.Drain(end)
	select {
	case err := <-p.done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatalf("not delivered after a minute: %+v", p.Stats())
	}
	dead := map[uint64]bool{}
	_, letters := s.currentProgress()
	for _, l := range letters {
		dead[l.Offset] = true
	}
	for offset := uint64(1); offset <= end; offset++ {
		if to.rejects(offset) != dead[offset] || to.rejects(offset) == to.accepted[offset] {
			t.Errorf("%d: rejected %v, dead letter %v, accepted %v", offset, to.rejects(offset), dead[offset], to.accepted[offset])
		}
	}
}

// TestADestinationThatBeginsToRejectEverythingHasAHundredDeadLetters has one accept all changes until a
// moment, with any number of lanes, then none, and then all again.
func TestADestinationThatBeginsToRejectEverythingHasAHundredDeadLetters(t *testing.T) {
	for _, stateful := range []bool{false, true} {
		for _, lanes := range []int{1, 16, 300} {
			synctest.Test(t, func(t *testing.T) {
				s := newEndlessJournal(1000, lanes)
				var rejects atomic.Bool
				publish := func(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
					time.Sleep(5 * time.Millisecond)
					if rejects.Load() {
						return 0, &sinks.RejectedError{Reason: "400 Bad Request"}
					}
					return len(batch), nil
				}
				var sink sinks.Sink = singleDestination{sinkFuncs{publish: publish}}
				if stateful {
					sink = &statefulSink{sinkFuncs: sinkFuncs{publish: publish, destination: "topic"}}
				}
				p := startPipeline(t, sink, s, event.Cursor{}, Config{Retry: RetryConfig{Min: 100 * time.Millisecond, Max: 30 * time.Second}})
				time.Sleep(10 * time.Second)
				rejects.Store(true)
				time.Sleep(15 * time.Second)
				if c := p.Stats().Condition; c.Code != condition.SinkRejectsAll || c.Severity != condition.NotReady ||
					!strings.Contains(c.Cause, "400 Bad Request") {
					t.Errorf("stateful %v, %d lanes: after 15 s %+v", stateful, lanes, c)
				}
				time.Sleep(2 * time.Minute)
				rejects.Store(false)
				s.lastOffset.Store(s.newestOffset())
				p.drainUpTo(t, s.lastOffset.Load())
				if _, dead := s.currentProgress(); len(dead) > maxRejections {
					t.Errorf("stateful %v, %d lanes: %d dead letters", stateful, lanes, len(dead))
				}
				if n := p.log.CountOf("SinkRejectsAll"); n > 4 {
					t.Errorf("%d lines:\n%s", n, p.log)
				}
			})
		}
	}
}

// TestWhatIsKnownToBeTooLargeIsNeverPublished has every third change exceed an announced limit. Once that is known, such a
// change is no part of a Publish, and is a stored dead letter before one behind it is. A pipeline that starts at an
// older cursor, as after a crash, does not publish it either, though the limit was raised since.
func TestWhatIsKnownToBeTooLargeIsNeverPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const end = 99
		raised := false
		check := func(m sinks.Message) error {
			if m.Offset%3 != 0 || raised {
				return nil
			}
			return &sinks.RejectedError{Reason: "too large", TooLarge: true}
		}
		var s storedProgress
		letters := func(after uint64) (offsets []uint64, _ error) {
			_, dead := s.currentProgress()
			for _, d := range dead {
				if d.Offset > after {
					offsets = append(offsets, d.Offset)
				}
			}
			return offsets, nil
		}
		var accepted []uint64
		rejections := 0
		publish := func(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
			durable, _ := letters(0)
			for i, m := range batch {
				if err := check(m); err != nil {
					rejections++
					return i, err
				}
				for before := m.Offset - 1; before > 0 && before%3 == 0; before-- {
					if !raised && !slices.Contains(durable, before) {
						t.Errorf("%d is published before the dead letter %d is stored", m.Offset, before)
					}
				}
				accepted = append(accepted, m.Offset)
			}
			return len(batch), nil
		}
		sink := announcingSink{&statefulSink{sinkFuncs: sinkFuncs{publish: publish}}, check}
		journal := journalOf(changesIn(slices.Repeat([]string{"a"}, end)...), &s)
		startPipeline(t, sink, journal, event.Cursor{}, Config{DeadLetters: letters}).drainUpTo(t, end)
		if dead, _ := letters(0); rejections > 1 || len(dead) != end/3 || len(accepted) != end-end/3 {
			t.Errorf("%d rejections by the destination, %d dead letters, %d accepted", rejections, len(dead), len(accepted))
		}
		first := slices.Clone(accepted)
		raised, accepted = true, nil
		startPipeline(t, sink, journal, event.Cursor{}, Config{DeadLetters: letters}).drainUpTo(t, end)
		if !slices.Equal(accepted, first) {
			t.Errorf("after a restart %v, want %v", accepted, first)
		}
	})
}
