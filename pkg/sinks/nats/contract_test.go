package nats

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

func TestBatchesKeepTheContract(t *testing.T) { runContract(t, startServer(t, ""), true) }

func TestMessageIDsKeepTheContract(t *testing.T) {
	server := startServer(t, "")
	createStreamWithoutBatches(t, server)
	runContract(t, server, false)
}

func runContract(t *testing.T, server *natsserver.Server, batches bool) {
	proxy := startProxy(t, strings.TrimPrefix(server.URL(), "nats://"))
	h := newHarness(server, "nats://"+proxy.listenAddress())
	h.ExactReplay, h.OrderPerObject = !batches, !batches
	h.New = func(t testing.TB) sinks.Sink {
		cfg := shortTimeoutConfig("nats://" + proxy.listenAddress())
		cfg.Routed = testRoutes
		return newSink(t, cfg, discardLog)
	}
	addRoutes(&h)
	h.Slow = func(_ testing.TB, on bool) { proxy.delayAnswers(on) }
	h.Cut = func(t testing.TB) {
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	h.Restore = func(t testing.TB) {
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	sinktest.Run(t, h)
}

func TestABrokenConnectionLosesRepeatsAndReordersNothing(t *testing.T) {
	server := startServer(t, "")
	proxy := startProxy(t, strings.TrimPrefix(server.URL(), "nats://"))
	h := newHarness(server, "nats://"+proxy.listenAddress())
	stop := proxy.cutEvery(60*time.Millisecond, countAcks(&h))
	sinktest.PublishRandomly(t, h, rand.New(rand.NewPCG(1, 1)), 400, 50)
	t.Logf("20000 messages, %d cuts", stop())
}

func TestAServerKilledAgainAndAgainLosesRepeatsAndReordersNothing(t *testing.T) {
	server := startServer(t, "")
	h := newHarness(server, server.URL())
	driveStreams(t, map[string]*sinktest.Harness{"K8S": &h}, 24_000, 6, func(int) error {
		return errors.Join(server.Kill(), server.Restart(context.Background()))
	})
}

// driveStreams runs the suite's random publisher on each stream, all at once, with so many messages together and up to so
// many outages, one after each 3,000 acknowledgements or when the one before is over. Streams are read when all is published
// and the last outage is over.
func driveStreams(t *testing.T, streams map[string]*sinktest.Harness, messages, outages int, outage func(i int) error) {
	const between, versions = 3000, 60
	progress := &ackCounter{every: between, reached: make(chan struct{}, 1)}
	published := make(chan struct{})
	var outs, publishing, reading sync.WaitGroup
	outs.Go(func() {
		for i := range outages {
			select {
			case <-progress.reached:
			case <-published:
				if i == 0 {
					t.Error("everything was published before the first outage")
				}
				return
			}
			if err := outage(i); err != nil {
				t.Error(err)
			}
		}
	})
	for name, h := range streams {
		publishing.Add(1)
		done := sync.OnceFunc(publishing.Done)
		open, read := h.New, h.Read
		h.New = func(t testing.TB) sinks.Sink { return countingSink{Sink: open(t), counter: progress} }
		h.Read = func(t testing.TB) []sinktest.Delivered {
			done() // the suite reads when everything is published
			outs.Wait()
			return read(t)
		}
		reading.Go(func() {
			defer done()
			sinktest.PublishRandomly(t, *h, rand.New(rand.NewPCG(1, uint64(len(name)))), messages/versions/len(streams), versions)
		})
	}
	publishing.Wait()
	close(published)
	reading.Wait()
}

// ackCounter tells whenever so many more messages are acknowledged.
type ackCounter struct {
	every   int64
	total   atomic.Int64
	reached chan struct{} // capacity 1
}

func (c *ackCounter) addAcks(n int) {
	total := c.total.Add(int64(n))
	if total/c.every == (total-int64(n))/c.every {
		return
	}
	select {
	case c.reached <- struct{}{}:
	default:
	}
}

// countingSink is a sink whose acknowledgements are counted.
type countingSink struct {
	sinks.Sink
	counter *ackCounter
}

func (c countingSink) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	n, err := c.Sink.Publish(ctx, lane, batch)
	c.counter.addAcks(n)
	return n, err
}

// countAcks returns a count of what the harness's sinks say is stored.
func countAcks(h *sinktest.Harness) func() int64 {
	count := &ackCounter{every: math.MaxInt64}
	open := h.New
	h.New = func(t testing.TB) sinks.Sink { return countingSink{Sink: open(t), counter: count} }
	return count.total.Load
}

// proxy passes TCP connections on and breaks them.
type proxy struct {
	listener net.Listener
	target   string

	late atomic.Bool  // what comes back is passed on when the sink has given it up
	held sync.RWMutex // locked while nothing that comes back is passed on

	mu     sync.Mutex
	closed bool // no connection is passed on
	open   map[net.Conn]bool
	pumps  sync.WaitGroup
}

func startProxy(t testing.TB, target string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, target: target, open: make(map[net.Conn]bool)}
	p.pumps.Go(p.acceptConns)
	t.Cleanup(func() {
		listener.Close()
		p.cutAll()
		p.pumps.Wait()
	})
	return p
}

