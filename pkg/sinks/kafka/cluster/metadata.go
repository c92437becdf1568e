package cluster

import (
	"context"
	"errors"
	"net"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/createtopics"
	"github.com/segmentio/kafka-go/protocol/describeconfigs"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// Lead is who leads a partition, and in which epoch (-1: the broker does not say). Broker is -1 where nobody does.
type Lead struct {
	Broker int32
	Epoch  int32
}

// Layout is one answer about a topic. It is never changed.
type Layout struct {
	Leads    []Lead // by partition
	Replicas int    // of the partition that has fewest
	Err      error  // why there is nothing to say
}

// What [Layout.Lead] returns where a partition has no leader, besides Kafka's own errors.
var (
	ErrNoLayout    = errors.New("the topic was not looked up yet")
	ErrNoPartition = errors.New("the partition does not exist (any more): the topic was made anew")
)

// Lead returns who leads a partition.
func (by *Layout) Lead(partition int32) (Lead, error) {
	switch {
	case by == nil:
		return Lead{Broker: -1}, ErrNoLayout
	case by.Err != nil:
		return Lead{Broker: -1}, by.Err
	case int(partition) >= len(by.Leads):
		return Lead{Broker: -1}, ErrNoPartition
	case by.Leads[partition].Broker < 0:
		return Lead{Broker: -1}, kafka.LeaderNotAvailable
	}
	return by.Leads[partition], nil
}

// Ping finds a broker that lets us in, and learns the addresses of all.
func (c *Cluster) Ping(ctx context.Context) error {
	_, _, err := c.DescribeTopics(ctx, []string{}) // empty, not nil: no topics, not all
	return err
}

// description is an answer about many topics.
type description struct {
	found      map[string]*Layout
	controller int32
}

// DescribeTopic asks about a topic: who leads its partitions, and for that matter the cluster. One without partitions is not
// ready.
func (c *Cluster) DescribeTopic(ctx context.Context, topic string) (found *Layout, controller int32, err error) {
	err = retryOnce(ctx, func() (err error) {
		found, controller, err = c.describeOnce(ctx, topic)
		return err
	})
	if err == nil && len(found.Leads) == 0 {
		err = kafka.LeaderNotAvailable
	}
	return found, controller, err
}

// describeOnce is Describe without a second attempt. Topics that are asked about at the same time are in one request.
func (c *Cluster) describeOnce(ctx context.Context, topic string) (*Layout, int32, error) {
	all, err := c.descriptions.Submit(ctx, topic)
	if err != nil {
		return nil, anyBroker, err
	}
	found := all.found[topic]
	if found == nil {
		return nil, all.controller, errors.New("the broker answered for other topics than asked for")
	}
	return found, all.controller, found.Err
}

// DescribeTopics asks about some topics.
func (c *Cluster) DescribeTopics(ctx context.Context, topics []string) (all map[string]*Layout, controller int32, err error) {
	answer, err := c.request(ctx, anyBroker, &metadata.Request{TopicNames: topics})
	if err != nil {
		return nil, anyBroker, err
	}
	r := answer.(*metadata.Response)
	c.setAddresses(r.Brokers)
	all = make(map[string]*Layout, len(r.Topics))
	for _, t := range r.Topics {
		all[t.Name] = newLayout(t)
	}
	return all, r.ControllerID, nil
}

// setAddresses notes where brokers are.
func (c *Cluster) setAddresses(brokers []metadata.ResponseBroker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range brokers {
		c.addresses[b.NodeID] = net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
	}
}

func newLayout(t metadata.ResponseTopic) *Layout {
	if err := protocol.CodeError(t.ErrorCode, ""); err != nil {
		return &Layout{Err: err}
	}
	d := &Layout{Leads: make([]Lead, len(t.Partitions))}
	for i := range d.Leads {
		d.Leads[i] = Lead{-1, -1}
	}
	for i, p := range t.Partitions {
		if int(p.PartitionIndex) < len(d.Leads) {
			d.Leads[p.PartitionIndex] = Lead{p.LeaderID, p.LeaderEpoch}
		}
		if i == 0 || len(p.ReplicaNodes) < d.Replicas {
			d.Replicas = len(p.ReplicaNodes)
		}
	}
	return d
}

// TopicSettings asks how a topic is configured; defaults of the brokers are in it.
func (c *Cluster) TopicSettings(ctx context.Context, topic string) (map[string]string, error) {
	const topics = 2 // type of resource
	answer, err := c.request(ctx, anyBroker, &describeconfigs.Request{Resources: []describeconfigs.RequestResource{{ResourceType: topics, ResourceName: topic}}})
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, r := range answer.(*describeconfigs.Response).Resources {
		if err := protocol.CodeError(r.ErrorCode, r.ErrorMessage); err != nil {
			return nil, err
		}
		for _, entry := range r.ConfigEntries {
			all[entry.ConfigName] = entry.ConfigValue
		}
	}
	return all, nil
}

// CreateTopic makes a topic, unless it exists, and waits until the brokers have heard of it; some seconds at most.
func (c *Cluster) CreateTopic(ctx context.Context, controller int32, topic createtopics.RequestTopic) (*Layout, error) {
	answer, err := c.request(ctx, controller, &createtopics.Request{
		Topics: []createtopics.RequestTopic{topic}, TimeoutMs: int32(c.timeout.Milliseconds() / 2),
	})
	if err != nil {
		return nil, err
	}
	for _, t := range answer.(*createtopics.Response).Topics {
		if kafka.Error(t.ErrorCode) == kafka.TopicAlreadyExists {
			continue
		}
		if err := protocol.CodeError(t.ErrorCode, t.ErrorMessage); err != nil {
			return nil, err
		}
	}
	c.log.Info("topic created", "topic", topic.Name)
	const pause, tries = 50 * time.Millisecond, 40
	for try := 1; ; try++ {
		created, _, err := c.DescribeTopic(ctx, topic.Name)
		pending := errors.Is(err, kafka.UnknownTopicOrPartition) || errors.Is(err, kafka.LeaderNotAvailable)
		if !pending || try == tries {
			return created, c.SinkError(ctx, topic.Name, err)
		}
		if err := ratelimit.Sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}
