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
	Takes     func(event.Resource) bool // required
	Namespace func(string) bool         // nil takes all
	Types     []string                  // event.Type; empty takes all
	Classes   []string                  // event.Class; empty takes all, and what has none
	Filter    string                    // over object and change; "" takes all
	To        map[string]string         // topic by name of the sink; "" is the sink's own. Empty drops the change
}

// ValidateFilter reports what is wrong with the filter of a route, for people.
func ValidateFilter(expression string) error {
	_, err := filter.Compile(expression, false)
	return err
}

// leaves says what of the resource that a control record speaks of the route leaves to later ones: everything, or some. A
// record of a resource that is watched by namespaces names one.
func (r Route) leaves(c *event.Change) (all, some bool) {
	all = !r.Takes(c.Resource) || r.Namespace != nil && c.Namespace != "" && !r.Namespace(c.Namespace)
	some = all || r.Namespace != nil && c.Namespace == "" || len(r.Types)+len(r.Classes) > 0 || r.Filter != ""
	return all, some
}

// Router decides where changes go. It is safe for concurrent use. What it decides follows from the routes and the change
// alone, so that it is the same after every restart.
type Router struct {
	routes []*route
	sinks  map[string]int // index of the counts of each
}

type route struct {
	Route
	filter *filter.Filter

	decided  []atomic.Uint64 // by sink
	failures failures
}

// NewRouter returns a router for routes that are valid, and for all sinks there are.
func NewRouter(routes []Route, sinks []string) (*Router, error) {
	r := &Router{sinks: map[string]int{}}
	for i, name := range sinks {
		r.sinks[name] = i
	}
	for i, given := range routes {
		compiled := &route{Route: given, decided: make([]atomic.Uint64, len(sinks))}
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

// To says whether a change goes to a sink, one of those given to [NewRouter], and to which topic there; "" is the sink's
// own. What no route matches goes to every sink, and so does what a filter fails on: nothing is lost by a mistake.
func (r *Router) To(sink string, c *event.Change) (topic string, yes bool) {
	decides := r.first(c)
	if c.Type.Control() {
		decides = r.control(sink, c)
	}
	if decides == nil {
		return "", true
	}
	decides.decided[r.sinks[sink]].Add(1)
	topic, yes = decides.To[sink]
	return topic, yes
}

// first returns the first route that matches a change, nil if there is none or if that cannot be told.
func (r *Router) first(c *event.Change) *route {
	if c.Type.Control() {
		return nil
	}
	for _, to := range r.routes {
		matches, err := to.matches(c)
		if err != nil {
			to.failures.add(err)
			return nil
		}
		if matches {
			return to
		}
	}
	return nil
}

// control returns the route of a record that speaks of a whole resource. It goes to every sink that may get changes of
// it, once: to where those go that no narrower route takes, else with the first that goes to this sink.
func (r *Router) control(sink string, c *event.Change) *route {
	var narrow *route
	for _, to := range r.routes {
		all, some := to.leaves(c)
		_, yes := to.To[sink]
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

func (r *route) matches(c *event.Change) (bool, error) {
	switch {
	case !r.Takes(c.Resource),
		r.Namespace != nil && !r.Namespace(c.Namespace),
		len(r.Types) > 0 && !slices.Contains(r.Types, string(c.Type)),
		len(r.Classes) > 0 && !slices.Contains(r.Classes, string(c.Class)):
		return false, nil
	case r.filter == nil:
		return true, nil
	}
	return r.filter.Takes(c, nil)
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
			if _, yes := to.To[sink]; yes {
				counts = s.Sent
			}
			counts[sink] = to.decided[j].Load()
		}
		s.Failed, s.Failure = to.failures.get()
		all[i] = s
	}
	return all
}