func (p *proxy) listenAddress() string { return p.listener.Addr().String() }

func (p *proxy) acceptConns() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.target)
		if err != nil {
			in.Close()
			continue
		}
		if !p.admitConns(in, out) {
			in.Close()
			out.Close()
			continue
		}
		p.pumps.Go(func() { p.copyDirection(in, out, true) })
		p.pumps.Go(func() { p.copyDirection(out, in, false) })
	}
}

func (p *proxy) admitConns(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	for _, conn := range conns {
		p.open[conn] = true
	}
	return true
}

// copyDirection copies one direction until either side is closed.
func (p *proxy) copyDirection(to, from net.Conn, back bool) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		if back && p.late.Load() {
			<-time.After(shortTimeout * 5 / 4)
		}
		if back {
			p.held.RLock()
			p.held.RUnlock() //nolint:staticcheck // it is waited for, nothing is read under it
		}
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			break
		}
	}
	to.Close()
	from.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, to)
	delete(p.open, from)
}

// delayAnswers makes answers late, or no longer late.
func (p *proxy) delayAnswers(on bool) { p.late.Store(on) }

// holdAnswers keeps back what comes back until the function that it returns is called.
func (p *proxy) holdAnswers() (release func()) {
	p.held.Lock()
	return sync.OnceFunc(p.held.Unlock)
}

// cutAll breaks every connection, with whatever is on its way in both directions.
func (p *proxy) cutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeConns()
}

// setBlocked breaks every connection and lets no other through until it is called with false.
func (p *proxy) setBlocked(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = on
	p.closeConns()
}

// closeConns is called with p.mu held.
func (p *proxy) closeConns() {
	for conn := range p.open {
		conn.Close()
	}
}

// cutEvery cuts again and again until the function it returns is called, which says how often that was.
func (p *proxy) cutEvery(interval time.Duration, acked func() int64) func() int {
	return cutEvery(interval, acked, p.cutAll)
}

// cutEvery calls cut again and again until the function it returns is called, which says how often that was. Between two
// cuts something is acknowledged: on a machine that starves a connection may take longer to make than the interval.
func cutEvery(interval time.Duration, acked func() int64, cut func()) func() int {
	cuts, stop := 0, make(chan struct{})
	var cutter sync.WaitGroup
	cutter.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for before := int64(0); ; {
			select {
			case <-ticker.C:
				now := acked()
				if now == before {
					continue
				}
				before = now
				cut()
				cuts++
			case <-stop:
				return
			}
		}
	})
	return func() int { close(stop); cutter.Wait(); return cuts }
}
