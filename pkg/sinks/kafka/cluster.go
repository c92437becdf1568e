package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	kproto "github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/createtopics"
	"github.com/segmentio/kafka-go/protocol/describeconfigs"
	"github.com/segmentio/kafka-go/protocol/initproducerid"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

const (
	anyBroker = -1 // whichever answers first

	// probeInterval is how often a connection to a broker that is away is tried, at most.
	probeInterval = time.Second
	// hedgeAfter is for how long one broker is waited for, if any can answer, before the next is asked, too.
	hedgeAfter = time.Second
)

var errNoBroker = errors.New("the cluster has not named it")

// cluster sends requests to chosen brokers, over connections that each broker has to itself. It is safe for concurrent use.
type cluster struct {
	brokers  string   // the configured addresses, for people
	seeds    []string // the same
	dialer   *connection.Dialer
	timeout  time.Duration
	throttle *throttle
	open     context.Context
	shut     context.CancelCauseFunc
	asking   chan struct{} // holds a token while topics are asked about
	running  sync.WaitGroup

	mu        sync.Mutex
	addresses map[int32]string // of brokers
	links     map[endpoint]*link
	inquiry   *inquiry // that is asked next; nil: nobody wants to know anything
}

// endpoint is one end of a connection.
type endpoint struct {
	address string
	purpose purpose
}

// purpose is what a connection is for. A broker answers the requests of a connection in order, and a produce request only
// when all in-sync replicas have what is written. So questions go elsewhere, and so do partitions whose replicas are slow,
// and what is read back.
type purpose int

const (
	forQuestions purpose = iota
	forProducing
	forSlowReplicas
	forReading
)

// link is the connection to an endpoint, which is opened again when it has failed.
type link struct {
	connection *connection.Connection
	opened     time.Time
	away       error // why the broker is not there; nil: it is, or nobody has tried
}

func newCluster(cfg Config, log *slog.Logger) (*cluster, error) {
	if _, err := cfg.TLS.ClientConfig(""); err != nil { // a wrong path shows at start
		return nil, err
	}
	mechanism, err := cfg.SASL.NewMechanism(cfg.RequestTimeout)
	if err != nil {
		return nil, err
	}
	c := &cluster{
		brokers: strings.Join(cfg.Brokers, ", "), seeds: cfg.Brokers,
		timeout: cfg.RequestTimeout, throttle: newThrottle(cfg.ClientID, log), asking: make(chan struct{}, 1),
		addresses: map[int32]string{}, links: map[endpoint]*link{},
	}
	c.dialer = &connection.Dialer{ClientID: cfg.ClientID, TLS: cfg.TLS, Mechanism: mechanism, Timeout: cfg.RequestTimeout,
		Reach: new(net.Dialer).DialContext, Throttle: c.throttle}
	c.open, c.shut = context.WithCancelCause(context.Background())
	return c, nil
}

// connect returns the connection to an endpoint, opening it where there is none. A broker that is away is tried again now
// and then; until it is back, away says why it is not there, and there may be no connection.
func (c *cluster) connect(to endpoint) (_ *connection.Connection, away error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[to]
	if l == nil {
		l = &link{}
		c.links[to] = l
	}
	if l.connection != nil {
		switch up, err := l.connection.State(); {
		case err != nil:
			if l.connection = nil; !up || isTimeout(err) {
				l.away = err
			}
		case up:
			l.away = nil
		}
	}
	if l.connection == nil && (l.away == nil || time.Since(l.opened) >= probeInterval) {
		l.connection, l.opened = connection.Open(c.open, c.dialer, to.address), time.Now()
	}
	return l.connection, l.away
}

// isTimeout says whether somebody has not answered in time.
func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// reach returns the connection to a broker, or at once why that is not there.
func (c *cluster) reach(broker int32, to purpose) (*connection.Connection, error) {
	c.mu.Lock()
	address, known := c.addresses[broker]
	c.mu.Unlock()
	if !known {
		return nil, fmt.Errorf("broker %d: %w", broker, errNoBroker)
	}
	found, away := c.connect(endpoint{address, to})
	if away != nil {
		return nil, &sinks.ProbedError{Every: probeInterval, Err: fmt.Errorf("broker %d at %s does not answer: %w", broker, address, away)}
	}
	return found, nil
}

// produce sends a batch to the leader of a partition, and does not wait for what becomes of it.
func (c *cluster) produce(leader int32, b connection.Batch, over purpose) (*connection.Pending, error) {
	to, err := c.reach(leader, over)
	if err != nil {
		return nil, err
	}
	return to.Produce(b), nil
}

