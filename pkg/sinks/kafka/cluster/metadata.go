package cluster

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// Lead is the leader of a partition.
type Lead struct {
	Broker int32 // -1: the partition has no leader
	Epoch  int32 // the leader epoch (KIP-320); -1: the broker does not report it
}

// Layout is the metadata of a topic at one moment. It is immutable.
type Layout struct {
	ID       protocol.TopicID
	Leads    []Lead // by partition
	Replicas int    // the smallest replication factor of all partitions
	Err      error  // the broker's error for this topic; the other fields are empty then
}

// Errors of [Layout.Lead], in addition to Kafka's own.
var (
	ErrNoLayout    = errors.New("the topic was not looked up yet")
	ErrNoPartition = errors.New("the partition does not exist (any more): the topic was recreated")
)

// Lead returns the leader of a partition. A nil layout is ErrNoLayout, a partition without a leader LeaderNotAvailable.
func (l *Layout) Lead(partition int32) (Lead, error) {
	switch {
	case l == nil:
		return Lead{Broker: -1}, ErrNoLayout
	case l.Err != nil:
		return Lead{Broker: -1}, l.Err
	case int(partition) >= len(l.Leads):
		return Lead{Broker: -1}, ErrNoPartition
	case l.Leads[partition].Broker < 0:
		return Lead{Broker: -1}, kafka.LeaderNotAvailable
	}
	return l.Leads[partition], nil
}

// Ping asks any broker for the addresses of all. It returns nil when a broker accepts our credentials and answers.
func (c *Cluster) Ping(ctx context.Context) error {
	_, _, err := c.DescribeTopics(ctx, nil)
	return err
}

var errOtherTopics = errors.New("the broker answered for other topics than requested")

type description struct {
	found      map[string]*Layout
	controller int32
}

// DescribeTopic returns the layout of a topic and the broker that is the controller. A topic without partitions is not ready
// yet, and LeaderNotAvailable.
func (c *Cluster) DescribeTopic(ctx context.Context, topic string) (found *Layout, controller int32, err error) {
	err = retryOnce(ctx, func() error { // concurrent calls share one metadata request
		all, err := c.descriptions.Submit(ctx, topic)
		if found, controller = all.found[topic], all.controller; err == nil && found == nil {
			err = errOtherTopics
		}
		if err == nil {
			err = found.Err
		}
		return err
	})
	if err == nil && len(found.Leads) == 0 {
		err = kafka.LeaderNotAvailable
	}
	return found, controller, err
}

// DescribeTopics returns the layouts of topics by name, each with its own error, and the controller.
func (c *Cluster) DescribeTopics(ctx context.Context, topics []string) (all map[string]*Layout, controller int32, err error) {
	r, err := c.requestMetadata(ctx, anyBroker, topics)
	if err != nil {
		return nil, anyBroker, err
	}
	c.pool.setAddresses(r.Brokers)
	all = make(map[string]*Layout, len(r.Topics))
	for i := range r.Topics {
		all[topicName(&r.Topics[i])] = newLayout(&r.Topics[i])
	}
	return all, r.ControllerID, nil
}

// Topics returns the names of all topics that this user may describe.
func (c *Cluster) Topics(ctx context.Context) (names []string, err error) {
	r, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, c.to(anyBroker)) // null asks for all
	if err != nil {
		return nil, err
	}
	for i := range r.Topics {
		names = append(names, topicName(&r.Topics[i]))
	}
	return names, nil
}

func (c *Cluster) requestMetadata(ctx context.Context, broker int32, topics []string) (*kmsg.MetadataResponse, error) {
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{} // null asks for all
	for i := range topics {
		request.Topics = append(request.Topics, kmsg.MetadataRequestTopic{Topic: &topics[i]})
	}
	return request.RequestWith(ctx, c.to(broker))
}

func topicName(t *kmsg.MetadataResponseTopic) string {
	if t.Topic == nil {
		return ""
	}
	return *t.Topic
}

// TopicShape is what brokers agree on about a topic.
type TopicShape struct {
	ID         protocol.TopicID
	Partitions int // 0 if it does not exist
}

// TopicShapes asks every broker of the cluster for the shapes of topics. It leaves out topics on which those that answer
// within the timeout do not agree, as they do not for a while after a change, and returns none unless most brokers answer.
// complete: all of them have.
func (c *Cluster) TopicShapes(ctx context.Context, topics []string, timeout time.Duration) (shapes map[string]TopicShape, complete bool) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answers, failed, err := c.askAllBrokers(ctx, topics)
	brokers := len(failed)
	if err != nil || 2*len(answers) <= brokers {
		return nil, false
	}
	votes := map[string]int{}
	shapes = map[string]TopicShape{}
	for _, r := range answers {
		for i := range r.Topics {
			topic, found := topicName(&r.Topics[i]), newLayout(&r.Topics[i])
			shape := TopicShape{found.ID, len(found.Leads)}
			if errors.Is(found.Err, kafka.UnknownTopicOrPartition) != (shape.Partitions == 0) {
				continue // the broker is not certain
			}
			if votes[topic] == 0 {
				shapes[topic] = shape
			}
			if shapes[topic] == shape {
				votes[topic]++
			}
		}
	}
	maps.DeleteFunc(shapes, func(topic string, _ TopicShape) bool { return votes[topic] < len(answers) })
	return shapes, len(answers) == brokers
}

