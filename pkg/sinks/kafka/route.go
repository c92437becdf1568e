package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// layoutAge is how old the partition count of a topic may be before it is asked for again.
	layoutAge = 30 * time.Second
	// glance bounds that question, which everything behind it waits for.
	glance = 2 * time.Second
)

// route is where the changes of one topic go: to a lane for each partition or, while there is no such topic, to one in
// which they wait.
type route struct {
	topic  *topic
	lanes  []sinks.Lane
	next   []sinks.Lane // after the lanes are drained
	looked time.Time
}

// Lane returns the topic-partition of c: the topic by the template, the partition by the Java client's hash of the key.
// Changes of a topic that does not exist wait in a lane of their own. When it is created, or has grown, the answer is a
// [sinks.DrainError], once.
func (s *Sink) Lane(ctx context.Context, c *event.Change) (sinks.Lane, error) {
	return s.LaneTo(ctx, c, nil)
}

// LaneTo is Lane with another template of the topic, if it is not nil. The lane names the topic, so Publish needs none.
func (s *Sink) LaneTo(ctx context.Context, c *event.Change, topic *sinks.Template) (sinks.Lane, error) {
	if topic == nil {
		topic = s.template
	}
	s.scratch = topic.Append(s.scratch[:0], c, appendEscaped)
	r := s.routes[string(s.scratch)]
	if r == nil {
		var err error
		if r, err = s.discover(ctx, string(s.scratch)); err != nil {
			return "", err
		}
		s.routes[r.topic.name] = r
	}
	if err := s.follow(ctx, r); err != nil {
		return "", err
	}
	s.scratch = c.AppendKey(s.scratch[:0])
	return r.lanes[partitionOf(s.scratch, len(r.lanes))], nil
}

// discover finds the route of a topic that Lane meets for the first time.
func (s *Sink) discover(ctx context.Context, name string) (*route, error) {
	if err := checkTopicName([]byte(name)); err != nil {
		return nil, &sinks.RejectedError{Reason: "no topic for this change", Err: err}
	}
	t := s.topic(name)
	layout := t.current.Load()
	if layout == nil {
		var err error
		layout, err = s.refresh(ctx, t, nil)
		var away *sinks.UnavailableError
		if ctx.Err() != nil || errors.As(err, &away) {
			return nil, err
		}
		if err != nil { // this topic alone is in trouble
			s.log.Warn("changes of one topic wait; other topics go on", "topic", name, "error", err)
			return &route{topic: t, lanes: []sinks.Lane{waitingLane(name)}, looked: time.Now()}, nil
		}
	}
	return &route{topic: t, lanes: lanesOf(t, layout), looked: time.Now()}, nil
}

func lanesOf(t *topic, by *layout) []sinks.Lane {
	lanes := make([]sinks.Lane, len(by.leads))
	for i := range lanes {
		lanes[i] = laneName(t.name, int32(i), len(lanes))
	}
	return lanes
}

// follow takes up what has become of the topic since: it was created, or has more partitions. Objects then change their
// lanes, which is safe when the old ones are empty: that is asked for first. // I3
func (s *Sink) follow(ctx context.Context, r *route) error {
	if r.next != nil { // the caller has drained the lanes
		s.log.Info("topic has changed: its changes go to their partitions as they are now", "topic", r.topic.name, "partitions", len(r.next))
		r.lanes, r.next = r.next, nil
		return nil
	}
	if time.Since(r.looked) >= layoutAge {
		r.looked = time.Now()
		brief, cancel := context.WithTimeout(ctx, glance)
		_, _ = s.refresh(brief, r.topic, r.topic.current.Load()) // what there is stays in use when nobody answers
		cancel()
	}
	now := r.topic.current.Load()
	if now == nil || !r.waits() && len(now.leads) <= len(r.lanes) {
		return nil
	}
	reason := fmt.Sprintf("topic %q has %d partitions now, and had %d", r.topic.name, len(now.leads), len(r.lanes))
	if r.waits() {
		reason = fmt.Sprintf("topic %q exists now", r.topic.name)
	}
	r.next = lanesOf(r.topic, now)
	return &sinks.DrainError{Reason: reason, Lanes: r.lanes}
}

func (r *route) waits() bool { return r.lanes[0] == waitingLane(r.topic.name) }

// waiting publishes what waited for a topic. Its messages belong to several partitions, each with its order.
type waiting struct {
	sink     *Sink
	topic    *topic
	count    int             // partitions; 0 until the topic exists
	accepted map[uint64]bool // offsets of messages behind the first that is not
}

// publish is [sinks.Sink.Publish] for the lane.
func (w *waiting) publish(ctx context.Context, batch []sinks.Message) (int, error) {
	if w.count == 0 {
		layout := w.topic.current.Load()
		if layout == nil {
			var err error
			if layout, err = w.sink.refresh(ctx, w.topic, nil); err != nil {
				return 0, err
			}
		}
		w.count = len(layout.leads)
	}
	failed := make(map[int32]error)
	for partition, part := range w.split(batch) {
		l, err := w.sink.lane(laneName(w.topic.name, partition, w.count))
		if err != nil {
			return 0, err
		}
		n, err := l.publish(ctx, part)
		for _, m := range part[:n] {
			w.accepted[m.Offset] = true
		}
		failed[partition] = err
	}
	for n, m := range batch {
		if !w.accepted[m.Offset] {
			return n, failed[w.partition(m)] // the first of its partition that is not accepted: what the error speaks of
		}
		delete(w.accepted, m.Offset)
	}
	return len(batch), nil
}

// split sorts what is not accepted into partitions.
func (w *waiting) split(batch []sinks.Message) map[int32][]sinks.Message {
	parts := make(map[int32][]sinks.Message)
	for _, m := range batch {
		if !w.accepted[m.Offset] {
			p := w.partition(m)
			parts[p] = append(parts[p], m)
		}
	}
	return parts
}

func (w *waiting) partition(m sinks.Message) int32 {
	return partitionOf(m.Change.AppendKey(nil), w.count)
}
