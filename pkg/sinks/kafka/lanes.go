package kafka

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// laneSet holds the lanes that are in use, and what all of them share. It is safe for concurrent use.
type laneSet struct {
	config     Config
	log        *slog.Logger
	cluster    *cluster.Cluster
	reader     *cluster.Reader
	topics     *topicCatalog
	encoders   encoderPool
	codecs     *compressionChoice
	buffers    bufferPool
	retained   byteBudget                                  // bytes of unsettled batches between calls // I6
	former     func(topic string, now *cluster.Layout) int // see formerLayouts
	fence      *atomic.Pointer[fence]
	acks       *ackLog
	timestamps *timestampCondition

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
	topicName, index, count, err := parseLane(name)
	if err != nil {
		return nil, err
	}
	t := s.topics.topicByName(topicName)
	s.mu.Lock()
	defer s.mu.Unlock()
	if l = s.byName[name]; l == nil {
		l = newLane(s, t, name, index, count)
		s.byName[name] = l
	}
	return l, nil
}

func (s *laneSet) waitingPublisher(topic string) *waitingPublisher {
	t := s.topics.topicByName(topic)
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waiting[topic]
	if w == nil {
		w = &waitingPublisher{lanes: s, topic: t, accepted: map[delivery]bool{}}
		s.waiting[topic] = w
	}
	return w
}

// releaseLanes drops lanes through which nothing is under way.
func (s *laneSet) releaseLanes(names []sinks.Lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if topic, ok := topicOfWaitingLane(name); ok {
			delete(s.waiting, topic)
		} else if l := s.byName[name]; l != nil {
			l.window.reclaimBytes()
			l.window.dropBatches()
			delete(s.byName, name)
		}
	}
}

// recordLost makes the lanes of partitions that went back start over. Nothing is published meanwhile.
func (s *laneSet) recordLost(cuts map[cluster.Partition]ackCut) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.byName {
		if _, lost := cuts[l.partition.id()]; lost {
			l.recordLost()
		}
	}
	for p := range cuts {
		if w := s.waiting[p.Topic]; w != nil {
			clear(w.accepted)
		}
	}
}

// waitingPublisher publishes changes that were assigned to a topic before its partitions were known. They belong to several
// partitions, each with its order. One goroutine at a time uses it.
type waitingPublisher struct {
	lanes      *laneSet
	topic      *topic
	partitions int               // 0 until the topic exists
	accepted   map[delivery]bool // of messages from the first one on that is not accepted everywhere
}

// delivery is a message in one partition. A watermark has one in each.
type delivery struct {
	offset    uint64
	partition int32
}

// publishBatch implements Publish of the waiting lane.
func (w *waitingPublisher) publishBatch(ctx context.Context, batch []sinks.Message) (int, error) {
	w.leaveFormerTopic()
	if w.partitions == 0 {
		layout, err := w.lanes.topics.refreshLayout(ctx, w.topic, nil)
		if err != nil {
			return 0, err
		}
		w.partitions = len(layout.Leads)
		if former := w.lanes.former(w.topic.name, layout); former > 0 {
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
			w.accepted[delivery{m.Offset, partition}] = true
		}
		failed[partition] = err
	}
	for n, m := range batch {
		to := w.messagePartitions(m)
		for _, p := range to {
			if !w.accepted[delivery{m.Offset, p}] {
				return n, failed[p] // m is the first of its partition that is not accepted: the error is about it
			}
		}
		for _, p := range to {
			delete(w.accepted, delivery{m.Offset, p})
		}
	}
	return len(batch), nil
}

// leaveFormerTopic forgets the partitions of a topic that was recreated with fewer. What they have accepted is gone, and is
// sent again in its order.
func (w *waitingPublisher) leaveFormerTopic() {
	if layout := w.topic.layout.Load(); layout == nil || layout.Err != nil || len(layout.Leads) >= w.partitions {
		return
	}
	w.lanes.releaseLanes(topicLanes(w.topic.name, w.partitions))
	w.partitions = 0
	clear(w.accepted)
}

// groupByPartition groups what is not accepted.
func (w *waitingPublisher) groupByPartition(batch []sinks.Message) map[int32][]sinks.Message {
	parts := make(map[int32][]sinks.Message)
	for _, m := range batch {
		for _, p := range w.messagePartitions(m) {
			if w.accepted[delivery{m.Offset, p}] {
				continue
			}
			part := m
			if sinks.WaitingWatermark(m.Change) {
				part.Change = m.Change.WithLane(int(p), w.partitions)
			}
			parts[p] = append(parts[p], part)
		}
	}
	return parts
}

func (w *waitingPublisher) messagePartitions(m sinks.Message) []int32 {
	if !sinks.WaitingWatermark(m.Change) {
		return []int32{partitionForKey(m.Change.AppendKey(nil), w.partitions)}
	}
	all := make([]int32, w.partitions)
	for i := range all {
		all[i] = int32(i)
	}
	return all
}

// partitionClient sends requests to the leader of one partition. It is safe for concurrent use.
type partitionClient struct {
	cluster        *cluster.Cluster
	reader         *cluster.Reader
	topics         *topicCatalog
	requestTimeout time.Duration

	topic *topic
	index int32
}

func (p *partitionClient) String() string { return p.id().String() }

func (p *partitionClient) id() cluster.Partition {
	return cluster.Partition{Topic: p.topic.name, Index: p.index}
}

// produce sends a batch for the topic with this ID to a broker and does not wait for the answer.
func (p *partitionClient) produce(leader int32, id protocol.TopicID, batch []byte, purpose cluster.Purpose) (*connection.Pending, error) {
	return p.cluster.Produce(leader, protocol.RecordBatch{Topic: p.topic.name, TopicID: id, Partition: p.index, Bytes: batch}, purpose)
}

// askLeader calls ask with the leader of the partition, and again with the leader after a metadata refresh when that fails.
// Its errors concern this lane only, unless no broker answers at all.
func (p *partitionClient) askLeader(ctx context.Context, ask func(by cluster.Lead) error) error {
	const tries = 3 // the first failure is often a stale connection
	for try := 1; ; try++ {
		seen := p.topic.layout.Load()
		by, err := seen.Lead(p.index)
		if err == nil {
			err = ask(by)
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case protocol.ClassifyError(err) == protocol.Unauthorized:
			return p.cluster.AuthorizationError(p.topic.name, err)
		}
		if _, err := p.topics.refreshLayout(ctx, p.topic, seen); err != nil {
			return err
		}
		if try == tries {
			return err
		}
	}
}