// askAllBrokers asks every broker of the cluster for the metadata of topics. It returns the answers, and for each broker nil
// or why it has not answered. The error is that no broker names the others.
func (c *Cluster) askAllBrokers(ctx context.Context, topics []string) (answers []*kmsg.MetadataResponse, failed []error, err error) {
	known, err := c.requestMetadata(ctx, anyBroker, nil)
	if err != nil {
		return nil, nil, c.SinkError(ctx, "", err)
	}
	c.pool.setAddresses(known.Brokers)
	answers, failed = make([]*kmsg.MetadataResponse, len(known.Brokers)), make([]error, len(known.Brokers))
	var asked sync.WaitGroup
	for i, b := range known.Brokers {
		asked.Go(func() {
			r, err := c.requestMetadata(ctx, b.NodeID, topics)
			if answers[i] = r; err != nil {
				answers[i], failed[i] = nil, c.pool.brokerError(b.NodeID, err)
			}
		})
	}
	asked.Wait()
	return slices.DeleteFunc(answers, func(r *kmsg.MetadataResponse) bool { return r == nil }), failed, nil
}

// CheckBrokers connects to every broker that the cluster advertises, and returns why some of them cannot be reached.
func (c *Cluster) CheckBrokers(ctx context.Context) error {
	_, failed, err := c.askAllBrokers(ctx, nil)
	return errors.Join(append(failed, err)...)
}

// IsNewestLead reports whether every broker of the cluster answers within the timeout, and none of them knows a newer leader
// of a partition: one that is cut off from the others, or lags, names an older one.
func (c *Cluster) IsNewestLead(ctx context.Context, by Lead, p Partition, timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answers, failed, err := c.askAllBrokers(ctx, []string{p.Topic})
	for _, r := range answers {
		for i := range r.Topics {
			if lead, _ := newLayout(&r.Topics[i]).Lead(p.Index); lead.Epoch > by.Epoch {
				return false
			}
		}
	}
	return err == nil && len(failed) > 0 && len(answers) == len(failed)
}

func newLayout(t *kmsg.MetadataResponseTopic) *Layout {
	if err := protocol.CodeError(t.ErrorCode, nil); err != nil {
		return &Layout{Err: err}
	}
	d := &Layout{ID: t.TopicID, Leads: make([]Lead, len(t.Partitions))}
	for i := range d.Leads {
		d.Leads[i] = Lead{-1, -1}
	}
	for i, p := range t.Partitions {
		if int(p.Partition) < len(d.Leads) {
			d.Leads[p.Partition] = Lead{p.Leader, p.LeaderEpoch}
		}
		if i == 0 || len(p.Replicas) < d.Replicas {
			d.Replicas = len(p.Replicas)
		}
	}
	return d
}

// maxTopicsPerRequest bounds the topics of one request, whose answer has some twenty settings of each.
const maxTopicsPerRequest = 500

// topicSettings is the configuration of a topic, or the broker's error for it.
type topicSettings struct {
	values map[string]string
	err    error
}

// TopicSettings returns the effective configuration of a topic, broker defaults included. Concurrent calls share requests.
func (c *Cluster) TopicSettings(ctx context.Context, topic string) (map[string]string, error) {
	all, err := c.settings.Submit(ctx, []string{topic})
	if err != nil {
		return nil, err
	}
	one, answered := all[topic]
	if !answered {
		return nil, errOtherTopics
	}
	return one.values, one.err
}

// TopicNumbers returns a setting of topics that is a number, as far as it is known.
func (c *Cluster) TopicNumbers(ctx context.Context, topics []string, setting string) map[string]int {
	all, _ := c.settings.Submit(ctx, topics) // nil after an error
	numbers := map[string]int{}
	for topic, one := range all {
		if n, err := strconv.Atoi(one.values[setting]); err == nil {
			numbers[topic] = n
		}
	}
	return numbers
}

