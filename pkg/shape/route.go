package shape

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape/filter"
)

// Route sends changes to sinks. Of several the first that matches a change decides alone.
type Route struct {
	MatchResource  func(event.Resource) bool // required
	MatchNamespace func(string) bool         // nil takes all
	Types          []string                  // event.Type; empty takes all
	Classes        []string                  // event.Class; empty takes all, and what has none
	Filter         string                    // over object and change; "" takes all
	Topics         map[string]string         // topic by name of the sink; "" is the sink's own. Empty drops the change
}

// ValidateFilter reports what is wrong with the filter of a route, for people.
func ValidateFilter(expression string) error {
	_, err := filter.Compile(expression, false)
	return err
}

// leavesToLater says what of the resource that a control record speaks of the route leaves to later ones: everything, or some. A
// record of a resource that is watched by namespaces names one.
func (r Route) leavesToLater(c *event.Change) (all, some bool) {
	all = !r.MatchResource(c.Resource) || r.MatchNamespace != nil && c.Namespace != "" && !r.MatchNamespace(c.Namespace)
	some = all || r.MatchNamespace != nil && c.Namespace == "" || len(r.Types)+len(r.Classes) > 0 || r.Filter != ""
	return all, some
}

// Router decides where changes go. It is safe for concurrent use. What it decides follows from the routes and the change
// alone, so that it is the same after every restart.
type Router struct {
	routes []*compiledRoute
	sinks  map[string]int // index of the counts of each
}

type compiledRoute struct {
	Route
	filter *filter.Filter

	decided  []atomic.Uint64 // by sink
	failures filterFailures
}

// NewRouter returns a router for routes that are valid, and for all sinks there are.
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

// TopicFor says whether a change goes to a sink, one of those given to [NewRouter], and to which topic there; "" is the sink's
// own. What no route matches goes to every sink, and so does what a filter fails on: nothing is lost by a mistake.
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

// firstMatch returns the first route that matches a change, nil if there is none or if that cannot be told.
func (r *Router) firstMatch(c *event.Change) *compiledRoute {
	if c.Type.IsControl() {
		return nil
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

// routeForControl returns the route of a record that speaks of a whole resource. It goes to every sink that may get changes of
// it, once: to where those go that no narrower route takes, else with the first that goes to this sink.
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

// RouteStats counts, for one route, since the process started. Every sink decides for itself, so a change counts once for
// each, and again when it is read again after a restart.
type RouteStats struct {
	Sent    map[string]uint64 // changes the route sends to a sink, by its name; only of sinks it names
	Dropped map[string]uint64 // changes it keeps from a sink, by its name; only of the others
	Failed  uint64            // evaluations of its filter that failed; their changes went to the sink's own topic
	Failure string            // why the last of them did; "" for none
}

// Stats returns the counts of all routes, in their order.
func (r *Router) Stats() []RouteStats {
	all := make([]RouteStats, len(r.routes))
	for i, to := range r.routes {
		s := RouteStats{Sent: map[string]uint64{}, Dropped: map[string]uint64{}}
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
