package attribution

import (
	"slices"
	"time"
)

const (
	maxLagSources  = 256 // API servers and logs; each connection counts as an API server
	lagDeliveries  = 16  // newest deliveries of a source that its lag is measured over
	clockOffsets   = 8   // newest comparisons of the clocks
	lagRepeatShare = 2   // a lag is expected again for this many times its length
)

// sourceLag measures how late audit events arrive: from the end of a request until its event is here. A claim that waits
// for contradicting ones has to wait for longer than that. The clock of an API server may differ from ours, so it is
// compared where a request certainly made a change that we observed. Until then the clocks count as equal, which makes the
// lag too long if the API server's clock is behind; if it is ahead, requests count as too late anyway.
type sourceLag struct {
	bySource  recentMap[*originLag]
	startedAt time.Time // events that waited for the start of this process are late since then only
	remember  time.Duration
	arrivals  int // since the start
}

// originLag is the lag of one source.
type originLag struct {
	deliveries []delivery    // at most lagDeliveries, oldest first
	longest    delivery      // an older one that is expected again
	stored     time.Duration // by an earlier process, which has compared the clocks
	offsets    []time.Duration
}

// delivery is the arrival of events at one time.
type delivery struct {
	delay time.Duration // by two clocks: ours at the arrival, and the API server's at the end of the request
	at    time.Time
}

func newSourceLag(remember time.Duration) sourceLag {
	return sourceLag{bySource: newRecentMap[*originLag](maxLagSources), remember: remember}
}

// recordArrival records the arrival of the event of a request, and returns by how much it was late.
func (s *sourceLag) recordArrival(r *Request) time.Duration {
	if r.Done == 0 || r.Arrived.IsZero() {
		return 0
	}
	d := delivery{r.Arrived.Sub(r.Done.Time()), r.Arrived}
	o := s.source(r.Origin)
	o.addDelivery(d)
	s.arrivals++
	return o.lagOf(d, s.startedAt)
}

// recordStored records a lag that an earlier process measured.
func (s *sourceLag) recordStored(origin string, lag time.Duration) {
	o := s.source(origin)
	o.stored = max(o.stored, lag)
}

func (s *sourceLag) source(origin string) *originLag {
	o, found := s.bySource.get(origin)
	if !found {
		o = &originLag{}
	}
	s.bySource.putNewest(origin, o)
	return o
}

// compareClocks records when a change was observed and when the request that made it had ended.
func (s *sourceLag) compareClocks(by *Request, observed time.Time) {
	o, found := s.bySource.get(by.Origin)
	if !found || by.Done == 0 || observed.IsZero() {
		return
	}
	if o.offsets = append(o.offsets, observed.Sub(by.Done.Time())); len(o.offsets) > clockOffsets {
		o.offsets = slices.Delete(o.offsets, 0, 1)
	}
}

// current returns the longest lag of all sources.
func (s *sourceLag) current(now time.Time) (lag time.Duration) {
	for _, e := range s.bySource.all {
		o := e.Value.(recentEntry[*originLag]).value
		for _, d := range o.deliveries {
			if l := o.lagOf(d, s.startedAt); now.Sub(d.at) <= max(s.remember, lagRepeatShare*l) {
				lag = max(lag, l)
			}
		}
		if l := o.lagOf(o.longest, s.startedAt); now.Sub(o.longest.at) <= lagRepeatShare*l {
			lag = max(lag, l)
		}
		if age := now.Sub(s.startedAt); age <= lagRepeatShare*o.stored || age <= s.remember && s.arrivals < lagDeliveries {
			lag = max(lag, o.stored)
		}
	}
	return lag
}

// addDelivery adds a delivery. Events that arrive together are one.
func (o *originLag) addDelivery(d delivery) {
	if n := len(o.deliveries); n > 0 && o.deliveries[n-1].at.Equal(d.at) {
		o.deliveries[n-1].delay = max(o.deliveries[n-1].delay, d.delay)
		return
	}
	if o.deliveries = append(o.deliveries, d); len(o.deliveries) <= lagDeliveries {
		return
	}
	oldest := o.deliveries[0]
	o.deliveries = slices.Delete(o.deliveries, 0, 1)
	if oldest.delay >= o.longest.delay || d.at.Sub(o.longest.at) > lagRepeatShare*o.longest.delay {
		o.longest = oldest
	}
}

// lagOf returns the lag of a delivery by our clock.
func (o *originLag) lagOf(d delivery, startedAt time.Time) time.Duration {
	lag := d.delay
	if len(o.offsets) > 0 {
		lag -= slices.Min(o.offsets)
	}
	return max(0, min(lag, d.at.Sub(startedAt)))
}
