package kafka

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// layoutMaxAge is how old the partition count of a topic may be before it is asked for again.
const layoutMaxAge = 30 * time.Second

// route is where the changes of one topic go: to a lane for each partition or, until the partitions are known, to one that
// asks for them. It belongs to the caller of Lane.
type route struct {
	topic *topic
	lanes []sinks.Lane
	used  []bool // by lane: it was named, and not forgotten since
}

func newRoute(t *topic, lanes ...sinks.Lane) *route {
	return &route{topic: t, lanes: lanes, used: make([]bool, len(lanes))}
}

func topicLanes(topic string, count int) []sinks.Lane {
	lanes := make([]sinks.Lane, count)
	for i := range lanes {
		lanes[i] = laneName(topic, int32(i), count)
	}
	return lanes
}

// isWaiting says whether the partitions of the topic were not known when the route was made.
func (r *route) isWaiting() bool { return r.lanes[0] == waitingLane(r.topic.name) }

// Lane returns the topic-partition of c: the topic by the template, the partition by the Java client's hash of the key.
// Changes of a topic whose partitions are not known have a lane of their own.
func (s *Sink) Lane(c *event.Change) (sinks.Lane, error) { return s.LaneTo(c, nil) }

// LaneTo is Lane with another template of the topic, if it is not nil. The lane names the topic, so Publish needs none.
func (s *Sink) LaneTo(c *event.Change, topic *sinks.Template) (sinks.Lane, error) {
	if topic == nil {
		topic = s.template
	}
	s.scratch = topic.AppendName(s.scratch[:0], c, appendEscaped)
	r := s.routes[string(s.scratch)]
	if r == nil {
		if err := checkTopicName(s.scratch); err != nil {
			return "", &sinks.RejectedError{Reason: "no topic for this change", Err: err}
		}
		r = s.createRoute(string(s.scratch))
	}
	s.scratch = c.AppendKey(s.scratch[:0])
	i := partitionForKey(s.scratch, len(r.lanes))
	r.used[i] = true
	return r.lanes[i], nil
}

// createRoute makes the route of a topic.
func (s *Sink) createRoute(name string) *route {
	t := s.topicByName(name)
	r := newRoute(t, waitingLane(name))
	if now := t.layout.Load(); now != nil {
		r = newRoute(t, topicLanes(name, len(now.Leads))...)
	}
	s.routes[name] = r
	return r
}

// ResumeLanes is [sinks.Repartitioner.ResumeLanes]: a lane says how many partitions its topic had.
func (s *Sink) ResumeLanes(lanes []sinks.Lane) {
	for _, name := range lanes {
		if topic, ok := topicOfWaitingLane(name); ok {
			s.routes[topic] = newRoute(s.topicByName(topic), name)
		} else if topic, _, count, err := parseLane(name); err == nil {
			s.routes[topic] = newRoute(s.topicByName(topic), topicLanes(topic, count)...)
		}
	}
}

// PendingRepartitions is [sinks.Repartitioner.PendingRepartitions]. It begins to ask about the topics in the background when their
// layouts are of age.
func (s *Sink) PendingRepartitions() (due []sinks.Repartition) {
	s.startLayoutCheck()
	for one := range s.changedTopics.Range {
		t := one.(*topic)
		if s.repairer.isWritingTo(t.name) {
			continue
		}
		r, now := s.routes[t.name], t.layout.Load()
		if r == nil || !r.isWaiting() && len(now.Leads) == len(r.lanes) {
			s.changedTopics.Delete(t)
			continue
		}
		to := sinks.Repartition{From: r.lanes, To: topicLanes(t.name, len(now.Leads)), Lost: len(now.Leads) < len(r.lanes)}
		switch {
		case r.isWaiting(): // the layout of a topic comes after its first change, which is nothing to tell
		case to.Lost:
			to.Reason = fmt.Sprintf("topic %q was made anew: it has %d partitions, and had %d", t.name, len(now.Leads), len(r.lanes))
		default:
			to.Reason = fmt.Sprintf("topic %q has %d partitions now, and had %d", t.name, len(now.Leads), len(r.lanes))
		}
		due = append(due, to)
	}
	return due
}

// ApplyRepartition is [sinks.Repartitioner.ApplyRepartition].
func (s *Sink) ApplyRepartition(to sinks.Repartition) {
	topic, _, _, err := parseLane(to.To[0])
	if err != nil {
		return // it is none of ours
	}
	s.routes[topic] = newRoute(s.topicByName(topic), to.To...)
	s.releaseLanes(to.From)
}

