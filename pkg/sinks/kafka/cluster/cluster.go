package cluster

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
	"strings"
	"sync"
	"time"

	kproto "github.com/segmentio/kafka-go/protocol"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

const (
	anyBroker = -1 // whichever answers first

	// ProbeInterval is how often a connection to a broker that is away is tried, and who leads a partition without a leader is
	// asked for, at most. A broker that comes back is waited for twice: until it leads again, and until it is connected.
	ProbeInterval = 500 * time.Millisecond
	// hedgeAfter is for how long one broker is waited for, if any can answer, before the next is asked, too.
	hedgeAfter = time.Second
)

var errNoBroker = errors.New("the cluster has not named it")

// Cluster sends requests to chosen brokers, over connections that each broker has to itself. It is safe for concurrent use.
type Cluster struct {
	Dialer    *connection.Dialer // changed by tests only, before the first request
	brokers   string             // the configured addresses, for people
	seeds     []string           // the same
	timeout   time.Duration
	throttle  *throttle
	log       *slog.Logger
	runCtx    context.Context
	cancelRun context.CancelCauseFunc
	requests  sync.WaitGroup

	descriptions *Coalescer[string, description] // of topics

	mu        sync.Mutex
	addresses map[int32]string // of brokers
	links     map[endpoint]*link
}

// endpoint is one end of a connection.
type endpoint struct {
	address string
	purpose Purpose
}

// Purpose is what a connection is for. A broker answers the requests of a connection in order, and a produce request only
// when all in-sync replicas have what is written. So questions go elsewhere, and so do partitions whose replicas are slow,
// and what is read back.
type Purpose int

// The purposes.
const (
	forRequests Purpose = iota
	ForProducing
	ForSlowReplicas
	forReading
)

// link is the connection to an endpoint, which is opened again when it has failed.
type link struct {
	connection *connection.Connection
	openedAt   time.Time
	lastError  error // why the broker is not there; nil: it is, or nobody has tried
}

// Options say how to connect to a cluster.
type Options struct {
	Brokers  []string // to begin with, "host:port"
	ClientID string
	TLS      auth.TLS
	SASL     auth.SASL
	Timeout  time.Duration // of one request
}

// New returns a cluster, and reads the files that cfg names. It opens no connection.
func New(cfg Options, log *slog.Logger) (*Cluster, error) {
	if _, err := cfg.TLS.ClientConfig(""); err != nil { // a wrong path shows at start
		return nil, err
	}
	mechanism, err := cfg.SASL.NewMechanism(cfg.Timeout)
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		brokers: strings.Join(cfg.Brokers, ", "), seeds: cfg.Brokers,
		timeout: cfg.Timeout, log: log, throttle: newThrottle(cfg.ClientID, log),
		addresses: map[int32]string{}, links: map[endpoint]*link{},
	}
	c.Dialer = &connection.Dialer{ClientID: cfg.ClientID, TLS: cfg.TLS, Mechanism: mechanism, Timeout: cfg.Timeout,
		DialContext: new(net.Dialer).DialContext, Throttle: c.throttle}
	c.runCtx, c.cancelRun = context.WithCancelCause(context.Background())
	c.descriptions = NewCoalescer(c.requests.Go, func(topics []string) (d description, err error) {
		d.found, d.controller, err = c.DescribeTopics(c.runCtx, topics)
		return d, err
	})
	return c, nil
}

// openLink returns the connection to an endpoint, opening it where there is none. A broker that is away is tried again now
// and then; until it is back, away says why it is not there, and there may be no connection.
func (c *Cluster) openLink(to endpoint) (_ *connection.Connection, away error) {
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
			if l.connection = nil; !up || IsTimeout(err) {
				l.lastError = err
			}
		case up:
			l.lastError = nil
		}
	}
	if l.connection == nil && (l.lastError == nil || time.Since(l.openedAt) >= ProbeInterval) {
		l.connection, l.openedAt = connection.Open(c.runCtx, c.Dialer, to.address), time.Now()
	}
	return l.connection, l.lastError
}

// IsTimeout says whether somebody has not answered in time.
func IsTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// connectionTo returns the connection to a broker, or at once why that is not there.
func (c *Cluster) connectionTo(broker int32, to Purpose) (*connection.Connection, error) {
	c.mu.Lock()
	address, known := c.addresses[broker]
	c.mu.Unlock()
	if !known {
		return nil, fmt.Errorf("broker %d: %w", broker, errNoBroker)
	}
	found, away := c.openLink(endpoint{address, to})
	if away != nil {
		return nil, &sinks.ProbedError{Every: ProbeInterval, Err: fmt.Errorf("broker %d at %s does not answer: %w", broker, address, away)}
	}
	return found, nil
}

