package kafka

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	kproto "github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/createtopics"
	"github.com/segmentio/kafka-go/protocol/describeconfigs"
	"github.com/segmentio/kafka-go/protocol/initproducerid"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

const (
	acksAll   = -1
	anyBroker = -1 // an answer may come from whichever of the configured brokers is connected

	// dropInterval bounds how often idle connections are thrown away: often enough that a restarted broker is met
	// afresh, rarely enough that a broken one does not cost every lane its connection each time.
	dropInterval = time.Second
	// layoutInterval is how often, at most, the library looks for brokers that came, went or moved. Topics are not
	// part of that: the sink asks about each of its own when it has a reason to.
	layoutInterval = 5 * time.Second
)

// cluster sends requests to chosen brokers. It is safe for concurrent use.
type cluster struct {
	brokers   string // the configured addresses, for people
	addr      kafkaAddr
	transport *kafka.Transport
	conns     *connections
	clientID  string
	timeout   time.Duration
	requests  atomic.Int32
	throttle  *throttle

	mu      sync.Mutex
	dropped time.Time
}

// kafkaAddr is the form in which the library takes several addresses.
type kafkaAddr interface {
	Network() string
	String() string
}

func newCluster(cfg Config, log *slog.Logger) (*cluster, error) {
	if _, err := cfg.TLS.ClientConfig(""); err != nil { // a wrong path shows at start
		return nil, err
	}
	mechanism, err := cfg.SASL.NewMechanism(cfg.RequestTimeout)
	if err != nil {
		return nil, err
	}
	conns := newConnections(cfg.TLS)
	return &cluster{
		brokers: strings.Join(cfg.Brokers, ", "), addr: kafka.TCP(cfg.Brokers...), conns: conns,
		clientID: cfg.ClientID, timeout: cfg.RequestTimeout, throttle: newThrottle(cfg.ClientID, log),
		transport: &kafka.Transport{
			Dial: conns.dial, DialTimeout: cfg.RequestTimeout, ClientID: cfg.ClientID, SASL: mechanism,
			MetadataTTL: layoutInterval, MetadataTopics: []string{}, // empty, not nil: none, not all
		},
	}, nil
}

// directed is a request on its way to one chosen broker. It exchanges bytes on the connection itself, because the
// library otherwise answers metadata from a cache, routes producer IDs over a transaction coordinator, and finds
// partition leaders only by loading the metadata of every topic there is.
type directed struct {
	kproto.Message
	broker      int32
	correlation int32
	clientID    string
	version     int16
	offered     bool // the broker knows such requests
}

// Exchanger is a request that the library cannot write and read by itself.
type Exchanger interface {
	Exchange(rw io.ReadWriter, version int16, correlation int32, clientID string) (kproto.Message, error)
}

// answered wraps an answer, so that the library does not act on its type.
type answered struct{ kproto.Message }

var (
	_ kproto.BrokerMessage = (*directed)(nil)
	_ kproto.RawExchanger  = (*directed)(nil)
)

func (d *directed) Broker(kproto.Cluster) (kproto.Broker, error) {
	return kproto.Broker{ID: d.broker}, nil
}

func (d *directed) Required(versions map[kproto.ApiKey]int16) bool {
	d.version, d.offered = versions[d.ApiKey()]
	return true
}

func (d *directed) RawExchange(rw io.ReadWriter) (kproto.Message, error) {
	if !d.offered {
		return answered{&protocol.RawResponse{Key: d.ApiKey(), Unsupported: true}}, nil
	}
	if own, ok := d.Message.(Exchanger); ok {
		m, err := own.Exchange(rw, d.version, d.correlation, d.clientID)
		if err != nil {
			return nil, err
		}
		return answered{m}, nil
	}
	m, err := kproto.RoundTrip(rw, d.version, d.correlation, d.clientID, d.Message)
	if err != nil {
		return nil, err
	}
	return answered{m}, nil
}

// ask sends one request, as soon as the broker listens, and waits for the answer, at most for the request timeout.
func (c *cluster) ask(ctx context.Context, broker int32, request kproto.Message) (kproto.Message, error) {
	if err := c.throttle.wait(ctx, broker); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return c.send(ctx, broker, request)
}

// unanswered is why a request got no answer, and when it was begun.
type unanswered struct {
	error
	began time.Time
}

func (u *unanswered) Unwrap() error { return u.error }

// send sends one request and waits for the answer until ctx ends. When it fails without an answer the library may go on
// sending for a while: whatever the request refers to must not be changed any more.
func (c *cluster) send(ctx context.Context, broker int32, request kproto.Message) (kproto.Message, error) {
	began := time.Now()
	m, err := c.roundTrip(ctx, broker, request)
	if errors.Is(err, protocol.ErrNotRouted) && c.reroute(ctx) {
		m, err = c.roundTrip(ctx, broker, request)
	}
	if err != nil {
		c.drop()
		return nil, &unanswered{err, began}
	}
	answer := m.(answered).Message
	if r, ok := answer.(*protocol.RawResponse); ok && r.Unsupported {
		return nil, kafka.UnsupportedVersion
	}
	return answer, nil
}

