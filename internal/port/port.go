// Package port serves HTTP on a TCP port whose connections cost a bounded amount of memory, and that cannot be closed to
// clients by holding connections.
//
// Every connection is accepted at once. It proves itself in stages: it has sent something, then so much that there is an
// answer, and then it has made a request that the server takes. Each stage has room for so many connections. One too many
// drops that of the address with the most connections in the stage, the oldest of them. So those that do nothing give way
// to those that do something, and one address gives way to the others.
package port

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// The stages of a connection.
const (
	stageSilent   int32 = iota // it has sent nothing yet
	stageHeard                 // it has sent something: a part of a TLS handshake, or of a request
	stageAnswered              // it has sent so much that the server has answered: half of a TLS handshake
	stageProven                // the server has taken a request
	stages
)

var stageTexts = [stages]string{"have sent nothing", "have sent no complete request", "have not ended their handshakes", "have made requests"}

// capacity is how many connections may be in each stage: as many probes as come at once from one address are answered. A
// client passes the others than the last within a handshake.
var capacity = [stages]int{1024, 1024, 256, 1024}

const (
	maxHeaderBytes = 8 << 10
	headerTimeout  = 5 * time.Second  // for a TLS handshake, and then for the header of a request
	stopTimeout    = 2 * time.Second  // for requests in progress at the end
	quietTime      = 30 * time.Second // without a dropped connection, until the port is not flooded any more
)

// Port holds the connections of a port. It is safe for concurrent use.
type Port struct {
	condition *condition.Condition

	mu          sync.Mutex
	connections [stages]map[*connection]bool
	addresses   map[netip.Addr]*address // of which there are connections
	clock       uint64                  // counts entries into stages
	dropped     time.Time               // when a connection was dropped last
}

// address is a remote address. Guarded by Port.mu.
type address struct {
	connections [stages]int
}

type connection struct {
	net.Conn
	port  *Port
	from  netip.Addr
	stage atomic.Int32 // written with Port.mu held

	// Guarded by Port.mu.
	entered uint64 // when it entered its stage or, once it is proven, made its last request, by Port.clock
	closed  bool
}

// New returns a port with a name, such as its address. It does not listen.
func New(name string, log *slog.Logger) *Port {
	p := &Port{
		condition: condition.New(log.With("listen", name), "port/"+name, condition.Problem{}), addresses: map[netip.Addr]*address{},
	}
	for i := range p.connections {
		p.connections[i] = map[*connection]bool{}
	}
	return p
}

// Status returns whether connections are dropped.
func (p *Port) Status() condition.Status {
	p.mu.Lock()
	quiet := time.Since(p.dropped) > quietTime
	p.mu.Unlock()
	if quiet {
		p.condition.Clear()
	}
	return p.condition.Status()
}

// Serve serves connections of l, with TLS if the server has a configuration of it, until ctx ends, and returns nil, or the
// error that stopped it. Requests in progress then have a short time to end. It closes l, and sets what bounds connections
// in the server.
func (p *Port) Serve(ctx context.Context, l net.Listener, server *http.Server) error {
	server.ReadHeaderTimeout, server.MaxHeaderBytes = headerTimeout, maxHeaderBytes
	server.BaseContext = func(net.Listener) context.Context { return ctx } // so that streams end with it
	server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if secured, ok := c.(interface{ NetConn() net.Conn }); ok {
			c = secured.NetConn()
		}
		return context.WithValue(ctx, connectionKey{}, c)
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		err := server.Shutdown(closing)
		if errors.Is(err, context.DeadlineExceeded) { // a slow client is cut off, not waited for
			err = server.Close()
		}
		stopped <- err
	})
	serve := server.Serve
	if server.TLSConfig != nil {
		serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
	}
	if err := serve(&listener{l, p}); stop() {
		return errors.Join(err, server.Close())
	}
	return <-stopped
}

type connectionKey struct{}

// Prove records that the server takes the request with this context.
func Prove(ctx context.Context) {
	if c, ok := ctx.Value(connectionKey{}).(*connection); ok {
		c.port.enter(c, stageProven)
	}
}

// listener accepts connections and never waits for one to end.
type listener struct {
	net.Listener
	port *Port
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: accepted, port: l.port, from: network(accepted.RemoteAddr())}
	l.port.enter(c, stageSilent)
	runtime.Gosched() // those accepted before go first
	return c, nil
}

// network returns the address that a client can choose no further ones beside: of IPv6 the first half.
func network(of net.Addr) netip.Addr {
	tcp, ok := of.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip := tcp.AddrPort().Addr().Unmap()
	if half, err := ip.Prefix(64); err == nil && ip.Is6() {
		return half.Addr()
	}
	return ip
}

// Read implements net.Conn.
func (c *connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.stage.Load() == stageSilent {
		c.port.enter(c, stageHeard)
	}
	return n, err
}

// Write implements net.Conn.
func (c *connection) Write(b []byte) (int, error) {
	if c.stage.Load() == stageHeard {
		c.port.enter(c, stageAnswered)
	}
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.port.mu.Lock()
	c.port.remove(c)
	c.closed = true
	c.port.mu.Unlock()
	return c.Conn.Close()
}

// enter takes a connection into a stage, and drops another one if that is full.
func (p *Port) enter(c *connection, to int32) {
	if over, held := p.exchange(c, to); over != nil {
		if tcp, ok := over.Conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // else the kernel keeps what was not read or sent, and waits for that
		}
		_ = over.Conn.Close() // its server finds it closed
		p.reportFlood(over, held)
	}
}

// exchange takes a connection into a stage. If that is full it returns the connection that was removed from it, and how many
// there were of its address.
func (p *Port) exchange(c *connection, to int32) (over *connection, held int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.closed {
		return nil, 0
	}
	p.remove(c)
	if len(p.connections[to]) >= capacity[to] {
		over = p.leastWorthy(to)
		held = p.addresses[over.from].connections[to]
		p.remove(over)
		over.closed = true
	}
	from := p.addresses[c.from]
	if from == nil {
		from = &address{}
		p.addresses[c.from] = from
	}
	p.clock++
	c.entered = p.clock
	c.stage.Store(to)
	p.connections[to][c] = true
	from.connections[to]++
	return over, held
}

// remove takes a connection out of its stage, if it is in one. Requires p.mu.
func (p *Port) remove(c *connection) {
	at := c.stage.Load()
	if !p.connections[at][c] {
		return
	}
	delete(p.connections[at], c)
	from := p.addresses[c.from]
	if from.connections[at]--; *from == (address{}) {
		delete(p.addresses, c.from)
	}
}

// leastWorthy returns the oldest connection in a stage of the address that has the most there. Requires p.mu.
func (p *Port) leastWorthy(at int32) (worst *connection) {
	most := 0
	for c := range p.connections[at] {
		n := p.addresses[c.from].connections[at]
		if n > most || n == most && c.entered < worst.entered {
			worst, most = c, n
		}
	}
	return worst
}

// reportFlood records that a connection of an address with so many was dropped. The cause is that of the first one.
func (p *Port) reportFlood(dropped *connection, held int) {
	p.mu.Lock()
	begins := time.Since(p.dropped) > quietTime
	p.dropped = time.Now()
	p.mu.Unlock()
	if at := dropped.stage.Load(); begins {
		p.condition.Update(condition.Problem{Code: condition.PortFlooded, Cause: fmt.Sprintf(
			"more than %d connections %s, %d of them from %s", capacity[at], stageTexts[at], held, dropped.from)})
	}
}
