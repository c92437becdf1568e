package kafka

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
)

// laneSet holds the lanes that are in use, and what all of them share. It is safe for concurrent use.
type laneSet struct {
	config     Config
	log        *slog.Logger
	cluster    *cluster.Cluster
	reader     *cluster.Reader
	topics     *topicCatalog
	encoders   encoderPool
	buffers    bufferPool
	retained   byteBudget // bytes of unsettled batches between calls // I6
	states     *producerStates
	fence      *atomic.Pointer[fence]
	timestamps timestampCondition
	locks      *partitionLocks // nil without repair
	warnOnce   sync.Once       // DescribeProducers is refused

	mu      sync.RWMutex
	byName  map[sinks.Lane]*lane
	waiting map[string]*waitingPublisher // by topic
}

// laneByName returns the lane of this name, and creates it if necessary.
func (s *laneSet) laneByName(name sinks.Lane) (*lane, error) {
	s.mu.RLock()
	l := s.byName[name]
	s.mu.RUnlock()
	if l != nil {
		return l, nil
	}
	topicName, index, _, err := parseLane(name)
	if err != nil {
		return nil, err
	}
	t := s.topics.topicByName(topicName)
	s.mu.Lock()
	defer s.mu.Unlock()
	if l = s.byName[name]; l == nil {
		l = newLane(s, t, name, index)
		s.byName[name] = l
	}
	return l, nil
}

// laneForPartition returns the lane to a partition of a topic that has this many. A lane that has its name from when there
// were fewer partitions is found as well.
func (s *laneSet) laneForPartition(p cluster.Partition, count int) (*lane, error) {
	name := laneName(p.Topic, p.Index, count)
	s.mu.RLock()
	for _, l := range s.byName {
		if s.byName[name] == nil && l.partition.id() == p {
			name = l.name
		}
	}
	s.mu.RUnlock()
	return s.laneByName(name)
}

// waitingPublisher returns the publisher of the waiting lane of a topic.
func (s *laneSet) waitingPublisher(topic string) *waitingPublisher {
	t := s.topics.topicByName(topic)
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waiting[topic]
	if w == nil {
		w = &waitingPublisher{lanes: s, topic: t, accepted: map[uint64]bool{}}
		s.waiting[topic] = w
	}
	return w
}

// releaseLanes drops lanes through which nothing is under way, except those of busy topics, and the states of all of them.
func (s *laneSet) releaseLanes(names []sinks.Lane, isBusy func(topic string) bool) {
	s.mu.Lock()
	for _, name := range names {
		if topic, ok := topicOfWaitingLane(name); ok {
			delete(s.waiting, topic)
		} else if l := s.byName[name]; l != nil && !isBusy(l.partition.topic.name) {
			l.window.reclaimBytes()
			l.window.dropBatches()
			delete(s.byName, name)
		}
	}
	s.mu.Unlock()
	s.states.removeStates(names)
}

// waitingPublisher publishes changes that were assigned to a topic before its partitions were known. They belong to several
// partitions, each with its order. One goroutine at a time uses it.
type waitingPublisher struct {
	lanes      *laneSet
	topic      *topic
	partitions int             // 0 until the topic exists
	accepted   map[uint64]bool // offsets of accepted messages behind the first one that is not accepted
}

// publishBatch implements Publish of the waiting lane.
func (w *waitingPublisher) publishBatch(ctx context.Context, batch []sinks.Message) (int, error) {
	if w.partitions == 0 {
		layout, err := w.lanes.topics.refreshLayout(ctx, w.topic, nil)
		if err != nil {
			return 0, err
		}
		w.partitions = len(layout.Leads)
		if former := w.lanes.states.formerPartitions(w.topic.name); former > 0 {
			w.partitions = min(w.partitions, former)
		}
	}
	failed := make(map[int32]error)
	for partition, part := range w.groupByPartition(batch) {
		l, err := w.lanes.laneByName(laneName(w.topic.name, partition, w.partitions))
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
			return n, failed[w.messagePartition(m)] // m is the first of its partition that is not accepted: the error is about it
		}
		delete(w.accepted, m.Offset)
	}
	return len(batch), nil
}

// groupByPartition groups the messages that are not accepted.
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
