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

// driveStreams runs the suite's random publisher on all streams concurrently. messages is the total for all streams. There
// are up to outages outages, one after every 3,000 acknowledgements or when the previous one is over. The streams are read
// after the last outage.
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
			done() // the suite reads after everything is published
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

// ackCounter signals reached after every so many acknowledged messages.
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

// countingSink counts the acknowledgements of a sink.
type countingSink struct {
	sinks.Sink
	counter *ackCounter
}

func (c countingSink) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	n, err := c.Sink.Publish(ctx, lane, batch)
	c.counter.addAcks(n)
	return n, err
}

// countAcks makes the harness count acknowledgements, and returns a function that reads the count.
func countAcks(h *sinktest.Harness) func() int64 {
	count := &ackCounter{every: math.MaxInt64}
	open := h.New
	h.New = func(t testing.TB) sinks.Sink { return countingSink{Sink: open(t), counter: count} }
	return count.total.Load
}

// proxy forwards TCP connections and breaks them.
type proxy struct {
	listener net.Listener
	target   string

	late atomic.Bool  // answers are forwarded after the timeout of the sink
	held sync.RWMutex // locked while answers are held back

	mu     sync.Mutex
	closed bool // no connection is forwarded
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
			p.held.RUnlock() //nolint:staticcheck // only waits
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

// delayAnswers starts or stops to delay answers beyond the timeout of the sink.
func (p *proxy) delayAnswers(on bool) { p.late.Store(on) }

// holdAnswers holds all answers back until release is called.
func (p *proxy) holdAnswers() (release func()) {
	p.held.Lock()
	return sync.OnceFunc(p.held.Unlock)
}

// cutAll breaks every connection, with the data in flight in both directions.
func (p *proxy) cutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeConns()
}

// setBlocked breaks every connection and refuses new ones until it is called with false.
func (p *proxy) setBlocked(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = on
	p.closeConns()
}

// closeConns closes all connections. Requires p.mu.
func (p *proxy) closeConns() {
	for conn := range p.open {
		conn.Close()
	}
}

// cutEvery is cutEvery for all connections of the proxy.
func (p *proxy) cutEvery(interval time.Duration, acked func() int64) func() int {
	return cutEvery(interval, acked, p.cutAll)
}

// cutEvery calls cut at an interval until the returned function is called, which returns the number of calls. It skips a
// call if nothing was acknowledged since the last one: on a starved machine a connection may take longer than the interval.
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
