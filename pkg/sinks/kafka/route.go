package kafka

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// layoutAge is how old the partition count of a topic may be before it is asked for again.
const layoutAge = 30 * time.Second

// route is where the changes of one topic go: to a lane for each partition or, until the partitions are known, to one that
// asks for them. It belongs to the caller of Lane.
type route struct {
	topic *topic
	lanes []sinks.Lane
	named []bool // by lane: it was named, and not forgotten since
}

func newRoute(t *topic, lanes ...sinks.Lane) *route {
	return &route{topic: t, lanes: lanes, named: make([]bool, len(lanes))}
}

func lanesOf(topic string, count int) []sinks.Lane {
	lanes := make([]sinks.Lane, count)
	for i := range lanes {
		lanes[i] = laneName(topic, int32(i), count)
	}
	return lanes
}

// waits says whether the partitions of the topic were not known when the route was made.
func (r *route) waits() bool { return r.lanes[0] == waitingLane(r.topic.name) }

// Lane returns the topic-partition of c: the topic by the template, the partition by the Java client's hash of the key.
// Changes of a topic whose partitions are not known have a lane of their own.
func (s *Sink) Lane(c *event.Change) (sinks.Lane, error) { return s.LaneTo(c, nil) }

// LaneTo is Lane with another template of the topic, if it is not nil. The lane names the topic, so Publish needs none.
func (s *Sink) LaneTo(c *event.Change, topic *sinks.Template) (sinks.Lane, error) {
	if topic == nil {
		topic = s.template
	}
	s.scratch = topic.Append(s.scratch[:0], c, appendEscaped)
	r := s.routes[string(s.scratch)]
	if r == nil {
		if err := checkTopicName(s.scratch); err != nil {
			return "", &sinks.RejectedError{Reason: "no topic for this change", Err: err}
		}
		r = s.discover(string(s.scratch))
	}
	s.scratch = c.AppendKey(s.scratch[:0])
	i := partitionOf(s.scratch, len(r.lanes))
	r.named[i] = true
	return r.lanes[i], nil
}

// discover makes the route of a topic.
func (s *Sink) discover(name string) *route {
	t := s.topic(name)
	r := newRoute(t, waitingLane(name))
	if now := t.current.Load(); now != nil {
		r = newRoute(t, lanesOf(name, len(now.Leads))...)
	}
	s.routes[name] = r
	return r
}

// Resume is [sinks.Repartitioner.Resume]: a lane says how many partitions its topic had.
func (s *Sink) Resume(lanes []sinks.Lane) {
	for _, name := range lanes {
		if topic, ok := waitingTopic(name); ok {
			s.routes[topic] = newRoute(s.topic(topic), name)
		} else if topic, _, count, err := parseLane(name); err == nil {
			s.routes[topic] = newRoute(s.topic(topic), lanesOf(topic, count)...)
		}
	}
}

// Repartitions is [sinks.Repartitioner.Repartitions]. It begins to ask about the topics in the background when their
// layouts are of age.
func (s *Sink) Repartitions() (due []sinks.Repartition) {
	s.lookAround()
	for one := range s.moved.Range {
		t := one.(*topic)
		if s.repairs.busy(t.name) {
			continue
		}
		r, now := s.routes[t.name], t.current.Load()
		if r == nil || !r.waits() && len(now.Leads) == len(r.lanes) {
			s.moved.Delete(t)
			continue
		}
		to := sinks.Repartition{From: r.lanes, To: lanesOf(t.name, len(now.Leads)), Gone: len(now.Leads) < len(r.lanes)}
		switch {
		case r.waits(): // the layout of a topic comes after its first change, which is nothing to tell
		case to.Gone:
			to.Reason = fmt.Sprintf("topic %q was made anew: it has %d partitions, and had %d", t.name, len(now.Leads), len(r.lanes))
		default:
			to.Reason = fmt.Sprintf("topic %q has %d partitions now, and had %d", t.name, len(now.Leads), len(r.lanes))
		}
		due = append(due, to)
	}
	return due
}

// Repartition is [sinks.Repartitioner.Repartition].
func (s *Sink) Repartition(to sinks.Repartition) {
	topic, _, _, err := parseLane(to.To[0])
	if err != nil {
		return // it is none of ours
	}
	s.routes[topic] = newRoute(s.topic(topic), to.To...)
	s.drop(to.From)
}

// Forget is [sinks.Forgetter.Forget]. A topic none of whose lanes is used is forgotten, too.
func (s *Sink) Forget(lanes []sinks.Lane) {
	s.drop(lanes)
	for _, name := range lanes {
		topic, i, _, err := parseLane(name)
		if waiting, ok := waitingTopic(name); ok {
			topic, err = waiting, nil
		}
		r := s.routes[topic]
		if err != nil || r == nil || int(i) >= len(r.lanes) || r.lanes[i] != name {
			continue
		}
		r.named[i] = false
		if !slices.Contains(r.named, true) {
			delete(s.routes, topic)
			s.mu.Lock()
			delete(s.topics, topic)
			s.mu.Unlock()
		}
	}
}

// drop lets go of what is held for lanes through which nothing is on its way.
func (s *Sink) drop(lanes []sinks.Lane) {
	s.mu.Lock()
	for _, name := range lanes {
		if topic, ok := waitingTopic(name); ok {
			delete(s.waits, topic)
		} else if l := s.lanes[name]; l != nil && !s.repairs.busy(l.topic.name) {
			l.resume()
			l.drop()
			delete(s.lanes, name)
		}
	}
	s.mu.Unlock()
	s.producers.forget(lanes)
}

// lookAround asks about all topics in use, in the background, when that was long ago.
func (s *Sink) lookAround() {
	if time.Since(s.looked) < s.lookEvery || !s.looking.CompareAndSwap(false, true) {
		return
	}
	s.looked = time.Now()
	var topics []*topic
	for _, r := range s.routes {
		topics = append(topics, r.topic)
	}
	s.background.Go(func() {
		defer s.looking.Store(false)
		s.look(s.open, topics)
	})
}

// look asks about topics in one request. What is known stays in use when nobody answers, and of topics that are refused.
func (s *Sink) look(ctx context.Context, topics []*topic) {
	names := make([]string, len(topics))
	for i, t := range topics {
		names[i] = t.name
	}
	found, _, err := s.cluster.DescribeAll(ctx, names)
	if err != nil {
		return
	}
	for _, t := range topics {
		if now := found[t.name]; now != nil && now.Err == nil && len(now.Leads) > 0 && t.current.Load() != nil {
			s.learn(t, now)
		}
	}
}

// waiting publishes what waited for the partitions of a topic to be known. Its messages belong to several of them, each
// with its order.
type waiting struct {
	sink     *Sink
	topic    *topic
	count    int             // partitions; 0 until the topic exists
	accepted map[uint64]bool // offsets of messages behind the first that is not
}

// publish is [sinks.Sink.Publish] for the lane.
func (w *waiting) publish(ctx context.Context, batch []sinks.Message) (int, error) {
	if w.count == 0 {
		layout, err := w.sink.refresh(ctx, w.topic, nil)
		if err != nil {
			return 0, err
		}
		w.count = len(layout.Leads)
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
