package condition

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// logQueue writes lines to the log in order, without holding a lock: a log may block on its reader. A goroutine that adds a
// line while another one writes leaves the line to that one. Safe for concurrent use.
type logQueue struct {
	log     *slog.Logger
	writing chan struct{} // holds one element while a goroutine writes

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

// logLine returns the line for a transition. A line with an empty message is not logged.
func (t transition) logLine() logLine {
	if t.to.OK() {
		attrs := []any{"ended", string(t.ended), "lasted", t.lasted.Round(time.Millisecond)}
		return logLine{slog.LevelInfo, t.ended.Kind().Ended, append(attrs, t.attrs...)}
	}
	kind, attrs := t.to.Code.Kind(), []any{"code", string(t.to.Code)}
	for _, a := range [...]struct{ key, text string }{
		{"reason", t.to.Cause}, {"effect", t.to.EffectText(time.Now())}, {"remedy", t.to.Remedy},
	} {
		if a.text != "" {
			attrs = append(attrs, a.key, a.text)
		}
	}
	return logLine{kind.Level, kind.Message, append(attrs, t.attrs...)}
}

// enqueue queues a line for writeQueued.
func (l *logQueue) enqueue(next logLine) {
	if next.message == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queued = append(l.queued, next)
}

// writeQueued writes the queued lines, unless another goroutine does.
func (l *logQueue) writeQueued() {
	for l.hasQueued() {
		select {
		case l.writing <- struct{}{}:
			l.writeBatch()
		default:
			return // the goroutine that writes looks again
		}
	}
}

// drain waits for a goroutine that writes, and writes the rest: when it returns, the log has every line that was enqueued
// before the call.
func (l *logQueue) drain() {
	l.writing <- struct{}{}
	l.writeBatch()
}

func (l *logQueue) hasQueued() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queued) > 0
}

// writeBatch writes the lines queued now. The caller has put the element into l.writing; writeBatch takes it out.
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