func (c *Cluster) describeSettings(questions [][]string) (map[string]topicSettings, error) {
	all := map[string]topicSettings{}
	topics := slices.Compact(slices.Sorted(slices.Values(slices.Concat(questions...))))
	for some := range slices.Chunk(topics, maxTopicsPerRequest) {
		request := kmsg.NewPtrDescribeConfigsRequest()
		for _, topic := range some {
			request.Resources = append(request.Resources, kmsg.DescribeConfigsRequestResource{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: topic})
		}
		answer, err := request.RequestWith(c.runCtx, c.to(anyBroker))
		if err != nil {
			return nil, err
		}
		for _, r := range answer.Resources {
			one := topicSettings{values: map[string]string{}, err: protocol.CodeError(r.ErrorCode, r.ErrorMessage)}
			for _, entry := range r.Configs {
				if one.values[entry.Name] = ""; entry.Value != nil {
					one.values[entry.Name] = *entry.Value
				}
			}
			all[r.ResourceName] = one
		}
	}
	return all, nil
}

// NewTopic is a topic to create.
type NewTopic struct {
	Name                 string
	Partitions, Replicas int         // 0: the default of the broker
	Settings             [][2]string // names and values
}

// request returns what asks for the topic.
func (t NewTopic) request() kmsg.CreateTopicsRequestTopic {
	const byDefault = -1
	r := kmsg.CreateTopicsRequestTopic{Topic: t.Name, NumPartitions: cmp.Or(int32(t.Partitions), byDefault),
		ReplicationFactor: cmp.Or(int16(t.Replicas), byDefault)}
	for _, s := range t.Settings {
		r.Configs = append(r.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: s[0], Value: &s[1]})
	}
	return r
}

// creation is a topic to create, and the broker that is the controller.
type creation struct {
	controller int32
	topic      NewTopic
}

// createTopics creates topics unless they exist, and returns the errors of those that the controller refuses.
func (c *Cluster) createTopics(wanted []creation) (map[string]error, error) {
	failed := map[string]error{}
	var created []string
	for some := range slices.Chunk(wanted, maxTopicsPerRequest) {
		request := kmsg.NewPtrCreateTopicsRequest()
		request.TimeoutMillis = int32(c.timeout.Milliseconds() / 2)
		for i, one := range some {
			if !slices.ContainsFunc(some[:i], func(before creation) bool { return before.topic.Name == one.topic.Name }) {
				request.Topics = append(request.Topics, one.topic.request()) // a broker refuses a topic that a request names twice
			}
		}
		// The bound includes the wait of a throttled connection: the next round may know another controller.
		ctx, cancel := context.WithTimeout(c.runCtx, c.timeout)
		answer, err := request.RequestWith(ctx, c.to(some[len(some)-1].controller))
		cancel()
		if err != nil {
			return nil, err
		}
		for _, t := range answer.Topics {
			if kafka.Error(t.ErrorCode) == kafka.TopicAlreadyExists {
				continue
			}
			if err := protocol.CodeError(t.ErrorCode, t.ErrorMessage); err != nil {
				failed[t.Topic] = err
				continue
			}
			created = append(created, t.Topic)
		}
	}
	c.reportCreated(created)
	return failed, nil
}

// createdEvery is for how long created topics share a line: a first start creates one for each type.
const createdEvery = 30 * time.Second

// reportCreated logs created topics, together with those that follow.
func (c *Cluster) reportCreated(names []string) {
	c.createdMu.Lock()
	defer c.createdMu.Unlock()
	if c.created = append(c.created, names...); len(c.created) > len(names) || len(names) == 0 {
		return // the line is on its way
	}
	c.requests.Go(func() {
		_ = ratelimit.Sleep(c.runCtx, createdEvery)
		c.createdMu.Lock()
		defer c.createdMu.Unlock()
		c.log.Info("topics created", "count", len(c.created), "first", c.created[:min(len(c.created), 3)])
		c.created = nil
	})
}

// IsPendingCreation reports whether CreateTopic has failed only because no broker reports the created topic yet.
func IsPendingCreation(err error) bool {
	return errors.Is(err, kafka.UnknownTopicOrPartition) || errors.Is(err, kafka.LeaderNotAvailable)
}

// CreateTopic creates a topic unless it exists, and waits up to 2 s until a broker reports its partitions: brokers learn of
// a new topic one after the other. Concurrent calls share requests.
func (c *Cluster) CreateTopic(ctx context.Context, controller int32, topic NewTopic) (*Layout, error) {
	failed, err := c.creations.Submit(ctx, creation{controller, topic})
	if err == nil {
		err = failed[topic.Name]
	}
	if err != nil {
		return nil, err
	}
	const pause, tries = 50 * time.Millisecond, 40
	for try := 1; ; try++ {
		created, _, err := c.DescribeTopic(ctx, topic.Name)
		if !IsPendingCreation(err) || try == tries {
			return created, c.SinkError(ctx, topic.Name, err)
		}
		if err := ratelimit.Sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}
