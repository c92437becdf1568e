package nats

import (
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks/sinktest"
)

func TestNATSKeepsTheContract(t *testing.T) {
	server := serve(t, "")
	h := harness(server, server.URL())
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
	server := serve(t, "")
	proxy := listen(t, strings.TrimPrefix(server.URL(), "nats://"))
	stop := proxy.cutEvery(60 * time.Millisecond)
	sinktest.Drive(t, harness(server, "nats://"+proxy.address()), rand.New(rand.NewPCG(1, 1)), 400, 50)
	t.Logf("20000 messages, %d cuts", stop())
}

func TestAServerKilledAgainAndAgainLosesRepeatsAndReordersNothing(t *testing.T) {
	server := serve(t, "")
	var once sync.Once
	done, finished := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(finished)
		kills := 0
		pause := time.NewTicker(150 * time.Millisecond)
		defer pause.Stop()
		for {
			select {
			case <-done:
				t.Logf("60000 messages, %d kills", kills)
				return
			case <-pause.C:
			}
			if err := server.Kill(); err != nil {
				t.Error(err)
			}
			if err := server.Restart(t.Context()); err != nil {
				t.Error(err)
			}
			kills++
		}
	}()
	h := harness(server, server.URL())
	read := h.Read
	h.Read = func(t testing.TB) []sinktest.Delivered { // all is published when the suite reads: end the kills first
		once.Do(func() { close(done) })
		<-finished
		return read(t)
	}
	sinktest.Drive(t, h, rand.New(rand.NewPCG(1, 2)), 400, 150)
}

// proxy passes TCP connections on and breaks them.
type proxy struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	open  map[net.Conn]bool
	pumps sync.WaitGroup
}

func listen(t testing.TB, target string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, target: target, open: make(map[net.Conn]bool)}
	p.pumps.Go(p.accept)
	t.Cleanup(func() {
		listener.Close()
		p.cut()
		p.pumps.Wait()
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
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
		p.mu.Lock()
		p.open[in], p.open[out] = true, true
		p.mu.Unlock()
		p.pumps.Go(func() { p.pump(in, out) })
		p.pumps.Go(func() { p.pump(out, in) })
	}
}

// pump copies one direction until either side is closed.
func (p *proxy) pump(to, from net.Conn) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
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

// cut breaks every connection, with whatever is on its way in both directions.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.open {
		conn.Close()
	}
}

// cutEvery cuts again and again until the function it returns is called, which says how often that was.
func (p *proxy) cutEvery(interval time.Duration) func() int {
	cuts, stop := 0, make(chan struct{})
	var cutter sync.WaitGroup
	cutter.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				p.cut()
				cuts++
			case <-stop:
				return
			}
		}
	})
	return func() int { close(stop); cutter.Wait(); return cuts }
}
