package shape

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape/filter"
)

// Route directs changes to sinks. Only the first route that matches a change applies to it.
type Route struct {
	MatchResource  func(event.Resource) bool // required
	MatchNamespace func(string) bool         // nil matches all
	Types          []string                  // event.Type; empty matches all
	Classes        []string                  // event.Class; empty matches all, also changes without a class
	Filter         string                    // over object and change; "" matches all
	Topics         map[string]string         // topic by sink name; "" is the sink's own topic. An empty map drops the change
}

// ValidateFilter returns the error of a route's filter, for display.
func ValidateFilter(expression string) error {
	_, err := filter.Compile(expression, false)
	return err
}

// leavesToLater reports how much of the resource of a control record the route leaves to later routes: all of it, or some. A
// control record of a resource that is watched per namespace has a namespace.
func (r Route) leavesToLater(c *event.Change) (all, some bool) {
	all = !r.MatchResource(c.Resource) || r.MatchNamespace != nil && c.Namespace != "" && !r.MatchNamespace(c.Namespace)
	some = all || r.MatchNamespace != nil && c.Namespace == "" || len(r.Types)+len(r.Classes) > 0 || r.Filter != ""
	return all, some
}

// Router decides where changes go. Safe for concurrent use. Decisions depend only on the routes and the change, so they are
// the same after a restart.
type Router struct {
	routes []*compiledRoute
	sinks  map[string]int // index in compiledRoute.decided
}

type compiledRoute struct {
	Route
	filter *filter.Filter

	decided  []atomic.Uint64 // by sink
	failures filterFailures
}

// NewRouter returns a router for valid routes and the names of all sinks.
func NewRouter(routes []Route, sinks []string) (*Router, error) {
	r := &Router{sinks: map[string]int{}}
	for i, name := range sinks {
		r.sinks[name] = i
	}
	for i, given := range routes {
		compiled := &compiledRoute{Route: given, decided: make([]atomic.Uint64, len(sinks))}
		if given.Filter != "" {
			var err error
			if compiled.filter, err = filter.Compile(given.Filter, false); err != nil {
				return nil, fmt.Errorf("routes[%d].filter: %w", i, err)
			}
		}
		r.routes = append(r.routes, compiled)
	}
	return r, nil
}

// TopicFor reports whether a change goes to a sink, which must be one of those given to [NewRouter], and to which topic; ""
// is the sink's own. A change goes to every sink if no route matches it or a filter fails, so that an error loses nothing.
func (r *Router) TopicFor(sink string, c *event.Change) (topic string, yes bool) {
	decides := r.firstMatch(c)
	if c.Type.IsControl() {
		decides = r.routeForControl(sink, c)
	}
	if decides == nil {
		return "", true
	}
	decides.decided[r.sinks[sink]].Add(1)
	topic, yes = decides.Topics[sink]
	return topic, yes
}

// firstMatch returns the first route that matches a change; nil if there is none or a filter fails.
func (r *Router) firstMatch(c *event.Change) *compiledRoute {
	if c.Type.IsControl() {
		return nil
	}
	if c.Type == event.Replayed { // it goes where the record has gone
		original := *c
		original.Type = c.OriginalType()
		c = &original
	}
	for _, to := range r.routes {
		matches, err := to.matchesChange(c)
		if err != nil {
			to.failures.recordFailure(err)
			return nil
		}
		if matches {
			return to
		}
	}
	return nil
}

// routeForControl returns the route of a control record. The record goes once to each sink that may get changes of its
// resource: by the route of the changes that no narrower route matches, otherwise by the first route to this sink.
func (r *Router) routeForControl(sink string, c *event.Change) *compiledRoute {
	var narrow *compiledRoute
	for _, to := range r.routes {
		all, some := to.leavesToLater(c)
		_, yes := to.Topics[sink]
		switch {
		case all:
		case !some && !yes && narrow != nil:
			return narrow
		case !some:
			return to
		case yes && narrow == nil:
			narrow = to
		}
	}
	return nil
}

// WatermarkTopic returns where a watermark goes that is for this sink: to the topic that has all changes of its scope that
// the sink gets. yes is false if the sink gets none of them, or if they are spread over several topics. whole is false if
// some changes do not go to this sink.
func (r *Router) WatermarkTopic(sink string, c *event.Change) (topic string, yes, whole bool) {
	whole = true
	spread := false
	use := func(to string, gets bool) {
		switch {
		case !gets:
			whole = false
		case !yes:
			topic, yes = to, true
		case to != topic:
			spread = true
		}
	}
	for _, route := range r.routes {
		all, some := route.leavesToLater(c)
		if all {
			continue
		}
		to, gets := route.Topics[sink]
		use(to, gets)
		if route.filter != nil { // a change goes to every sink if a filter fails
			use("", true)
		}
		if !some {
			return topic, yes && !spread, whole
		}
	}
	use("", true)
	return topic, yes && !spread, whole
}

func (r *compiledRoute) matchesChange(c *event.Change) (bool, error) {
	switch {
	case !r.MatchResource(c.Resource),
		r.MatchNamespace != nil && !r.MatchNamespace(c.Namespace),
		len(r.Types) > 0 && !slices.Contains(r.Types, string(c.Type)),
		len(r.Classes) > 0 && !slices.Contains(r.Classes, string(c.Class)):
		return false, nil
	case r.filter == nil:
		return true, nil
	}
	return r.filter.Matches(c, nil)
}

// RouteStats counts decisions of one route since the start of the process. Each sink decides separately, so a change counts
// once per sink, and again if it is read again after a restart.
type RouteStats struct {
	Name    string            `label:"route"` // its place in the configuration: "routes[0]"
	Sent    map[string]uint64 `metric:"kubecdc_route_sent_total" by:"sink" help:"Changes that a route sends to a sink."`
	Dropped map[string]uint64 `metric:"kubecdc_route_dropped_total" by:"sink" help:"Changes that a route keeps from a sink."`
	Failed  uint64            `metric:"kubecdc_route_filter_errors_total" help:"Evaluations of the route's filter that failed or were cut off, one for each sink; the change went to the sink's own topic."`
	Failure string            // the last error; "" for none
}

// Stats returns the counts of all routes, in order.
func (r *Router) Stats() []RouteStats {
	all := make([]RouteStats, len(r.routes))
	for i, to := range r.routes {
		s := RouteStats{Name: fmt.Sprintf("routes[%d]", i), Sent: map[string]uint64{}, Dropped: map[string]uint64{}}
		for sink, j := range r.sinks {
			counts := s.Dropped
			if _, yes := to.Topics[sink]; yes {
				counts = s.Sent
			}
			counts[sink] = to.decided[j].Load()
		}
		s.Failed, s.Failure = to.failures.lastFailure()
		all[i] = s
	}
	return all
}
