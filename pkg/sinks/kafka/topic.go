package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// topic knows who leads the partitions of one topic. It is safe for concurrent use.
type topic struct {
	name         string
	refreshToken chan struct{} // holds one token; who has it may ask the cluster
	checked      bool          // the topic is as it should be; belongs to who has the token
	layout       atomic.Pointer[cluster.Layout]
}

func newTopic(name string) *topic {
	t := &topic{name: name, refreshToken: make(chan struct{}, 1)}
	t.refreshToken <- struct{}{}
	return t
}

// refreshLayout asks the cluster about the topic, unless someone did since the caller read seen. So lanes that fail together ask
// once. With nil, what is known already is enough.
func (s *Sink) refreshLayout(ctx context.Context, t *topic, seen *cluster.Layout) (*cluster.Layout, error) {
	select {
	case <-t.refreshToken:
		defer func() { t.refreshToken <- struct{}{} }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if now := t.layout.Load(); now != seen {
		return now, nil
	}
	now, err := s.findOrCreateTopic(ctx, t)
	if err != nil {
		return nil, err
	}
	s.setLayout(t, now)
	return now, nil
}

// setLayout notes the layout of a topic.
func (s *Sink) setLayout(t *topic, now *cluster.Layout) {
	before := t.layout.Swap(now)
	if before == nil || len(before.Leads) != len(now.Leads) {
		s.changedTopics.Store(t, nil)
	}
}

// findOrCreateTopic describes a topic, and creates it first, or checks it, where that is asked for.
func (s *Sink) findOrCreateTopic(ctx context.Context, t *topic) (*cluster.Layout, error) {
	found, controller, err := s.cluster.DescribeTopic(ctx, t.name)
	if err == nil && !t.checked {
		if err := s.checkTopic(ctx, t.name, found); err != nil {
			return nil, err
		}
		t.checked = true
	}
	if !errors.Is(err, kafka.UnknownTopicOrPartition) {
		return found, s.cluster.SinkError(ctx, t.name, err)
	}
	if !s.config.CreateTopics.Enabled {
		return nil, fmt.Errorf("topic %q does not exist: create it, or set kafka.createTopics.enabled: %w", t.name, err)
	}
	found, err = s.cluster.CreateTopic(ctx, controller, s.config.CreateTopics.createRequest(t.name))
	if err != nil {
		if protocol.ClassifyError(err) == protocol.Unauthorized || !protocol.IsBrokerError(err) {
			return nil, s.cluster.SinkError(ctx, t.name, err)
		}
		return nil, fmt.Errorf("creating topic %q: %w; create it by hand, or correct kafka.createTopics", t.name, err)
	}
	return found, nil
}

// askLeader asks something of the broker that leads the partition, and again where that may have been another one. Its
// errors are those of the lane alone, unless no broker answers: others work.
func (l *lane) askLeader(ctx context.Context, ask func(by cluster.Lead) error) error {
	const tries = 3 // the first failure is often just a stale connection
	for try := 1; ; try++ {
		seen := l.topic.layout.Load()
		by, err := seen.Lead(l.partition)
		if err == nil {
			err = ask(by)
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case protocol.ClassifyError(err) == protocol.Unauthorized:
			return l.sink.cluster.AuthorizationError(l.topic.name, err)
		}
		if _, err := l.sink.refreshLayout(ctx, l.topic, seen); err != nil {
			return err
		}
		if try == tries {
			return err
		}
	}
}
