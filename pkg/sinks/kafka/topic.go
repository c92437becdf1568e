package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// topic knows who leads the partitions of one topic. It is safe for concurrent use.
type topic struct {
	name    string
	asking  chan struct{} // holds one token; who has it may ask the cluster
	checked bool          // the topic is as it should be; belongs to who has the token
	current atomic.Pointer[cluster.Layout]
}

func newTopic(name string) *topic {
	t := &topic{name: name, asking: make(chan struct{}, 1)}
	t.asking <- struct{}{}
	return t
}

// refresh asks the cluster about the topic, unless someone did since the caller read seen (nil: never). So lanes that
// fail together ask once.
func (s *Sink) refresh(ctx context.Context, t *topic, seen *cluster.Layout) (*cluster.Layout, error) {
	select {
	case <-t.asking:
		defer func() { t.asking <- struct{}{} }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if now := t.current.Load(); now != seen {
		return now, nil
	}
	now, err := s.find(ctx, t)
	if err != nil {
		return nil, err
	}
	s.learn(t, now)
	return now, nil
}

// learn notes the layout of a topic.
func (s *Sink) learn(t *topic, now *cluster.Layout) {
	before := t.current.Swap(now)
	if before == nil || len(before.Leads) != len(now.Leads) {
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
func (s *Sink) find(ctx context.Context, t *topic) (*cluster.Layout, error) {
	found, controller, err := s.cluster.Describe(ctx, t.name)
	if err == nil && !t.checked {
		if err := s.check(ctx, t.name, found); err != nil {
			return nil, err
		}
		t.checked = true
	}
	if !errors.Is(err, kafka.UnknownTopicOrPartition) {
		return found, s.cluster.Explain(ctx, t.name, err)
	}
	if !s.config.CreateTopics.Enabled {
		return nil, fmt.Errorf("topic %q does not exist: create it, or set kafka.createTopics.enabled: %w", t.name, err)
	}
	found, err = s.cluster.Create(ctx, controller, s.config.CreateTopics.request(t.name))
	if err != nil {
		if protocol.ClassifyError(err) == protocol.Unauthorized || !protocol.FromBroker(err) {
			return nil, s.cluster.Explain(ctx, t.name, err)
		}
		return nil, fmt.Errorf("creating topic %q: %w; create it by hand, or correct kafka.createTopics", t.name, err)
	}
	return found, nil
}

// retryLayout asks something of brokers that a layout names, with another layout when that was not right any more.
func (s *Sink) retryLayout(ctx context.Context, t *topic, ask func(by *cluster.Layout) error) error {
	const tries = 3
	for try := 1; ; try++ {
		seen := t.current.Load()
		err := ask(seen)
		if err == nil {
			return nil
		}
		if try == tries || ctx.Err() != nil || protocol.ClassifyError(err) == protocol.Unauthorized {
			return s.cluster.Explain(ctx, t.name, err)
		}
		if _, err := s.refresh(ctx, t, seen); err != nil {
			return err
		}
	}
}