// ask sends one request, as soon as the broker listens, and waits for the answer, at most for the request timeout.
func (c *cluster) ask(ctx context.Context, broker int32, request kproto.Message) (kproto.Message, error) {
	if broker == anyBroker {
		ctx, cancel := context.WithTimeout(ctx, c.timeout)
		defer cancel()
		return c.askAny(ctx, request)
	}
	return c.askOver(ctx, broker, forQuestions, request)
}

// askOver is ask over a connection of its own kind.
func (c *cluster) askOver(ctx context.Context, broker int32, over purpose, request kproto.Message) (kproto.Message, error) {
	to, err := c.reach(broker, over)
	if errors.Is(err, errNoBroker) {
		if err := c.ping(ctx); err != nil { // it tells the addresses
			return nil, err
		}
		to, err = c.reach(broker, over)
	}
	if err != nil {
		return nil, err
	}
	if err := c.throttle.Wait(ctx, to.Address()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return to.Ask(ctx, request)
}

// askAny asks one broker after the other, the next one when one fails or takes long, and returns the first answer.
func (c *cluster) askAny(ctx context.Context, request kproto.Message) (kproto.Message, error) {
	type answer struct {
		message kproto.Message
		err     error
	}
	rest := c.candidates()
	answers := make(chan answer, len(rest)) // room for those that nobody waits for any more
	hedge := time.NewTicker(hedgeAfter)
	defer hedge.Stop()
	asked := 0
	next := func() {
		if len(rest) == 0 {
			return
		}
		to := c.connectNow(endpoint{address: rest[0]})
		rest, asked = rest[1:], asked+1
		c.running.Go(func() {
			m, err := to.Ask(ctx, request)
			answers <- answer{m, err}
		})
	}
	next()
	var failed error
	for asked > 0 {
		select {
		case a := <-answers:
			if a.err == nil {
				return a.message, nil
			}
			if asked--; failed == nil || isTimeout(failed) { // anything says more than that nothing was said
				failed = a.err
			}
			next()
		case <-hedge.C:
			next()
		}
	}
	return nil, failed
}

// connectNow is connect for who can wait: it opens a connection also to a broker that was away a moment ago.
func (c *cluster) connectNow(to endpoint) *connection.Connection {
	if found, _ := c.connect(to); found != nil {
		return found
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[to]
	if l.connection == nil {
		l.connection, l.opened = connection.Open(c.open, c.dialer, to.address), time.Now()
	}
	return l.connection
}

// candidates returns all addresses at which somebody may answer, the most promising ones first.
func (c *cluster) candidates() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Clone(c.seeds)
	for _, address := range c.addresses {
		if !slices.Contains(all, address) {
			all = append(all, address)
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	slices.SortStableFunc(all, func(a, b string) int { return c.doubt(a) - c.doubt(b) })
	return all
}

// doubt orders addresses by how likely an answer is. mu is held.
func (c *cluster) doubt(address string) int {
	l := c.links[endpoint{address: address}]
	switch {
	case l == nil || l.connection == nil && l.away == nil:
		return 1
	case l.away != nil:
		return 2
	}
	if up, err := l.connection.State(); !up || err != nil || l.connection.Stuck(hedgeAfter) {
		return 2
	}
	return 0
}

// retryOnce asks again when the network fails: the first failure is often just a connection that a broker closed while it
// was idle.
func retryOnce(ctx context.Context, request func() error) error {
	err := request()
	if err == nil || protocol.FromBroker(err) || ctx.Err() != nil {
		return err
	}
	return request()
}

// askForeign sends a request that kafka-go does not know.
func askForeign[A kmsg.Response](ctx context.Context, c *cluster, broker int32, over purpose, request kmsg.Request) (answer A, err error) {
	m, err := c.askOver(ctx, broker, over, protocol.ForeignRequest{Request: request})
	if err != nil {
		return answer, err
	}
	return m.(protocol.ForeignResponse).Response.(A), nil
}

// producer asks the leader of a partition what it knows about a producer (KIP-664); nil when that is nothing.
func (c *cluster) producer(ctx context.Context, leader int32, p partition, id int64) (*kmsg.DescribeProducersResponseTopicPartitionActiveProducer, error) {
	request := kmsg.NewPtrDescribeProducersRequest()
	request.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: p.topic, Partitions: []int32{p.index}}}
	answer, err := askForeign[*kmsg.DescribeProducersResponse](ctx, c, leader, forQuestions, request)
	if err != nil {
		return nil, err
	}
	if len(answer.Topics) != 1 || len(answer.Topics[0].Partitions) != 1 {
		return nil, protocol.ErrMalformed
	}
	found := answer.Topics[0].Partitions[0]
	for i := range found.ActiveProducers {
		if found.ActiveProducers[i].ProducerID == id {
			return &found.ActiveProducers[i], nil
		}
	}
	return nil, protocol.CodeError(found.ErrorCode, "")
}

// endOfLog asks the leader of a partition for the end of its log, whether or not that is replicated (KIP-320).
func (c *cluster) endOfLog(ctx context.Context, by lead, p partition) (int64, error) {
	part := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	part.Partition, part.CurrentLeaderEpoch, part.LeaderEpoch = p.index, by.epoch, by.epoch
	request := kmsg.NewPtrOffsetForLeaderEpochRequest()
	request.SetVersion(3)
	request.Topics = []kmsg.OffsetForLeaderEpochRequestTopic{{Topic: p.topic, Partitions: []kmsg.OffsetForLeaderEpochRequestTopicPartition{part}}}
	answer, err := askForeign[*kmsg.OffsetForLeaderEpochResponse](ctx, c, by.broker, forQuestions, request)
	if err != nil {
		return 0, err
	}
	if len(answer.Topics) != 1 || len(answer.Topics[0].Partitions) != 1 {
		return 0, protocol.ErrMalformed
	}
	found := answer.Topics[0].Partitions[0]
	return found.EndOffset, protocol.CodeError(found.ErrorCode, "")
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

// ping finds a broker that lets us in, and learns the addresses of all.
func (c *cluster) ping(ctx context.Context) error {
	_, _, err := c.describeAll(ctx, []string{}) // empty, not nil: no topics, not all
	return err
}

// inquiry is a question about many topics, which many may wait for.
type inquiry struct {
	topics   []string
	answered chan struct{} // closed when what follows is set

	found      map[string]description
	controller int32
	err        error
}

// describe asks about a topic: who leads its partitions, and for that matter the cluster. What is asked meanwhile is one
// question.
func (c *cluster) describe(ctx context.Context, topic string) (d description, controller int32, err error) {
	c.mu.Lock()
	q := c.inquiry
	if q == nil {
		q = &inquiry{answered: make(chan struct{})}
		c.inquiry = q
		c.running.Go(func() { c.inquire(q) })
	}
	q.topics = append(q.topics, topic)
	c.mu.Unlock()
	select {
	case <-q.answered:
	case <-ctx.Done():
		return d, anyBroker, ctx.Err()
	}
	if q.err != nil {
		return d, q.controller, q.err
	}
	d, known := q.found[topic]
	if !known {
		return d, q.controller, errors.New("the broker answered for other topics than asked for")
	}
	return d, q.controller, d.err
}

// inquire asks a question when the one before is answered.
func (c *cluster) inquire(q *inquiry) {
	c.asking <- struct{}{}
	defer func() { <-c.asking }()
	c.mu.Lock()
	c.inquiry = nil
	c.mu.Unlock()
	q.found, q.controller, q.err = c.describeAll(c.open, q.topics)
	close(q.answered)
}

// describeAll asks about some topics.
func (c *cluster) describeAll(ctx context.Context, topics []string) (all map[string]description, controller int32, err error) {
	answer, err := c.ask(ctx, anyBroker, &metadata.Request{TopicNames: topics})
	if err != nil {
		return nil, anyBroker, err
	}
	r := answer.(*metadata.Response)
	c.learn(r.Brokers)
	all = make(map[string]description, len(r.Topics))
	for _, t := range r.Topics {
		all[t.Name] = describe(t)
	}
	return all, r.ControllerID, nil
}

// learn notes where brokers are.
func (c *cluster) learn(brokers []metadata.ResponseBroker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range brokers {
		c.addresses[b.NodeID] = net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
	}
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

// close ends every connection and waits for what serves it, within ctx.
func (c *cluster) close(ctx context.Context) error {
	c.throttle.close()
	c.shut(connection.ErrClosed)
	c.running.Wait() // nobody is answered any more
	c.mu.Lock()
	links := slices.Collect(maps.Values(c.links))
	c.mu.Unlock()
	for _, l := range links {
		if l.connection == nil {
			continue
		}
		if err := l.connection.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}
