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
	log *slog.Logger

	mu      sync.Mutex
	waiting []line
	writing bool
}

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
	for {
		next, ok := l.take()
		if !ok {
			return
		}
		for _, n := range next {
			l.log.Log(context.Background(), n.level, n.message, n.attrs...)
		}
		l.mu.Lock()
		l.writing = false
		l.mu.Unlock()
	}
}

// take returns the lines to be written by the caller.
func (l *lines) take() ([]line, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.writing || len(l.waiting) == 0 {
		return nil, false
	}
	next := l.waiting
	l.waiting, l.writing = nil, true
	return next, true
}
