package app

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// watermarkSeries returns the series of watermarks that the sinks ask for. Sinks with the same interval share one.
func watermarkSeries(all []config.Sink) (series []source.WatermarkSeries) {
	byInterval := map[time.Duration][]string{}
	for _, s := range all {
		if s.Watermarks > 0 {
			byInterval[s.Watermarks] = append(byInterval[s.Watermarks], s.Name)
		}
	}
	for _, every := range slices.Sorted(maps.Keys(byInterval)) {
		series = append(series, source.WatermarkSeries{Every: every, Sinks: byInterval[every]})
	}
	return series
}

// watermarkAges is how old the newest watermark of each scope is that a sink has in every lane. Safe for concurrent use.
type watermarkAges struct {
	mu     sync.Mutex
	scopes map[watermarkScope]*laneAges
}

// watermarkScope is a resource, or one namespace of it.
type watermarkScope struct{ resource, namespace string }

// laneAges has the time of the newest watermark of each lane, zero for none.
type laneAges struct {
	lanes    []time.Time
	complete time.Time // of the newest watermark that every lane has, or a newer one
}

// observe records a change that a destination has acknowledged.
func (w *watermarkAges) observe(c *event.Change) {
	if c.Type != event.Watermark {
		return
	}
	lane, lanes := c.Watermark.Lane, max(1, c.Watermark.Lanes) // a waiting lane has delivered it everywhere
	scope := watermarkScope{c.Resource.String(), c.Namespace}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.scopes == nil {
		w.scopes = map[watermarkScope]*laneAges{}
	}
	a := w.scopes[scope]
	if a == nil {
		a = &laneAges{}
		w.scopes[scope] = a
	}
	if len(a.lanes) != lanes {
		a.lanes = make([]time.Time, lanes)
	}
	a.lanes[lane] = c.ObservedAt
	if oldest := slices.MinFunc(a.lanes, time.Time.Compare); oldest.After(a.complete) {
		a.complete = oldest
	}
}

// completeSince returns the time of the newest watermark of a scope that every lane has; zero if there is none.
func (w *watermarkAges) completeSince(scope watermarkScope) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a := w.scopes[scope]; a != nil {
		return a.complete
	}
	return time.Time{}
}
