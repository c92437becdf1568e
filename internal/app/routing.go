package app

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// routing applies the configured routes to changes. It is safe for concurrent use.
type routing struct {
	router *shape.Router // nil without routes
	id     string        // fingerprint of the routes and of the redaction that their filters depend on; "" without routes
	topics map[string]*sinks.Template
}

func newRouting(cfg *config.Config) (*routing, error) {
	r := &routing{topics: map[string]*sinks.Template{}}
	if len(cfg.Routes) == 0 {
		return r, nil
	}
	var names []string
	for _, s := range cfg.Sinks {
		names = append(names, s.Name)
	}
	var routes []shape.Route
	for i, c := range cfg.Routes {
		to, err := r.topicsBySink(c.To)
		if err != nil {
			return nil, fmt.Errorf("routes[%d].to: %w", i, err)
		}
		selection := c.Selection()
		routes = append(routes, shape.Route{
			MatchResource: selection.Matcher(), MatchNamespace: selection.Namespaces.Filter(),
			Types: c.Types, Classes: c.Classes, Filter: c.Filter, Topics: to,
		})
	}
	var err error
	if r.router, err = shape.NewRouter(routes, names); err != nil {
		return nil, err
	}
	text, err := json.Marshal(cfg.Routes)
	if err != nil {
		return nil, fmt.Errorf("routes: %w", err)
	}
	if slices.ContainsFunc(cfg.Routes, func(c config.Route) bool { return c.Filter != "" }) {
		text = append(text, redactionFingerprint(cfg)...) // filters are evaluated on redacted objects
	}
	sum := sha256.Sum256(text)
	r.id = " routes " + hex.EncodeToString(sum[:8])
	return r, nil
}

// setRoutedTopics sets the topics that messages to the sinks of NATS may name in addition to their own.
func setRoutedTopics(cfg *config.Config) {
	for _, s := range cfg.Sinks {
		if s.NATS != nil {
			s.NATS.Routed = cfg.RoutedTopics(s.Name)
		}
	}
}

func (r *routing) topicsBySink(targets []config.Target) (map[string]string, error) {
	to := map[string]string{}
	for _, t := range targets {
		to[t.Sink] = t.Topic
		if t.Topic == "" {
			continue
		}
		var err error
		if r.topics[t.Topic], err = sinks.ParseTemplate(t.Topic); err != nil {
			return nil, err
		}
	}
	return to, nil
}

func (r *routing) routeStats() []shape.RouteStats {
	if r.router == nil {
		return nil
	}
	return r.router.Stats()
}

// routeFor returns the routing of one sink; nil sends every change to the sink's own topic.
func (r *routing) routeFor(sink string) func(*event.Change) delivery.Route {
	if r.router == nil {
		return nil
	}
	return func(c *event.Change) delivery.Route {
		if c.Type == event.Watermark {
			topic, yes, whole := r.router.WatermarkTopic(sink, c)
			return delivery.Route{Skip: !yes, Topic: r.topics[topic], Partial: !whole}
		}
		topic, yes := r.router.TopicFor(sink, c)
		return delivery.Route{Skip: !yes, Topic: r.topics[topic]}
	}
}

// WatermarkTopics returns a function that returns where the watermarks of a scope go in a sink, for a change that names the
// scope. topic is the template of a route; nil is the sink's own. delivered is false if the sink gets none of its changes,
// or gets them in several topics; whole is false if it does not get all of them.
func WatermarkTopics(cfg *config.Config, sink string) (func(c *event.Change) (topic *sinks.Template, delivered, whole bool), error) {
	routes, err := newRouting(cfg)
	if err != nil {
		return nil, err
	}
	if routes.router == nil {
		return func(*event.Change) (*sinks.Template, bool, bool) { return nil, true, true }, nil
	}
	return func(c *event.Change) (*sinks.Template, bool, bool) {
		topic, delivered, whole := routes.router.WatermarkTopic(sink, c)
		return routes.topics[topic], delivered, whole
	}, nil
}

// skipUnwanted skips the changes that the format of a sink, or the state that its bucket keeps, cannot represent, control
// records if it gets rows only, and first lists if it gets changes only.
func skipUnwanted(s config.Sink, route func(*event.Change) delivery.Route) func(*event.Change) delivery.Route {
	f, err := s.ParseFormat()
	if err != nil { // not reached: the sink was made with this format
		return route
	}
	rows := s.NATS != nil && s.NATS.KeepsRows()
	changesOnly := s.Start == config.StartNow
	return func(c *event.Change) delivery.Route {
		switch {
		case changesOnly && isFirstList(c), c.Type == event.Watermark && !slices.Contains(c.Watermark.Sinks, s.Name),
			!f.CanRepresent(c), rows && c.Type.IsBeside(), s.RowsOnly && c.Type.IsControl():
			return delivery.Route{Skip: true}
		case route == nil:
			return delivery.Route{Partial: changesOnly}
		}
		to := route(c)
		to.Partial = to.Partial || changesOnly
		return to
	}
}

// isFirstList reports whether a record is of what exists, in a snapshot for all sinks.
func isFirstList(c *event.Change) bool {
	if c.Snapshot == nil || c.OnlySink != "" {
		return false
	}
	return c.Type == event.Snapshot || c.Type.FramesSnapshot()
}

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
