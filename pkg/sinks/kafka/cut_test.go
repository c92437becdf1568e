package kafka

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

// connectionCutter breaks the connections to a fake cluster.
type connectionCutter struct {
	mu   sync.Mutex
	open map[net.Conn]bool
	down bool
	late atomic.Bool // answers arrive after the timeout
}

// lateConn is a server-side connection that may delay its answers.
type lateConn struct {
	net.Conn
	c *connectionCutter
}

// lateTimeout is the request timeout of sinks in tests with late answers.
const lateTimeout = time.Second

func (l lateConn) Write(b []byte) (int, error) {
	if l.c.late.Load() {
		<-time.After(lateTimeout * 5 / 4)
	}
	return l.Conn.Write(b)
}

type cutListener struct {
	net.Listener
	c *connectionCutter
}

func (l cutListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l.c.mu.Lock()
		down := l.c.down
		l.c.open[conn] = true
		l.c.mu.Unlock()
		if !down {
			return lateConn{conn, l.c}, nil
		}
		l.c.cutAll()
	}
}

func (c *connectionCutter) listen(network, address string) (net.Listener, error) {
	l, err := net.Listen(network, address)
	return cutListener{l, c}, err
}

// cutAll resets every open connection and returns how many there were.
func (c *connectionCutter) cutAll() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.open)
	for conn := range c.open {
		_ = conn.(*net.TCPConn).SetLinger(0) // a reset loses requests and answers under way
		_ = conn.Close()
	}
	clear(c.open)
	return n
}

func (c *connectionCutter) setDown(down bool) {
	c.mu.Lock()
	c.down = down
	c.mu.Unlock()
	if down {
		c.cutAll()
	}
}

// cutRepeatedly cuts until the returned function is called, which returns how many connections were cut. Something is
// written between two cuts: on a slow machine a connection may take longer to establish than the pause.
func (c *connectionCutter) cutRepeatedly(pause time.Duration, written *atomic.Int64) (stop func() int) {
	done, cuts := make(chan struct{}), make(chan int)
	go func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		n := 0
		for before := int64(0); ; {
			select {
			case <-tick.C:
				if now := written.Load(); now != before {
					before = now
					n += c.cutAll()
				}
			case <-done:
				cuts <- n
				return
			}
		}
	}()
	return func() int { close(done); return <-cuts }
}

func startCuttableCluster(t testing.TB, opts ...kfake.Opt) (*connectionCutter, *kfake.Cluster, []string) {
	t.Helper()
	c := &connectionCutter{open: map[net.Conn]bool{}}
	cluster, brokers := startFakeCluster(t, append(opts, kfake.ListenFn(c.listen))...)
	return c, cluster, brokers
}

// addTwoPartitions adds two partitions to every topic of the contract. The sink must check layouts soon.
func addTwoPartitions(brokers []string) func(t testing.TB) {
	return func(t testing.TB) {
		withClient(t, brokers, func(ctx context.Context, c *kafka.Client) error {
			meta, err := c.Metadata(ctx, &kafka.MetadataRequest{})
			for _, topic := range meta.Topics {
				addPartitions(t, brokers, topic.Name, int32(len(topic.Partitions)+2))
			}
			return err
		})
	}
}

func TestContractThroughAnOutage(t *testing.T) {
	t.Parallel()
	cut, _, brokers := startCuttableCluster(t, kfake.NumBrokers(3))
	cfg := Config{Brokers: brokers, Topic: "k8s.{resource}", RequestTimeout: lateTimeout, BatchBytes: minBatchBytes,
		CreateTopics: CreateTopics{Enabled: true, Partitions: 4, ReplicationFactor: 1}}
	h := contractHarness(cfg)
	h.New = func(t testing.TB) sinks.Sink {
		s := openUnclosedSink(t, cfg).(*Sink)
		s.router.layoutCheckInterval = 10 * time.Millisecond
		return s
	}
	h.Grow = addTwoPartitions(brokers)
	h.Cut = func(testing.TB) { cut.setDown(true) }
	h.Restore = func(testing.TB) { cut.setDown(false) }
	h.Slow = func(_ testing.TB, on bool) { cut.late.Store(on) }
	sinktest.Run(t, h)
}

func TestRandomCallersAndBrokenConnectionsLoseNothing(t *testing.T) {
	t.Parallel()
	cut, _, brokers := startCuttableCluster(t, kfake.NumBrokers(3), kfake.SeedTopics(4, topicA))
	cfg := Config{Brokers: brokers, Topic: topicA, BatchBytes: minBatchBytes}
	var written atomic.Int64
	stop := sync.OnceValue(cut.cutRepeatedly(11*time.Millisecond, &written))
	defer stop()
	h := contractHarness(cfg)
	read := h.Read
	h.New = func(t testing.TB) sinks.Sink { return countingSink{openUnclosedSink(t, cfg).(*Sink), &written} }
	h.Read = func(t testing.TB) []sinktest.Delivered {
		if stop() == 0 {
			t.Error("no connection was cut: the test shows nothing")
		}
		return read(t)
	}
	sinktest.PublishRandomly(t, h, rand.New(rand.NewPCG(rand.Uint64(), 3)), 32, 100)
}

// countingSink counts the accepted messages of a sink.
type countingSink struct {
	*Sink
	written *atomic.Int64
}

func (c countingSink) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	n, err := c.Sink.Publish(ctx, lane, batch)
	c.written.Add(int64(n))
	return n, err
}

// wantStreams fails the test unless every partition p holds versions 1 to each of pod "p<p>", in order, each once.
func wantStreams(t *testing.T, records []*kgo.Record, partitions, each int) {
	t.Helper()
	next := make([]int, partitions)
	missing, back := 0, 0
	hole := func(p, from, to int) { // to exclusive
		if missing += to - from; to > from {
			t.Errorf("partition %d: %d to %d are missing", p, from, to-1)
		}
	}
	for _, r := range records {
		p := int(r.Partition)
		v := podVersion(t, r)
		if v <= next[p] {
			back++
		} else {
			hole(p, next[p]+1, v)
		}
		next[p] = v
	}
	for p, v := range next {
		hole(p, v+1, each+1)
	}
	if len(records) != partitions*each || missing != 0 || back != 0 {
		t.Errorf("sent %d, stored %d, missing %d, steps back %d", partitions*each, len(records), missing, back)
	}
}
