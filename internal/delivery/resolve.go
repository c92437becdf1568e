package delivery

import (
	"errors"
	"fmt"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// unroutableLane holds the changes that have no lane of the sink. The sink never gets them; all become dead letters.
const unroutableLane sinks.Lane = ""

// laneResolver finds the lane of a change.
type laneResolver struct {
	sinkName string
	sink     sinks.Sink
	cfg      *Config

	// mu is held while the sink names, replaces or releases lanes, until the backlog has the result. It is taken before
	// backlog.mu.
	mu sync.Mutex
}

// routeOf returns whether a change is for this sink, and for which topic.
func (r *laneResolver) routeOf(c *event.Change) Route {
	if c.Gap != nil && c.Gap.Sink != "" && c.Gap.Sink != r.sinkName { // of what another sink missed
		return Route{Skip: true}
	}
	if r.cfg.Route == nil {
		return Route{}
	}
	return r.cfg.Route(c)
}

// isAlreadyDelivered reports whether an earlier process delivered the change.
func (r *laneResolver) isAlreadyDelivered(lane sinks.Lane, c *event.Change) bool {
	return r.cfg.AlreadyDelivered != nil && lane != unroutableLane && r.cfg.AlreadyDelivered(lane, c)
}

// resolveLane returns the lane of a change and the entry to queue. A change that is withheld, or that the sink rejects
// here, belongs to unroutableLane. An error is a defect of the sink. Requires mu.
func (r *laneResolver) resolveLane(record event.Record, topic *sinks.Template) (sinks.Lane, entry, error) {
	if record.Change.Withheld != "" {
		rejection := &sinks.RejectedError{Reason: "withheld: " + record.Change.Withheld}
		return unroutableLane, newEntry(record, nil, rejection), nil
	}
	name, err := r.askSinkForLane(record.Change, topic)
	if err == nil {
		return name, newEntry(record, topic, nil), nil
	}
	var rejected *sinks.RejectedError
	if !errors.As(err, &rejected) {
		return "", entry{}, fmt.Errorf("sink %q: defect: no lane for the change at offset %d: %w", r.sinkName, record.Offset, err)
	}
	return unroutableLane, newEntry(record, nil, err), nil
}

// askSinkForLane asks the sink for the lane of a change; a nil topic is the sink's own.
func (r *laneResolver) askSinkForLane(c *event.Change, topic *sinks.Template) (sinks.Lane, error) {
	if topic == nil {
		return r.sink.Lane(c)
	}
	router, ok := r.sink.(sinks.Router)
	if !ok {
		return "", fmt.Errorf("routed to the topic %s, but this sink has a single destination", topic)
	}
	return router.LaneTo(c, topic)
}
