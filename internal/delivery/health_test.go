package delivery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// TestAnOutageIsSteadyUntilSomethingIsAcknowledged has a destination stop to accept anything, for causes that alternate,
// with lanes of which each gets a change now and then, and with pings that succeed.
func TestAnOutageIsSteadyUntilSomethingIsAcknowledged(t *testing.T) {
	failures := map[string]func(n int64) error{
		"each publish is refused": func(int64) error { return errors.New("no right to publish") },
		"closed and hanging": func(n int64) error {
			if n%2 == 0 {
				return &sinks.UnavailableError{Code: condition.SinkUnreachable, Reason: "connection refused"}
			}
			return &sinks.UnavailableError{Code: condition.SinkTimeout, Reason: "no response within a second"}
		},
		"answers 500": func(int64) error { return errors.New("500 Internal Server Error") },
	}
	for name, failure := range failures {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, to := newEndlessJournal(20, 100), newCountingSink(t)
				var fails, pings atomic.Bool
				var tries atomic.Int64
				to.failure = func(sinks.Lane) error {
					if fails.Load() {
						return failure(tries.Add(1))
					}
					return nil
				}
				sink := pingedSink{sinkFuncs{publish: to.publishCounted}, func(context.Context) error { pings.Store(true); return nil }}
				p := startPipeline(t, sink, s, event.Cursor{}, Config{Retry: RetryConfig{Min: 100 * time.Millisecond, Max: time.Minute}})
				time.Sleep(time.Minute)
				if c := p.Stats().Conditions(); len(c) != 1 || !c[0].OK() {
					t.Fatalf("before the fault: %+v", c)
				}
				began := time.Now()
				fails.Store(true)
				time.Sleep(10500 * time.Millisecond)
				first := p.Stats().Condition
				if first.Severity != condition.NotReady || first.Since.Sub(began).Abs() > time.Second {
					t.Fatalf("after ten seconds without an acknowledgement: %+v", first)
				}
				seen := map[condition.Code]int{}
				last, changes := first.Code, 0
				for time.Since(began) < 6*time.Minute {
					time.Sleep(time.Second)
					c := p.Stats().Condition
					if c.Severity != condition.NotReady || !c.Since.Equal(first.Since) {
						t.Fatalf("after %v: %+v", time.Since(began), c)
					}
					if c.Code != last {
						last, changes = c.Code, changes+1
					}
					seen[c.Code]++
				}
				if changes > 1 || !pings.Load() {
					t.Errorf("the code changed %d times: %v; pinged: %v", changes, seen, pings.Load())
				}
				lines := p.log.CountOf("level=")
				fails.Store(false)
				s.lastOffset.Store(s.newestOffset())
				p.drainUpTo(t, s.lastOffset.Load())
				if c := p.Stats().Conditions(); len(c) != 1 || !c[0].OK() {
					t.Errorf("in the end: %+v", c)
				}
				if lines > 3 || p.log.CountOf("msg=delivers") != 1 {
					t.Errorf("%d lines for one fault:\n%s", lines, p.log)
				}
			})
		})
	}
}

// TestAFaultOfSomeLanesIsOneConditionWithTheirPattern has the lanes of one namespace fail, each for a reason with its name.
func TestAFaultOfSomeLanesIsOneConditionWithTheirPattern(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, to := newEndlessJournal(100, 50), newCountingSink(t)
		laneOf := func(c *event.Change) (sinks.Lane, error) {
			var n int
			_, err := fmt.Sscanf(c.Namespace, "lane%d", &n)
			return sinks.Lane(fmt.Sprintf("k8s.%c.pods.%d", 'a'+n%2, n)), err
		}
		to.failure = func(l sinks.Lane) error {
			if strings.HasPrefix(string(l), "k8s.b.") {
				return condition.Problem{Code: condition.SinkUnauthorized, Cause: "may not publish to " + string(l)}.Wrap(nil)
			}
			return nil
		}
		p := startPipeline(t, sinkFuncs{lane: laneOf, publish: to.publishCounted}, s, event.Cursor{}, Config{})
		time.Sleep(30 * time.Second)
		for range 300 {
			time.Sleep(time.Second)
			c := p.Stats().Conditions()
			if len(c) != 1 || c[0].Severity != condition.Degraded || len(c[0].Members) != 25 {
				t.Fatalf("%d conditions: %+v", len(c), c)
			}
			if want := "25 of 50 (k8s.b.pods.*: k8s.b.pods."; !strings.HasPrefix(strings.Replace(c[0].CauseText(), ".>:", ".*:", 1), want) {
				t.Fatalf("%q does not begin with %q", c[0].CauseText(), want)
			}
		}
		to.recoverAndCheck(p)
		p.stopAndWait(t)
		if n := p.log.CountOf("level="); n > 4 { // the start, both ends of the fault, and the stop
			t.Errorf("%d lines:\n%s", n, p.log)
		}
	})
}
