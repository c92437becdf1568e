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
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
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

// Close ends every connection and waits within ctx until their goroutines have ended.
func (c *Cluster) Close(ctx context.Context) error {
	c.cancelRun(connection.ErrClosed)
	c.requests.Wait()
	err := c.pool.waitClosed(ctx)
	c.throttles.close()
	return err
}

const (
	// ProbeInterval is the minimum time between two connection attempts to an unreachable broker, and between two metadata
	// requests for a partition without a leader. Recovery waits for both: until the broker leads again, and until it is
	// connected.
	ProbeInterval = 500 * time.Millisecond
	// hedgeAfter is how long a request that any broker can answer waits for one broker before it is also sent to the next.
	hedgeAfter = time.Second
)

var errUnknownBroker = errors.New("it is not in the metadata of the cluster")

type endpoint struct {
	address string
	purpose Purpose
}

// Purpose is the kind of requests that a connection carries. A broker answers the requests of one connection in order, and a
// produce request with acks=all only when all in-sync replicas have the batch. Metadata requests, produce requests to
// partitions with slow replicas, and fetches therefore have connections of their own.
type Purpose int

// The purposes.
const (
	forRequests Purpose = iota
	ForProducing
	ForSlowReplicas
	forReading
)

// link is the connection to an endpoint. A failed connection is replaced, at most once per ProbeInterval.
type link struct {
	connection *connection.Connection
	openedAt   time.Time
	lastError  error // why the broker is unreachable; nil when it is connected, or was never tried
}

// connectionPool has one connection for each broker and purpose. It is safe for concurrent use; no method waits for the
// network.
type connectionPool struct {
	ctx       context.Context // connections fail when it ends
	dialer    *connection.Dialer
	throttles *throttleSet
	seeds     []string // the configured addresses

	mu        sync.Mutex
	addresses map[int32]string // by broker ID
	links     map[endpoint]*link
	reached   map[string]bool // addresses of which one was connected
}

// openLink returns the connection to an endpoint and opens it if necessary. lastError is set while the broker is
// unreachable; the connection may be nil then.
func (p *connectionPool) openLink(to endpoint) (_ *connection.Connection, lastError error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.links[to]
	if l == nil {
		l = &link{}
		p.links[to] = l
	}
	if l.connection != nil {
		ready, err := l.connection.State()
		if ready {
			p.reached[to.address] = true
		}
		switch {
		case err != nil:
			// A connection that worked and then failed may only have been idle for too long: lastError stays nil, so that
			// the next one is opened at once.
			if l.connection = nil; !ready || IsTimeout(err) {
				l.lastError = err
			}
		case ready:
			l.lastError = nil
		}
	}
	if l.connection == nil && (l.lastError == nil || time.Since(l.openedAt) >= ProbeInterval) {
		p.lockedOpen(l, to)
	}
	return l.connection, l.lastError
}

// openLinkNow is openLink without the pause between two attempts, for requests that can wait for the connection.
func (p *connectionPool) openLinkNow(to endpoint) *connection.Connection {
	if found, _ := p.openLink(to); found != nil {
		return found
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.links[to]
	if l.connection == nil {
		p.lockedOpen(l, to)
	}
	return l.connection
}

// lockedOpen requires p.mu.
func (p *connectionPool) lockedOpen(l *link, to endpoint) {
	l.connection, l.openedAt = connection.Open(p.ctx, p.dialer, to.address, p.throttles.throttleOf(to)), time.Now()
}

// connectionTo returns the connection to a broker. While the broker is unreachable it fails at once with a
// *sinks.ProbedError; a broker that is missing from the metadata is errUnknownBroker.
func (p *connectionPool) connectionTo(broker int32, purpose Purpose) (*connection.Connection, error) {
	p.mu.Lock()
	address, known := p.addresses[broker]
	p.mu.Unlock()
	if !known {
		return nil, fmt.Errorf("broker %d: %w", broker, errUnknownBroker)
	}
	found, lastError := p.openLink(endpoint{address, purpose})
	if lastError != nil {
		return nil, &sinks.ProbedError{Every: ProbeInterval, Err: p.brokerError(broker, lastError)}
	}
	return found, nil
}

func (p *connectionPool) peer() condition.Peer {
	return condition.Peer{Address: "kafka.brokers", Settings: "kafka.tls", Secure: p.dialer.TLS.Enabled,
		Other: fmt.Sprintf("set kafka.tls.enabled: %t", !p.dialer.TLS.Enabled)}
}

// brokerError is the error of a broker to which there is no connection. The cluster may advertise an address of it that
// leads nowhere from here.
func (p *connectionPool) brokerError(broker int32, err error) error {
	problem := p.peer().Problem(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch address := p.addresses[broker]; {
	case errors.As(err, new(*sinks.ProbedError)):
		return err
	case protocol.ClassifyError(err) == protocol.Unauthorized:
		problem.Code, problem.Remedy = condition.SinkUnauthorized, "check kafka.sasl"
		fallthrough
	case problem.Code == condition.SinkCertificate, p.reached[address], slices.Contains(p.seeds, address):
		problem.Cause = fmt.Sprintf("broker %d at %s does not answer: %s", broker, address, problem.Cause)
	default:
		problem.Cause = fmt.Sprintf("%s answers and advertises broker %d at %s, which cannot be reached: %s",
			strings.Join(p.seeds, ", "), broker, address, problem.Cause)
		problem.Remedy = "correct advertised.listeners of that broker, or let this exporter reach its address; see that it runs"
	}
	return problem.Wrap(nil)
}

// replaceMuted fails the connections under a quota that the broker does not read although the quota allows requests. Their
// requests are sent again on new ones.
func (p *connectionPool) replaceMuted(under endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for to, l := range p.links {
		same := to.address == under.address && to.purpose.quota() == under.purpose
		if same && l.connection != nil && l.connection.MutedFor() > maxMuteExcess {
			l.connection.Fail(errMuted)
		}
	}
}

func (p *connectionPool) setAddresses(brokers []kmsg.MetadataResponseBroker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range brokers {
		p.addresses[b.NodeID] = net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
	}
}

// candidateAddresses returns the configured and all known addresses, those that most likely answer first.
func (p *connectionPool) candidateAddresses() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Clone(p.seeds)
	for _, address := range p.addresses {
		if !slices.Contains(all, address) {
			all = append(all, address)
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	slices.SortStableFunc(all, func(a, b string) int { return p.lockedRank(a) - p.lockedRank(b) })
	return all
}

// lockedRank is 0 for a connected address, 1 for one that was not tried, and 2 for one that fails or hangs. Requires p.mu.
func (p *connectionPool) lockedRank(address string) int {
	l := p.links[endpoint{address: address}]
	switch {
	case l == nil || l.connection == nil && l.lastError == nil:
		return 1
	case l.lastError != nil:
		return 2
	}
	if ready, err := l.connection.State(); !ready || err != nil || l.connection.IsStuck(hedgeAfter) {
		return 2
	}
	return 0
}

// waitClosed waits within ctx until all connections have ended. The pool's own context has ended before.
func (p *connectionPool) waitClosed(ctx context.Context) error {
	p.mu.Lock()
	links := slices.Collect(maps.Values(p.links))
	p.mu.Unlock()
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

// IsTimeout reports whether err means that there was no answer in time.
func IsTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}
