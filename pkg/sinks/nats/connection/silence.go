package connection

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

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
