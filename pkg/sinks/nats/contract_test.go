package nats

import (
	"context"
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

func TestBatchesKeepTheContract(t *testing.T) {
	t.Parallel()
	runContract(t, startServer(t, ""), true)
}

func TestMessageIDsKeepTheContract(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	server := startServer(t, "")
	proxy := startProxy(t, strings.TrimPrefix(server.URL(), "nats://"))
	h := newHarness(server, "nats://"+proxy.listenAddress())
	stop := proxy.cutEvery(60*time.Millisecond, countAcks(&h))
	sinktest.PublishRandomly(t, h, rand.New(rand.NewPCG(1, 1)), 160, 50)
	t.Logf("%d cuts", stop())
}

// acksBetweenOutages is the number of acknowledgements, of all streams, after which the next outage begins.
const acksBetweenOutages = 2400

// driveStreams runs the suite's random publisher on all streams concurrently, during outages. The streams are read after the
// last outage.
func driveStreams(t *testing.T, streams map[string]*sinktest.Harness, outages ...func() error) {
	const versions = 60
	objects := acksBetweenOutages * (len(outages) + 1) / versions / len(streams)
	schedule := &outageSchedule{t: t, left: outages}
	var publishing, reading sync.WaitGroup
	for name, h := range streams {
		publishing.Add(1)
		done := sync.OnceFunc(publishing.Done)
		open, read := h.New, h.Read
		h.New = func(t testing.TB) sinks.Sink { return scheduledSink{open(t), schedule} }
		h.Read = func(t testing.TB) []sinktest.Delivered {
			done() // the suite reads after everything is published
			publishing.Wait()
			schedule.running.Wait()
			return read(t)
		}
		reading.Go(func() {
			defer done()
			sinktest.PublishRandomly(t, *h, rand.New(rand.NewPCG(1, uint64(len(name)))), objects, versions)
		})
	}
	reading.Wait()
	if len(schedule.left) > 0 {
		t.Errorf("everything was published before the last %d outages", len(schedule.left))
	}
}

// outageSchedule starts outages in the middle of publishing, one at a time.
type outageSchedule struct {
	t       *testing.T
	running sync.WaitGroup // one outage

	mu    sync.Mutex
	acked int // since the last outage began
	left  []func() error
}

// recordAcks starts the next outage if it is due. Nothing more is published until that begins.
func (o *outageSchedule) recordAcks(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.acked += n; len(o.left) == 0 || o.acked < acksBetweenOutages {
		return
	}
	o.running.Wait()
	run := o.left[0]
	o.acked, o.left = 0, o.left[1:]
	o.running.Go(func() {
		if err := run(); err != nil {
			o.t.Error(err)
		}
	})
}

// scheduledSink publishes according to a schedule of outages.
type scheduledSink struct {
	sinks.Sink
	schedule *outageSchedule
}

func (s scheduledSink) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	n, err := s.Sink.Publish(ctx, lane, batch)
	s.schedule.recordAcks(n)
	return n, err
}

// countingSink counts the acknowledgements of a sink.
type countingSink struct {
	sinks.Sink
	acked *atomic.Int64
}

func (c countingSink) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	n, err := c.Sink.Publish(ctx, lane, batch)
	c.acked.Add(int64(n))
	return n, err
}

// countAcks makes the harness count acknowledgements, and returns a function that reads the count.
func countAcks(h *sinktest.Harness) func() int64 {
	acked := new(atomic.Int64)
	open := h.New
	h.New = func(t testing.TB) sinks.Sink { return countingSink{open(t), acked} }
	return acked.Load
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

// cutEvery calls cutAll at an interval until the returned function is called, which returns the number of calls. It skips a
// call if nothing was acknowledged since the last one: on a starved machine a connection may take longer than the interval.
func (p *proxy) cutEvery(interval time.Duration, acked func() int64) func() int {
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
				p.cutAll()
				cuts++
			case <-stop:
				return
			}
		}
	})
	return func() int { close(stop); cutter.Wait(); return cuts }
}
