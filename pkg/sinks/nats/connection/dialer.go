package connection

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// minPatience is how long a server may take to accept a connection, and then to send its first byte. Each server in a row
// that does not is followed by twice the patience with the next, up to maxPatience: a frozen server delays the connection
// to another one little, and a slow one is waited for at last.
const minPatience, maxPatience = time.Second, 5 * time.Second

// dialer makes connections that end with its context: Close then does not wait for a server that never answers.
type dialer struct {
	ctx     context.Context
	current *atomic.Pointer[boundConn] // the newest connection
	silent  atomic.Int32               // dials since a server has last sent something
	report  func(error)                // of a server that sends nothing: the library reports the first one only
}

// Dial implements the dialer of the client library.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	patience := d.nextPatience()
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(d.ctx, network, address)
	if err != nil {
		return nil, err
	}
	bound := &boundConn{Conn: sinks.DeferWriteErrors(conn), dialer: d}
	bound.release = context.AfterFunc(d.ctx, func() { conn.Close() })
	bound.silence = time.AfterFunc(patience, func() { bound.closeAs(errSilent) })
	d.current.Store(bound)
	return bound, nil
}

func (d *dialer) nextPatience() time.Duration {
	return min(minPatience<<min(d.silent.Add(1)-1, 3), maxPatience)
}

// boundConn is closed when the context of its dialer ends, and when the server sends nothing.
type boundConn struct {
	net.Conn
	dialer  *dialer
	release func() bool // detaches the connection from the context
	silence *time.Timer // closes the connection; until the first byte
	heard   atomic.Bool // the server has sent something
	cause   atomic.Pointer[error]
}

// Read implements [net.Conn]. Its error is that of closeAs, if there is one.
func (c *boundConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.heard.Swap(true) {
		c.silence.Stop()
		c.dialer.silent.Store(0)
	}
	if cause := c.cause.Load(); err != nil && cause != nil {
		err = *cause
	}
	if err != nil && !c.heard.Load() && c.dialer.ctx.Err() == nil {
		c.dialer.report(&condition.OpeningError{Err: err})
	}
	return n, err
}

// Close implements [net.Conn].
func (c *boundConn) Close() error {
	c.silence.Stop()
	c.release()
	return c.Conn.Close()
}

// closeAs closes the connection, and lets the library read this error.
func (c *boundConn) closeAs(cause error) {
	c.cause.Store(&cause)
	_ = c.Conn.Close()
}

const (
	// pingPause is the time between two pings of a server, and silenceLimit how long it may be silent after one before the
	// connection moves to another server of its cluster.
	pingPause, silenceLimit = time.Second, 2 * time.Second
)

// errSilent is why the link has closed a connection.
var errSilent = fmt.Errorf("the server does not answer: %w", os.ErrDeadlineExceeded)

// watchServer moves the connection to another server when the present one is silent: it may be frozen, and the library waits
// half a minute for it. Where no other server is known there is nothing to move to. It returns when ctx ends.
func (l *Link) watchServer(ctx context.Context) {
	ticker := time.NewTicker(pingPause)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if conn := l.current.Load(); conn != nil && l.nc.IsConnected() && len(l.nc.Servers()) > 1 && l.isSilent(ctx) {
			conn.closeAs(errSilent)
		}
	}
}

// isSilent pings the server and reports whether neither the answer comes nor anything else. A ping waits behind what was
// published before, so answers to that count as well.
func (l *Link) isSilent(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, silenceLimit)
	defer cancel()
	received := l.nc.Stats().InMsgs
	err := l.nc.FlushWithContext(limited)
	return errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && l.nc.Stats().InMsgs == received
}