// Produce sends a batch to the leader of a partition, and does not wait for what becomes of it.
func (c *Cluster) Produce(leader int32, b connection.Batch, over Purpose) (*connection.Pending, error) {
	to, err := c.connectionTo(leader, over)
	if err != nil {
		return nil, err
	}
	return to.Produce(b), nil
}

// request sends one request, as soon as the broker listens, and waits for the answer, at most for the request timeout.
func (c *Cluster) request(ctx context.Context, broker int32, request kproto.Message) (kproto.Message, error) {
	if broker == anyBroker {
		ctx, cancel := context.WithTimeout(ctx, c.timeout)
		defer cancel()
		return c.requestAny(ctx, request)
	}
	return c.requestOver(ctx, broker, forRequests, request)
}

// requestOver is ask over a connection of its own kind.
func (c *Cluster) requestOver(ctx context.Context, broker int32, over Purpose, request kproto.Message) (kproto.Message, error) {
	to, err := c.connectionTo(broker, over)
	if errors.Is(err, errNoBroker) {
		if err := c.Ping(ctx); err != nil { // it tells the addresses
			return nil, err
		}
		to, err = c.connectionTo(broker, over)
	}
	if err != nil {
		return nil, err
	}
	if err := c.throttle.WaitUntilReady(ctx, to.Address()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return to.RoundTrip(ctx, request)
}

// requestAny asks one broker after the other, the next one when one fails or takes long, and returns the first answer.
func (c *Cluster) requestAny(ctx context.Context, request kproto.Message) (kproto.Message, error) {
	type answer struct {
		message kproto.Message
		err     error
	}
	rest := c.candidateAddresses()
	answers := make(chan answer, len(rest)) // room for those that nobody waits for any more
	hedge := time.NewTicker(hedgeAfter)
	defer hedge.Stop()
	asked := 0
	next := func() {
		if len(rest) == 0 {
			return
		}
		to := c.openLinkNow(endpoint{address: rest[0]})
		rest, asked = rest[1:], asked+1
		c.requests.Go(func() {
			m, err := to.RoundTrip(ctx, request)
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
			if asked--; failed == nil || IsTimeout(failed) { // anything says more than that nothing was said
				failed = a.err
			}
			next()
		case <-hedge.C:
			next()
		}
	}
	return nil, failed
}

// openLinkNow is connect for who can wait: it opens a connection also to a broker that was away a moment ago.
func (c *Cluster) openLinkNow(to endpoint) *connection.Connection {
	if found, _ := c.openLink(to); found != nil {
		return found
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[to]
	if l.connection == nil {
		l.connection, l.openedAt = connection.Open(c.runCtx, c.Dialer, to.address), time.Now()
	}
	return l.connection
}

// candidateAddresses returns all addresses at which somebody may answer, the most promising ones first.
func (c *Cluster) candidateAddresses() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Clone(c.seeds)
	for _, address := range c.addresses {
		if !slices.Contains(all, address) {
			all = append(all, address)
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	slices.SortStableFunc(all, func(a, b string) int { return c.addressRank(a) - c.addressRank(b) })
	return all
}

// addressRank orders addresses by how likely an answer is. mu is held.
func (c *Cluster) addressRank(address string) int {
	l := c.links[endpoint{address: address}]
	switch {
	case l == nil || l.connection == nil && l.lastError == nil:
		return 1
	case l.lastError != nil:
		return 2
	}
	if up, err := l.connection.State(); !up || err != nil || l.connection.IsStuck(hedgeAfter) {
		return 2
	}
	return 0
}

// retryOnce asks again when the network fails: the first failure is often just a connection that a broker closed while it
// was idle.
func retryOnce(ctx context.Context, request func() error) error {
	err := request()
	if err == nil || protocol.IsBrokerError(err) || ctx.Err() != nil {
		return err
	}
	return request()
}

// requestForeign sends a request that kafka-go does not know.
func requestForeign[A kmsg.Response](ctx context.Context, c *Cluster, broker int32, over Purpose, request kmsg.Request) (answer A, err error) {
	m, err := c.requestOver(ctx, broker, over, protocol.ForeignRequest{Request: request})
	if err != nil {
		return answer, err
	}
	return m.(protocol.ForeignResponse).Response.(A), nil
}

// ThrottleReason says that a quota makes us wait between requests; "" when none does.
func (c *Cluster) ThrottleReason() string { return c.throttle.reason() }

// Close ends every connection and waits for what serves it, within ctx.
func (c *Cluster) Close(ctx context.Context) error {
	c.throttle.close()
	c.cancelRun(connection.ErrClosed)
	c.requests.Wait() // nobody is answered any more
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
