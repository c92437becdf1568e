package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// topic knows who leads the partitions of one topic. It is safe for concurrent use.
type topic struct {
	name    string
	asking  chan struct{} // holds one token; who has it may ask the cluster
	checked bool          // the topic is as it should be; belongs to who has the token
	current atomic.Pointer[layout]
}

// layout is one answer about a topic. It is never changed.
type layout struct {
	leads []lead // by partition
}

var (
	errNoLayout    = errors.New("the topic was not looked up yet")
	errNoPartition = errors.New("the partition does not exist (any more): the topic was made anew")
)

// lead returns who leads a partition.
func (by *layout) lead(partition int32) (lead, error) {
	switch {
	case by == nil:
		return lead{broker: -1}, errNoLayout
	case int(partition) >= len(by.leads):
		return lead{broker: -1}, errNoPartition
	case by.leads[partition].broker < 0:
		return lead{broker: -1}, kafka.LeaderNotAvailable
	}
	return by.leads[partition], nil
}

func newTopic(name string) *topic {
	t := &topic{name: name, asking: make(chan struct{}, 1)}
	t.asking <- struct{}{}
	return t
}

// refresh asks the cluster about the topic, unless someone did since the caller read seen (nil: never). So lanes that
// fail together ask once.
func (s *Sink) refresh(ctx context.Context, t *topic, seen *layout) (*layout, error) {
	select {
	case <-t.asking:
		defer func() { t.asking <- struct{}{} }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if now := t.current.Load(); now != seen {
		return now, nil
	}
	leads, err := s.find(ctx, t)
	if err != nil {
		return nil, err
	}
	now := &layout{leads}
	s.learn(t, now)
	return now, nil
}

// learn notes the layout of a topic.
func (s *Sink) learn(t *topic, now *layout) {
	before := t.current.Swap(now)
	if before == nil || len(before.leads) != len(now.leads) {
		s.moved.add(t)
	}
}

// topicSet is a set of topics. It is safe for concurrent use.
type topicSet struct {
	mu     sync.Mutex
	topics map[*topic]bool
}

func (s *topicSet) add(t *topic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.topics == nil {
		s.topics = map[*topic]bool{}
	}
	s.topics[t] = true
}

func (s *topicSet) remove(t *topic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.topics, t)
}

func (s *topicSet) all() []*topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.topics))
}

// find describes a topic, and creates it first, or checks it, where that is asked for.
func (s *Sink) find(ctx context.Context, t *topic) ([]lead, error) {
	found, controller, err := s.describe(ctx, t.name)
	if err == nil && !t.checked {
		if err := s.check(ctx, t.name, found); err != nil {
			return nil, err
		}
		t.checked = true
	}
	if !errors.Is(err, kafka.UnknownTopicOrPartition) {
		return found.leads, s.explain(ctx, t.name, err)
	}
	if !s.config.CreateTopics.Enabled {
		return nil, fmt.Errorf("topic %q does not exist: create it, or set kafka.createTopics.enabled: %w", t.name, err)
	}
	if err := s.cluster.create(ctx, controller, t.name, s.config.CreateTopics); err != nil {
		if protocol.ClassifyError(err) == protocol.Unauthorized || !protocol.FromBroker(err) {
			return nil, s.explain(ctx, t.name, err)
		}
		return nil, fmt.Errorf("creating topic %q: %w; create it by hand, or correct kafka.createTopics", t.name, err)
	}
	s.log.Info("topic created", "topic", t.name)
	return s.awaitCreated(ctx, t.name)
}

// awaitCreated waits until the brokers have heard of a topic that was just created; some seconds at most.
func (s *Sink) awaitCreated(ctx context.Context, name string) ([]lead, error) {
	const pause, tries = 50 * time.Millisecond, 40
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for try := 1; ; try++ {
		created, _, err := s.describe(ctx, name)
		pending := errors.Is(err, kafka.UnknownTopicOrPartition) || errors.Is(err, kafka.LeaderNotAvailable)
		if !pending || try == tries {
			return created.leads, s.explain(ctx, name, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// describe asks the cluster about a topic. One without partitions is not ready.
func (s *Sink) describe(ctx context.Context, name string) (found description, controller int32, err error) {
	err = retryOnce(ctx, func() (err error) {
		found, controller, err = s.cluster.describe(ctx, name)
		return err
	})
	if err == nil && len(found.leads) == 0 {
		err = kafka.LeaderNotAvailable
	}
	return found, controller, err
}

// retryLayout asks something of brokers that a layout names, with another layout when that was not right any more.
func (s *Sink) retryLayout(ctx context.Context, t *topic, ask func(by *layout) error) error {
	const tries = 3
	for try := 1; ; try++ {
		seen := t.current.Load()
		err := ask(seen)
		if err == nil {
			return nil
		}
		if try == tries || ctx.Err() != nil || protocol.ClassifyError(err) == protocol.Unauthorized {
			return s.explain(ctx, t.name, err)
		}
		if _, err := s.refresh(ctx, t, seen); err != nil {
			return err
		}
	}
}
