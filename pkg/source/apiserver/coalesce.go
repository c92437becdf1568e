package apiserver

import (
	"context"
	"net"
	"time"
)

// readInterval is how long after a read of a connection the next one begins at the earliest. kube-apiserver flushes each
// event of a watch on its own. At thousands of changes a second each one would wake HTTP/2, the decoder and the journal;
// those of one interval go through them together. It is shorter than the interval in which the journal commits
// groups under load.
const readInterval = 2 * time.Millisecond

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// coalesceReads returns a dialer whose connections read no more often than once in readInterval, unless a read filled its
// buffer. An event after a silence is read at once, and a list as fast as the connection is.
func coalesceReads(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &coalescedConn{Conn: conn}, nil
	}
}

// coalescedConn is a connection of coalesceReads. One goroutine at a time reads from it.
type coalescedConn struct {
	net.Conn
	next time.Time // the next read begins no earlier
}

func (c *coalescedConn) Read(b []byte) (int, error) {
	time.Sleep(time.Until(c.next))
	n, err := c.Conn.Read(b)
	if c.next = (time.Time{}); n < len(b) {
		c.next = time.Now().Add(readInterval)
	}
	return n, err
}
