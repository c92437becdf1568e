package kafka

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
)

// connections knows every open connection, so that Close can end those in use and wait until the library, which serves
// each from a goroutine of its own, has let go of all of them. It does TLS itself, since the library would read the files
// of authorities only once.
type connections struct {
	reach func(ctx context.Context, network, address string) (net.Conn, error)
	tls   auth.TLS

	mu     sync.Mutex
	closed bool
	open   map[*connection]struct{}
	left   chan struct{} // after closed: closed when open is empty
}

// connection reports its end to the connections it belongs to.
type connection struct {
	net.Conn
	owner *connections
	once  sync.Once
}

func newConnections(security auth.TLS) *connections {
	return &connections{reach: new(net.Dialer).DialContext, tls: security, open: map[*connection]struct{}{}, left: make(chan struct{})}
}

// dial opens a connection, with TLS where that is on, or refuses when the sink is closed.
func (cs *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if !cs.tls.Enabled {
		return cs.connect(ctx, network, address)
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	config, err := cs.tls.ClientConfig(host)
	if err != nil {
		return nil, &auth.CredentialError{Err: err}
	}
	c, err := cs.connect(ctx, network, address)
	if err != nil {
		return nil, err
	}
	secure := tls.Client(c, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = c.Close() // the handshake's error says more
		return nil, err
	}
	return secure, nil
}

func (cs *connections) connect(ctx context.Context, network, address string) (net.Conn, error) {
	raw, err := cs.reach(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: raw, owner: cs}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closed {
		_ = raw.Close() // nothing was sent on it
		return nil, net.ErrClosed
	}
	cs.open[c] = struct{}{}
	return c, nil
}

// SetDeadline leaves a connection alone that was ended by close.
func (c *connection) SetDeadline(t time.Time) error {
	c.owner.mu.Lock()
	defer c.owner.mu.Unlock()
	if c.owner.closed {
		return net.ErrClosed
	}
	return c.Conn.SetDeadline(t)
}

func (c *connection) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { c.owner.forget(c) })
	return err
}

func (cs *connections) forget(c *connection) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	delete(cs.open, c)
	if cs.closed && len(cs.open) == 0 {
		close(cs.left)
	}
}

// close fails what is in use and waits until the library has closed every connection, or for ctx.
func (cs *connections) close(ctx context.Context) error {
	cs.mu.Lock()
	if !cs.closed {
		cs.closed = true
		if len(cs.open) == 0 {
			close(cs.left)
		}
	}
	for c := range cs.open {
		_ = c.Conn.SetDeadline(time.Unix(1, 0)) // the past: reads and writes fail at once; a failure here means it is closed already
	}
	cs.mu.Unlock()
	select {
	case <-cs.left:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
