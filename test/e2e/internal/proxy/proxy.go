package proxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// dialTimeout bounds a connection to one backend.
const dialTimeout = 5 * time.Second

// Proxy passes connections on. Its methods may be called concurrently.
type Proxy struct {
	listener net.Listener
	backends []string
	serving  sync.WaitGroup

	mu     sync.Mutex
	next   int // index of the backend of the next connection
	open   map[*pair]bool
	cuts   int
	barred bool  // no connection is taken: blocked, or closed for ever
	ration int64 // bytes that a client gets over a connection; 0: all
}

// pair is a client's connection and the one that it is passed on to.
type pair struct{ client, backend net.Conn }

// Start listens on a free loopback port and passes connections on to the backends, addresses as "127.0.0.1:PORT", in turn.
// Close must be called.
func Start(backends ...string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: listener, backends: backends, open: make(map[*pair]bool)}
	p.serving.Go(p.serve)
	return p, nil
}

// Address returns the host and port that the proxy listens on.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Kubeconfig writes a copy of a kubeconfig that leads through the proxy.
func (p *Proxy) Kubeconfig(original, path string) error {
	config, err := clientcmd.LoadFromFile(original)
	if err != nil {
		return err
	}
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + p.Address()
	}
	return clientcmd.WriteToFile(*config, path)
}

// Cut ends all connections at once, wherever they are, and returns how many there were. New ones are taken.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		c.cut()
	}
	n := len(p.open)
	p.cuts += n
	return n
}

// Cuts returns how many connections were cut so far.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// Block cuts all connections and refuses new ones until Unblock.
func (p *Proxy) Block() {
	p.bar(true)
	p.Cut()
}

// Unblock takes connections again.
func (p *Proxy) Unblock() { p.bar(false) }

// Ration lets every connection taken from now on carry so many bytes to its client and then no more, as if the network
// swallowed the rest. 0 sets no limit. A connection keeps the ration that it began with.
func (p *Proxy) Ration(bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ration = bytes
}

func (p *Proxy) bar(barred bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.barred = barred
}

// Close ends all connections, takes no more, and returns when nothing of the proxy runs.
func (p *Proxy) Close() error {
	err := p.listener.Close()
	p.Block()
	p.serving.Wait()
	return err
}

func (p *Proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue // a connection that ended before it was taken
		}
		p.serving.Go(func() { p.pass(client) })
	}
}

// pass passes one connection on until either side ends it.
func (p *Proxy) pass(client net.Conn) {
	backend := p.dial()
	if backend == nil {
		_ = client.Close() // no answer, as the client will see
		return
	}
	c := &pair{client, backend}
	ration, taken := p.enter(c)
	if !taken {
		c.cut()
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		var to io.Writer = client
		if ration > 0 {
			_, _ = io.CopyN(client, backend, ration)
			to = io.Discard
		}
		_, _ = io.Copy(to, backend)
		c.cut()
	})
	_, _ = io.Copy(backend, client)
	c.cut()
	back.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
}

// enter accepts a connection, and returns what its client may get.
func (p *Proxy) enter(c *pair) (ration int64, taken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.barred {
		return 0, false
	}
	p.open[c] = true
	return p.ration, true
}

// dial connects to the next backend that answers, nil if none does.
func (p *Proxy) dial() net.Conn {
	for range p.backends {
		if backend, err := net.DialTimeout("tcp", p.turn(), dialTimeout); err == nil {
			return backend
		}
	}
	return nil
}

func (p *Proxy) turn() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	backend := p.backends[p.next%len(p.backends)]
	p.next++
	return backend
}

// cut ends both connections, with what is on its way in them. It may be called more than once.
func (c *pair) cut() {
	for _, conn := range []net.Conn{c.client, c.backend} {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, as from a host that has gone
		}
		_ = conn.Close()
	}
}
