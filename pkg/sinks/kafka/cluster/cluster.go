package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// anyBroker stands for the broker that answers first.
const anyBroker = -1

// Cluster sends requests to the brokers of a Kafka cluster. It is safe for concurrent use.
type Cluster struct {
	Dialer    *connection.Dialer // changed by tests only, before the first request
	addresses string             // the configured addresses, for messages
	timeout   time.Duration      // of one request
	log       *slog.Logger
	throttles *throttleSet
	pool      *connectionPool
	runCtx    context.Context
	cancelRun context.CancelCauseFunc
	requests  sync.WaitGroup // goroutines that wait for answers

	descriptions *Coalescer[string, description]                // of topics, by name
	settings     *Coalescer[[]string, map[string]topicSettings] // of topics, by name
	createdMu    sync.Mutex
	created      []string                               // topics that are not in the log yet
	creations    *Coalescer[creation, map[string]error] // of topics
}

// Options configure the connections to a cluster.
type Options struct {
	Brokers  []string // bootstrap addresses, "host:port"
	ClientID string
	TLS      auth.TLS
	SASL     auth.SASL
	Timeout  time.Duration // of one request
}

// New returns a client of a cluster and reads the credential files that cfg names. It opens no connection. The caller closes
// it.
func New(cfg Options, log *slog.Logger) (*Cluster, error) {
	if _, err := cfg.TLS.ClientConfig(""); err != nil { // a wrong path fails at start, not at the first connection
		return nil, err
	}
	mechanism, err := cfg.SASL.NewMechanism(cfg.Timeout)
	if err != nil {
		return nil, err
	}
	c := &Cluster{addresses: strings.Join(cfg.Brokers, ", "), timeout: cfg.Timeout, log: log}
	c.Dialer = &connection.Dialer{ClientID: cfg.ClientID, TLS: cfg.TLS, Mechanism: mechanism, Timeout: cfg.Timeout,
		DialContext: new(net.Dialer).DialContext}
	c.runCtx, c.cancelRun = context.WithCancelCause(context.Background())
	c.throttles = &throttleSet{ctx: c.runCtx, condition: condition.New(log, "", condition.Problem{}), times: map[endpoint]*throttle{},
		remedy: fmt.Sprintf("if delivery is too slow, raise producer_byte_rate of the client ID %q or of its user", cfg.ClientID)}
	c.pool = &connectionPool{ctx: c.runCtx, dialer: c.Dialer, throttles: c.throttles, seeds: cfg.Brokers, addresses: map[int32]string{},
		links: map[endpoint]*link{}, reached: map[string]bool{}}
	c.throttles.query, c.throttles.replace = c.pool.queryThrottle, c.pool.replaceMuted
	c.descriptions = NewCoalescer(c.requests.Go, func(topics []string) (d description, err error) {
		d.found, d.controller, err = c.DescribeTopics(c.runCtx, topics)
		return d, err
	})
	c.settings = NewCoalescer(c.requests.Go, c.describeSettings)
	c.creations = NewCoalescer(c.requests.Go, c.createTopics)
	return c, nil
}

// Produce sends a batch to the leader of a partition. It does not wait for the answer, which the returned value delivers.
func (c *Cluster) Produce(leader int32, b protocol.RecordBatch, purpose Purpose) (*connection.Pending, error) {
	to, err := c.pool.connectionTo(leader, purpose)
	if err != nil {
		return nil, err
	}
	return to.Produce(b), nil
}

// requestor sends requests to one broker, or any, over its connections of one purpose.
type requestor struct {
	*Cluster
	broker  int32
	purpose Purpose
}

var _ kmsg.Requestor = requestor{}

func (c *Cluster) to(broker int32) requestor { return requestor{c, broker, forRequests} }

// Request implements [kmsg.Requestor]. It waits for the answer for at most the request timeout, which starts when a
// throttled broker reads again.
func (c requestor) Request(ctx context.Context, request kmsg.Request) (kmsg.Response, error) {
	if c.broker == anyBroker {
		ctx, cancel := context.WithTimeout(ctx, c.timeout)
		defer cancel()
		return c.requestAny(ctx, request)
	}
	to, err := c.pool.connectionTo(c.broker, c.purpose)
	if errors.Is(err, errUnknownBroker) {
		if err := c.Ping(ctx); err != nil { // its answer has the addresses of all brokers
			return nil, err
		}
		to, err = c.pool.connectionTo(c.broker, c.purpose)
	}
	if err != nil {
		return nil, err
	}
	if err := to.WaitUntilReady(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return to.RoundTrip(ctx, request)
}

// requestAny sends a request to one broker after the other, to the next one when one fails or has not answered within
// hedgeAfter, and returns the first answer.
func (c *Cluster) requestAny(ctx context.Context, request kmsg.Request) (kmsg.Response, error) {
	type answer struct {
		message kmsg.Response
		err     error
	}
	addresses := c.pool.candidateAddresses()
	answers := make(chan answer, len(addresses)) // buffered: a late answer must not block its goroutine
	hedge := time.NewTicker(hedgeAfter)
	defer hedge.Stop()
	asked := 0
	sendNext := func() {
		if len(addresses) == 0 {
			return
		}
		to := c.pool.openLinkNow(endpoint{address: addresses[0]})
		addresses, asked = addresses[1:], asked+1
		c.requests.Go(func() {
			m, err := to.RoundTrip(ctx, request)
			answers <- answer{m, err}
		})
	}
	sendNext()
	var failed error
	for asked > 0 {
		select {
		case a := <-answers:
			if a.err == nil {
				return a.message, nil
			}
			if asked--; failed == nil || IsTimeout(failed) || !IsTimeout(a.err) && a.err.Error() < failed.Error() {
				// every other error explains more than a timeout, and of several the same one is chosen each time
				failed = a.err
			}
			sendNext()
		case <-hedge.C:
			sendNext()
		}
	}
	return nil, failed
}

// retryOnce repeats a request after a network failure: the first failure is often a connection that the broker closed while
// it was idle.
func retryOnce(ctx context.Context, request func() error) error {
	err := request()
	if err == nil || protocol.IsBrokerError(err) || ctx.Err() != nil {
		return err
	}
	return request()
}

// Throttling returns whether a quota delays requests, and for how long.
func (c *Cluster) Throttling() condition.Status { return c.throttles.status() }

// ThrottledFor returns how long the last of all throttled brokers will not read; at most zero when none is.
func (c *Cluster) ThrottledFor() time.Duration { return c.throttles.remaining() }

// Close ends every connection and waits within ctx until their goroutines have ended.
func (c *Cluster) Close(ctx context.Context) error {
	c.cancelRun(connection.ErrClosed)
	c.requests.Wait()
	err := c.pool.waitClosed(ctx)
	c.throttles.close()
	return err
}
