package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// topic is what is known of one topic. It is safe for concurrent use.
type topic struct {
	name         string
	refreshToken chan struct{} // holds one token; its holder may ask the cluster
	checked      bool          // the settings were checked; belongs to the holder of the token
	layout       atomic.Pointer[cluster.Layout]
	codec        atomic.Int32 // index of the codec that it accepts, as far as is known: see compressionChoice
	limit        atomic.Pointer[sizeLimit]
}

func newTopic(name string) *topic {
	t := &topic{name: name, refreshToken: make(chan struct{}, 1)}
	t.refreshToken <- struct{}{}
	return t
}

// topicCatalog knows the layouts of the topics in use, and creates and checks topics where that is configured. It is safe
// for concurrent use.
type topicCatalog struct {
	cluster *cluster.Cluster
	create  CreateTopics
	checker *topicChecker
	changed sync.Map // of *topic: the number of partitions has changed since it was routed

	mu     sync.Mutex
	topics map[string]*topic
}

func newTopicCatalog(c *cluster.Cluster, create CreateTopics, checker *topicChecker) *topicCatalog {
	return &topicCatalog{cluster: c, create: create, checker: checker, topics: map[string]*topic{}}
}

// topicByName returns a topic, of which nothing is known at first.
func (c *topicCatalog) topicByName(name string) *topic {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.topics[name]
	if t == nil {
		t = newTopic(name)
		c.topics[name] = t
	}
	return t
}

// removeTopic drops what is known of a topic.
func (c *topicCatalog) removeTopic(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.topics, name)
}

// refreshLayout asks the cluster about a topic, unless another caller did so since this one has read seen: lanes that fail
// together ask once. With a nil seen, any known layout is returned.
func (c *topicCatalog) refreshLayout(ctx context.Context, t *topic, seen *cluster.Layout) (*cluster.Layout, error) {
	select {
	case <-t.refreshToken:
		defer func() { t.refreshToken <- struct{}{} }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if now := t.layout.Load(); now != seen {
		return now, nil
	}
	now, err := c.findOrCreateTopic(ctx, t)
	if err != nil {
		return nil, err
	}
	return c.setLayout(t, now), nil
}

// setLayout records the layout of a topic and returns it, or the one before: a broker that lags may not know all partitions
// of a topic yet.
func (c *topicCatalog) setLayout(t *topic, now *cluster.Layout) *cluster.Layout {
	before := t.layout.Load()
	if before != nil && before.ID == now.ID && now.ID != (protocol.TopicID{}) && len(now.Leads) < len(before.Leads) {
		return before
	}
	t.layout.Store(now)
	if before == nil || len(before.Leads) != len(now.Leads) {
		c.changed.Store(t, nil)
	}
	return now
}

// findOrCreateTopic describes a topic. It checks the settings of one that exists, and creates one that does not, as
// configured.
func (c *topicCatalog) findOrCreateTopic(ctx context.Context, t *topic) (*cluster.Layout, error) {
	found, controller, err := c.cluster.DescribeTopic(ctx, t.name)
	if err == nil && !t.checked {
		if err := c.checker.checkTopic(ctx, t.name, found); err != nil {
			return nil, err
		}
		t.checked = true
	}
	if !errors.Is(err, kafka.UnknownTopicOrPartition) {
		return found, c.cluster.SinkError(ctx, t.name, err)
	}
	if !c.create.Enabled {
		return nil, condition.Problem{
			Code: condition.SinkTargetMissing, Cause: fmt.Sprintf("topic %q does not exist", t.name),
			Remedy: "create it, or set kafka.createTopics.enabled",
		}.Wrap(err)
	}
	found, err = c.cluster.CreateTopic(ctx, controller, c.create.createRequest(t.name))
	switch {
	case err == nil:
		return found, nil
	case cluster.IsPendingCreation(err):
		return nil, condition.Problem{
			Code: condition.SinkTargetMissing, Cause: fmt.Sprintf("topic %q is created, and no broker reports its partitions yet", t.name),
			Remedy: "wait; if it does not end, look at the log of the brokers",
		}.Wrap(err)
	case protocol.ClassifyError(err) == protocol.Unauthorized, !protocol.IsBrokerError(err):
		return nil, c.cluster.SinkError(ctx, t.name, err)
	}
	return nil, condition.Problem{
		Code: condition.SinkMisconfigured, Cause: fmt.Sprintf("creating topic %q", t.name),
		Remedy: "create it by hand, or correct kafka.createTopics",
	}.Wrap(err)
}

// checkLayouts refreshes the layouts of topics in one request, and looks at their settings when that is due. Known layouts
// stay in use when no broker answers, and for topics with an error.
func (c *topicCatalog) checkLayouts(ctx context.Context, topics []*topic) {
	names := make([]string, len(topics))
	for i, t := range topics {
		names[i] = t.name
	}
	faulty, recheck := c.checker.startRecheck()
	found, _, err := c.cluster.DescribeTopics(ctx, slices.Compact(slices.Sorted(slices.Values(append(names, faulty...)))))
	if err != nil {
		return
	}
	if recheck {
		c.checker.recheck(ctx, found)
	}
	for _, t := range topics {
		if now := found[t.name]; now != nil && now.Err == nil && len(now.Leads) > 0 && t.layout.Load() != nil {
			c.setLayout(t, now)
		}
	}
}
