package condition

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// lines writes to the log in order, and without a lock: a log may wait for whoever reads it. Whoever comes while another
// writes leaves its lines to that one. Safe for concurrent use.
type lines struct {
	log  *slog.Logger
	turn chan struct{} // holds one element while somebody writes

	mu      sync.Mutex
	waiting []line
}

func newLines(log *slog.Logger) *lines { return &lines{log: log, turn: make(chan struct{}, 1)} }

type line struct {
	level   slog.Level
	message string
	attrs   []any
}

// line is what the log says of a transition. An empty message is no line.
func (t transition) line() line {
	attrs := []any{"state", t.to.State.Name}
	if t.to.Reason != "" {
		attrs = append(attrs, "reason", t.to.Reason)
	}
	if t.to.Remedy != "" {
		attrs = append(attrs, "remedy", t.to.Remedy)
	}
	if t.lasted > 0 {
		attrs = append(attrs, "lasted", t.lasted.Round(time.Millisecond))
	}
	return line{t.to.State.Level, t.to.State.Message, append(attrs, t.attrs...)}
}

// add queues a line; write writes it.
func (l *lines) add(next line) {
	if next.message == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, next)
}

// write writes what waits, unless another does.
func (l *lines) write() {
	for l.any() {
		select {
		case l.turn <- struct{}{}:
			l.empty()
		default:
			return // whoever writes looks again
		}
	}
}

// finish writes what waits once nobody else writes: what was added before is in the log when it returns.
func (l *lines) finish() {
	l.turn <- struct{}{}
	l.empty()
}

func (l *lines) any() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting) > 0
}

// empty writes what waits now. It ends the caller's turn.
func (l *lines) empty() {
	l.mu.Lock()
	next := l.waiting
	l.waiting = nil
	l.mu.Unlock()
	for _, n := range next {
		l.log.Log(context.Background(), n.level, n.message, n.attrs...)
	}
	<-l.turn
}
