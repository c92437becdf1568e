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

	laneLister sinks.LaneLister // the sink, if it has several lanes; else nil

	// mu is held while the sink names, replaces or releases lanes, until the backlog has the result. It is taken before
	// backlog.mu.
	mu      sync.Mutex
	scratch []placement // result of resolveLanes
}

// routeOf returns whether a change is for this sink, and for which topic.
func (r *laneResolver) routeOf(c *event.Change) Route {
	if c.Gap != nil && r.isOfAnother(c.Gap.Sink) { // of what another sink missed
		return Route{Skip: true}
	}
	if r.isOfAnother(c.OnlySink) { // which alone lacks it
		return Route{Skip: true}
	}
	if r.cfg.Route == nil {
		return Route{}
	}
	return r.cfg.Route(c)
}

// isOfAnother reports whether a record that is for one sink, "" for all, is for another one.
func (r *laneResolver) isOfAnother(only string) bool {
	return only != "" && only != r.sinkName && only != r.cfg.FormerName
}

// placement is a change with the lane that it belongs to.
type placement struct {
	lane  sinks.Lane
	entry entry
}

// isAlreadyDelivered reports whether an earlier process delivered the change.
func (r *laneResolver) isAlreadyDelivered(p placement) bool {
	return r.cfg.AlreadyDelivered != nil && p.lane != unroutableLane && r.cfg.AlreadyDelivered(p.lane, p.entry.change)
}

// resolveLanes returns the lane of a change and the entry to queue, or every lane of a watermark and the copy for each. A
// change that is withheld, or that the sink rejects here, belongs to unroutableLane. An error is a defect of the sink.
// The result is valid until the next call. Requires mu.
func (r *laneResolver) resolveLanes(record event.Record, to Route) ([]placement, error) {
	clear(r.scratch)
	r.scratch = r.scratch[:0]
	if record.Change.Withheld != "" {
		rejection := &sinks.RejectedError{Reason: "withheld: " + record.Change.Withheld}
		return r.placeChange(unroutableLane, newEntry(record, nil, rejection)), nil
	}
	var name sinks.Lane
	var err error
	if record.Change.Type == event.Watermark {
		err = r.placeWatermark(record, to)
	} else if name, err = r.askSinkForLane(record.Change, to.Topic); err == nil {
		r.placeChange(name, newEntry(record, to.Topic, nil))
	}
	if err == nil {
		return r.scratch, nil
	}
	var rejected *sinks.RejectedError
	switch {
	case !errors.As(err, &rejected):
		return nil, fmt.Errorf("sink %q: defect: no lane for the change at offset %d: %w", r.sinkName, record.Offset, err)
	case record.Change.Type == event.Watermark: // no lane can have it
		return nil, nil
	}
	return r.placeChange(unroutableLane, newEntry(record, nil, err)), nil
}

func (r *laneResolver) placeChange(lane sinks.Lane, e entry) []placement {
	r.scratch = append(r.scratch, placement{lane, e})
	return r.scratch
}

// placeWatermark places a copy of a watermark in every lane.
func (r *laneResolver) placeWatermark(record event.Record, to Route) error {
	var lanes []sinks.Lane
	var err error
	lister := r.laneLister
	if lister != nil {
		lanes, err = lister.AllLanes(record.Change, to.Topic)
	} else {
		var only sinks.Lane
		only, err = r.askSinkForLane(record.Change, to.Topic)
		lanes = []sinks.Lane{only}
	}
	if err != nil {
		return err
	}
	for i, lane := range lanes {
		c := record.Change.WithLane(i, len(lanes))
		if len(lanes) == 1 && lister != nil && lister.StandsForSeveral(lane) {
			c.Watermark.Lane, c.Watermark.Lanes = 0, 0
		}
		if to.Partial {
			c.Watermark.OmitDigest()
		}
		r.placeChange(lane, newEntry(event.Record{Offset: record.Offset, Change: c, InFrame: record.InFrame}, to.Topic, nil))
	}
	return nil
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
