package sinks

import (
	"errors"
	"net"
	"syscall"
)

// DeferWriteErrors returns a connection on which a write does not fail because the peer has closed it. The next reads return
// what the peer sent before, and then the end: a server that refuses a client certificate sends an alert and closes, perhaps
// before the client's first request. Something must read after each write.
func DeferWriteErrors(conn net.Conn) net.Conn { return deferringConn{conn} }

type deferringConn struct{ net.Conn }

func (c deferringConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return len(b), nil
	}
	return n, err
}