func (c *cluster) roundTrip(ctx context.Context, broker int32, request kproto.Message) (kproto.Message, error) {
	return c.transport.RoundTrip(ctx, c.addr, &directed{
		Message: request, broker: broker, correlation: c.requests.Add(1), clientID: c.clientID,
	})
}

// retryOnce asks again when the network fails: the first failure is often just a connection that a broker closed while it was
// idle.
func retryOnce(ctx context.Context, request func() error) error {
	err := request()
	if err == nil || protocol.FromBroker(err) || ctx.Err() != nil {
		return err
	}
	return request()
}

// reroute makes the library look for the brokers again, as soon as drop does that, and says whether ctx lasted so long.
// Otherwise a broker that came up, or let us in, only after the library looked would be passed over until it looks next.
func (c *cluster) reroute(ctx context.Context) bool {
	c.mu.Lock()
	wait := time.Until(c.dropped.Add(dropInterval))
	c.mu.Unlock()
	select {
	case <-time.After(wait):
		c.drop()
		return true
	case <-ctx.Done():
		return false
	}
}

// drop throws idle connections and the known brokers away, at most once per dropInterval: after one broken connection
// others to the same broker are broken too, and a broker may have come back under another address.
func (c *cluster) drop() {
	c.mu.Lock()
	due := time.Since(c.dropped) >= dropInterval
	if due {
		c.dropped = time.Now()
	}
	c.mu.Unlock()
	if due {
		c.transport.CloseIdleConnections()
	}
}

// produce writes batches of one partition, each given with its length prefix, one behind the other without waiting. It
// returns the answers to the first of them, nil where a batch is durable, and why there are no more. It takes the request
// timeout at most, and as long as the broker says in the meantime that it does not listen. The caller waits before it calls
// if the broker has said so already.
func (c *cluster) produce(ctx context.Context, leader int32, topic string, partition int32, batches ...[]byte) (produceAnswers, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &exchangeDeadline{throttle: c.throttle, broker: leader, timeout: c.timeout, until: time.Now().Add(c.timeout)}
	p.timer = time.AfterFunc(c.timeout, func() { cancel(context.DeadlineExceeded) })
	defer p.timer.Stop()
	// Half of what we wait ourselves, so that the broker gives up first and says so.
	half := int32(c.timeout.Milliseconds() / 2)
	m, err := c.send(ctx, leader, &pipelinedProduce{topic: topic, partition: partition, timeout: half, batches: batches, deadline: p})
	var short *cutShort
	switch {
	case errors.As(err, &short):
		return short.answered, err
	case err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return nil, context.DeadlineExceeded
	case err != nil:
		return nil, err
	}
	return m.(produceAnswers), nil
}

// askPlain sends a request that the library does not know.
func (c *cluster) askPlain(ctx context.Context, broker int32, request *protocol.RawRequest) (*protocol.RawResponse, error) {
	answer, err := c.ask(ctx, broker, request)
	if err != nil {
		return nil, err
	}
	return answer.(*protocol.RawResponse), nil
}

// producer asks the leader of a partition what it knows about a producer (KIP-664). known is false when that is nothing.
func (c *cluster) producer(ctx context.Context, leader int32, topic string, partition int32, id int64) (at protocol.ProducerAt, known bool, err error) {
	r, err := c.askPlain(ctx, leader, protocol.NewDescribeProducers(topic, partition))
	if err != nil {
		return protocol.ProducerAt{}, false, err
	}
	return protocol.ReadProducer(r, id)
}

// endOfLog asks the leader of a partition for the end of its log, whether or not that is replicated.
func (c *cluster) endOfLog(ctx context.Context, lead lead, topic string, partition int32) (int64, error) {
	r, err := c.askPlain(ctx, lead.broker, protocol.NewEndOfLog(topic, partition, lead.epoch))
	if err != nil {
		return 0, err
	}
	return protocol.ReadEndOfLog(r)
}

// replicated asks the leader of a partition up to where all in-sync replicas have its log.
func (c *cluster) replicated(ctx context.Context, lead lead, topic string, partition int32) (int64, error) {
	const latest = -1
	answer, err := c.ask(ctx, lead.broker, &listoffsets.Request{ReplicaID: -1, Topics: []listoffsets.RequestTopic{{
		Topic:      topic,
		Partitions: []listoffsets.RequestPartition{{Partition: partition, CurrentLeaderEpoch: lead.epoch, Timestamp: latest}},
	}}})
	if err != nil {
		return 0, err
	}
	topics := answer.(*listoffsets.Response).Topics
	if len(topics) != 1 || len(topics[0].Partitions) != 1 {
		return 0, protocol.ErrMalformed
	}
	p := topics[0].Partitions[0]
	return p.Offset, protocol.CodeError(p.ErrorCode, "")
}

