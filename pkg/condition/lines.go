package condition

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// logQueue writes to the log in order, and without a lock: a log may wait for whoever reads it. Whoever comes while another
// writes leaves its lines to that one. Safe for concurrent use.
type logQueue struct {
	log     *slog.Logger
	writing chan struct{} // holds one element while somebody writes

	mu     sync.Mutex
	queued []logLine
}

func newLogQueue(log *slog.Logger) *logQueue {
	return &logQueue{log: log, writing: make(chan struct{}, 1)}
}

type logLine struct {
	level   slog.Level
	message string
	attrs   []any
}

// logLine is what the log says of a transition. An empty message is no line.
func (t transition) logLine() logLine {
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
	return logLine{t.to.State.Level, t.to.State.Message, append(attrs, t.attrs...)}
}

// enqueue queues a line; write writes it.
func (l *logQueue) enqueue(next logLine) {
	if next.message == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queued = append(l.queued, next)
}

// writeQueued writes what waits, unless another does.
func (l *logQueue) writeQueued() {
	for l.hasQueued() {
		select {
		case l.writing <- struct{}{}:
			l.writeBatch()
		default:
			return // whoever writes looks again
		}
	}
}

// drain writes what waits once nobody else writes: what was added before is in the log when it returns.
func (l *logQueue) drain() {
	l.writing <- struct{}{}
	l.writeBatch()
}

func (l *logQueue) hasQueued() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queued) > 0
}

// writeBatch writes what waits now. It ends the caller's turn.
func (l *logQueue) writeBatch() {
	l.mu.Lock()
	next := l.queued
	l.queued = nil
	l.mu.Unlock()
	for _, n := range next {
		l.log.Log(context.Background(), n.level, n.message, n.attrs...)
	}
	<-l.writing
}