// ReleaseLanes is [sinks.Forgetter.ReleaseLanes]. A topic none of whose lanes is used is forgotten, too.
func (s *Sink) ReleaseLanes(lanes []sinks.Lane) {
	s.releaseLanes(lanes)
	for _, name := range lanes {
		topic, i, _, err := parseLane(name)
		if waiting, ok := topicOfWaitingLane(name); ok {
			topic, err = waiting, nil
		}
		r := s.routes[topic]
		if err != nil || r == nil || int(i) >= len(r.lanes) || r.lanes[i] != name {
			continue
		}
		r.used[i] = false
		if !slices.Contains(r.used, true) {
			delete(s.routes, topic)
			s.mu.Lock()
			delete(s.topics, topic)
			s.mu.Unlock()
		}
	}
}

// releaseLanes lets go of what is held for lanes through which nothing is on its way.
func (s *Sink) releaseLanes(lanes []sinks.Lane) {
	s.mu.Lock()
	for _, name := range lanes {
		if topic, ok := topicOfWaitingLane(name); ok {
			delete(s.waitingPublishers, topic)
		} else if l := s.lanes[name]; l != nil && !s.repairer.isWritingTo(l.topic.name) {
			l.reclaimBytes()
			l.dropInFlight()
			delete(s.lanes, name)
		}
	}
	s.mu.Unlock()
	s.producers.removeStates(lanes)
}

// startLayoutCheck asks about all topics in use, in the background, when that was long ago.
func (s *Sink) startLayoutCheck() {
	if time.Since(s.layoutsCheckedAt) < s.layoutCheckInterval || !s.checkingLayouts.CompareAndSwap(false, true) {
		return
	}
	s.layoutsCheckedAt = time.Now()
	var topics []*topic
	for _, r := range s.routes {
		topics = append(topics, r.topic)
	}
	s.background.Go(func() {
		defer s.checkingLayouts.Store(false)
		s.checkLayouts(s.runCtx, topics)
	})
}

// checkLayouts asks about topics in one request. What is known stays in use when nobody answers, and of topics that are refused.
func (s *Sink) checkLayouts(ctx context.Context, topics []*topic) {
	names := make([]string, len(topics))
	for i, t := range topics {
		names[i] = t.name
	}
	found, _, err := s.cluster.DescribeTopics(ctx, names)
	if err != nil {
		return
	}
	for _, t := range topics {
		if now := found[t.name]; now != nil && now.Err == nil && len(now.Leads) > 0 && t.layout.Load() != nil {
			s.setLayout(t, now)
		}
	}
}

// waitingPublisher publishes what waited for the partitions of a topic to be known. Its messages belong to several of them, each
// with its order.
type waitingPublisher struct {
	sink       *Sink
	topic      *topic
	partitions int             // partitions; 0 until the topic exists
	accepted   map[uint64]bool // offsets of messages behind the first that is not
}

// publishBatch is [sinks.Sink.Publish] for the lane.
func (w *waitingPublisher) publishBatch(ctx context.Context, batch []sinks.Message) (int, error) {
	if w.partitions == 0 {
		layout, err := w.sink.refreshLayout(ctx, w.topic, nil)
		if err != nil {
			return 0, err
		}
		w.partitions = len(layout.Leads)
	}
	failed := make(map[int32]error)
	for partition, part := range w.groupByPartition(batch) {
		l, err := w.sink.laneByName(laneName(w.topic.name, partition, w.partitions))
		if err != nil {
			return 0, err
		}
		n, err := l.publishBatch(ctx, part)
		for _, m := range part[:n] {
			w.accepted[m.Offset] = true
		}
		failed[partition] = err
	}
	for n, m := range batch {
		if !w.accepted[m.Offset] {
			return n, failed[w.messagePartition(m)] // the first of its partition that is not accepted: what the error speaks of
		}
		delete(w.accepted, m.Offset)
	}
	return len(batch), nil
}

// groupByPartition sorts what is not accepted into partitions.
func (w *waitingPublisher) groupByPartition(batch []sinks.Message) map[int32][]sinks.Message {
	parts := make(map[int32][]sinks.Message)
	for _, m := range batch {
		if !w.accepted[m.Offset] {
			p := w.messagePartition(m)
			parts[p] = append(parts[p], m)
		}
	}
	return parts
}

func (w *waitingPublisher) messagePartition(m sinks.Message) int32 {
	return partitionForKey(m.Change.AppendKey(nil), w.partitions)
}