// producerID asks for a new producer ID, which has epoch 0. It needs no transaction coordinator (KIP-98).
func (c *cluster) producerID(ctx context.Context) (id int64, epoch int16, err error) {
	answer, err := c.ask(ctx, anyBroker, &initproducerid.Request{
		TransactionTimeoutMs: int32(time.Minute.Milliseconds()), ProducerID: -1, ProducerEpoch: -1,
	})
	if err != nil {
		return 0, 0, err
	}
	r := answer.(*initproducerid.Response)
	return r.ProducerID, r.ProducerEpoch, protocol.CodeError(r.ErrorCode, "")
}

// lead is who leads a partition, and in which epoch (-1: the broker does not say). broker is -1 where nobody does.
type lead struct {
	broker int32
	epoch  int32
}

// description is what a cluster says about a topic.
type description struct {
	leads    []lead // by partition
	replicas int    // of the partition that has fewest
	err      error  // why there is nothing to say
}

// ping finds a broker that lets us in.
func (c *cluster) ping(ctx context.Context) error {
	_, err := c.ask(ctx, anyBroker, &metadata.Request{TopicNames: []string{}}) // empty, not nil: no topics, not all
	return err
}

// describe asks about a topic: who leads its partitions, and for that matter the cluster.
func (c *cluster) describe(ctx context.Context, topic string) (d description, controller int32, err error) {
	all, controller, err := c.describeAll(ctx, []string{topic})
	if err != nil {
		return d, controller, err
	}
	d, known := all[topic]
	if !known {
		return d, controller, errors.New("the broker answered for other topics than asked for")
	}
	return d, controller, d.err
}

// describeAll asks about some topics.
func (c *cluster) describeAll(ctx context.Context, topics []string) (all map[string]description, controller int32, err error) {
	answer, err := c.ask(ctx, anyBroker, &metadata.Request{TopicNames: topics})
	if err != nil {
		return nil, anyBroker, err
	}
	r := answer.(*metadata.Response)
	all = make(map[string]description, len(r.Topics))
	for _, t := range r.Topics {
		all[t.Name] = describe(t)
	}
	return all, r.ControllerID, nil
}

func describe(t metadata.ResponseTopic) description {
	if err := protocol.CodeError(t.ErrorCode, ""); err != nil {
		return description{err: err}
	}
	d := description{leads: make([]lead, len(t.Partitions))}
	for i := range d.leads {
		d.leads[i] = lead{-1, -1}
	}
	for i, p := range t.Partitions {
		if int(p.PartitionIndex) < len(d.leads) {
			d.leads[p.PartitionIndex] = lead{p.LeaderID, p.LeaderEpoch}
		}
		if i == 0 || len(p.ReplicaNodes) < d.replicas {
			d.replicas = len(p.ReplicaNodes)
		}
	}
	return d
}

// settings asks how a topic is configured; defaults of the brokers are in it.
func (c *cluster) settings(ctx context.Context, topic string) (map[string]string, error) {
	const topics = 2 // type of resource
	answer, err := c.ask(ctx, anyBroker, &describeconfigs.Request{Resources: []describeconfigs.RequestResource{{ResourceType: topics, ResourceName: topic}}})
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

// create makes a topic; one that exists already is a success.
func (c *cluster) create(ctx context.Context, controller int32, topic string, how CreateTopics) error {
	request := createtopics.RequestTopic{Name: topic, NumPartitions: -1, ReplicationFactor: -1}
	if how.Partitions > 0 {
		request.NumPartitions = int32(how.Partitions)
	}
	if how.ReplicationFactor > 0 {
		request.ReplicationFactor = int16(how.ReplicationFactor)
	}
	for _, entry := range how.Configs {
		request.Configs = append(request.Configs, createtopics.RequestConfig(entry))
	}
	answer, err := c.ask(ctx, controller, &createtopics.Request{
		Topics: []createtopics.RequestTopic{request}, TimeoutMs: int32(c.timeout.Milliseconds() / 2),
	})
	if err != nil {
		return err
	}
	for _, t := range answer.(*createtopics.Response).Topics {
		if kafka.Error(t.ErrorCode) == kafka.TopicAlreadyExists {
			continue
		}
		if err := protocol.CodeError(t.ErrorCode, t.ErrorMessage); err != nil {
			return err
		}
	}
	return nil
}

// close ends every connection and waits for the goroutines that serve them, within ctx.
func (c *cluster) close(ctx context.Context) error {
	c.throttle.close()
	c.transport.CloseIdleConnections()
	return c.conns.close(ctx)
}
