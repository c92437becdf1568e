package attribution

import (
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// lagWorld is a source of audit events with a clock that is off, before a matcher.
type lagWorld struct {
	*Matcher
	n   uint64
	off time.Duration // of the API server's clock: ahead of ours if positive
	lag time.Duration
}

func newLagWorld(off, lag time.Duration) *lagWorld {
	return &lagWorld{Matcher: NewMatcher(Limits{Settle: 5 * time.Second, Window: time.Minute, Bytes: 1 << 20}), off: off, lag: lag}
}

// write adds a change at a time and the event of its request, whose answer proves it alone if conclusive.
func (w *lagWorld) write(at time.Time, conclusive bool) {
	w.n++
	version := string(rune('0' + w.n))
	w.AddChange(Change{Offset: w.n, Type: event.Updated, Resource: event.Resource{Resource: "configmaps"}, UID: "a", Version: version, Observed: at})
	r := &Request{Event: audit.Event{
		ID: version, Stage: "ResponseComplete", Verb: "patch", Replaces: "0", Code: 200, Outcome: audit.Stored, User: "ann", Resource: "configmaps",
		Received: audit.Time(at.Add(w.off - 2*time.Millisecond).UnixNano()), Done: audit.Time(at.Add(w.off).UnixNano()),
		Answer: audit.Object{UID: "a", ResourceVersion: version},
	}, Origin: "api", Arrived: at.Add(w.lag)}
	if conclusive {
		r.Verb, r.ResourceVersion = "update", "9999"
	}
	w.AddRequest(r)
}

// TestClockOffsetIsNoLag compares the clocks where a request certainly made an observed change.
func TestClockOffsetIsNoLag(t *testing.T) {
	for _, off := range []time.Duration{-time.Hour, -10 * time.Second, 0, time.Millisecond} {
		for _, lag := range []time.Duration{time.Second, 30 * time.Second} {
			w := newLagWorld(off, lag)
			w.write(testTime(0), true)
			w.Resolve(testTime(0).Add(lag))
			w.write(testTime(1000), false)
			now := testTime(1000).Add(max(lag, 6*time.Second))
			w.Resolve(now)
			if got := w.SourceLag(now).Round(100 * time.Millisecond); got != lag {
				t.Errorf("the clock is off by %v and events are %v late: measured %v", off, lag, got)
			}
			named := 0
			for _, r := range w.TakeFindings().Resolved {
				if r.By != nil {
					named++
				}
			}
			if want := map[bool]int{true: 2, false: 1}[lag < 5*time.Second]; named != want {
				t.Errorf("the clock is off by %v and events are %v late: %d named, expected %d", off, lag, named, want)
			}
		}
	}
}

func TestLagIsForgottenAfterTimelyDeliveries(t *testing.T) {
	w := newLagWorld(0, 20*time.Second)
	w.write(testTime(0), true)
	at := testTime(20_000)
	w.Resolve(at)
	for i := range lagDeliveries + 1 {
		if got := w.SourceLag(at); got != 20*time.Second {
			t.Fatalf("after %d deliveries in time: %v", i, got)
		}
		at = at.Add(time.Second)
		w.Matcher.lag.recordArrival(&Request{Event: audit.Event{Done: audit.Time(at.UnixNano())}, Origin: "api", Arrived: at.Add(time.Second)})
	}
	if got := w.SourceLag(testTime(61_000)); got != time.Second {
		t.Errorf("later: %v", got)
	}
}
