package replay

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/kubecdc/kubecdc/test/bench/corpus"
)

// stream is one watch that is being answered.
type stream struct {
	w       http.ResponseWriter
	history *history
	rv      uint64 // everything up to here was sent
}

// watch answers a watch request until the client leaves, the timeout it asked for is over, or the server ends.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, h *history, q query, c *counters) {
	ctx := r.Context()
	if q.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, q.timeout)
		defer cancel()
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	t := &stream{w: w, history: h, rv: q.rv}
	if err := s.begin(t, q, c); err != nil {
		return // the client has gone, or has an error response
	}
	c.live.Add(1)
	defer c.live.Add(-1)
	s.follow(ctx, t, q.bookmarks)
}

// begin sends what comes before the first change: the initial events where they are asked for, or the refusal of a
// position that is too old, as the watch cache does, inside the stream.
func (s *Server) begin(t *stream, q query, c *counters) error {
	switch {
	case q.sendInitialEvents && q.noObject:
		t.rv = s.current(t.history).rv
		return t.send(t.history.bookmark(t.rv, true))
	case q.sendInitialEvents:
		c.watchLists.Add(1)
		if err := t.sendState(s.current(t.history)); err != nil {
			return err
		}
		return t.send(t.history.bookmark(t.rv, true))
	case q.rv == 0:
		c.watches.Add(1)
		return t.sendState(s.current(t.history))
	case q.rv < t.history.before.rv:
		c.watches.Add(1)
		gone := tooOld(q.rv, t.history.before.rv)
		status, err := json.Marshal(gone)
		if err != nil {
			return err
		}
		return errorsAfter(t.send(fmt.Appendf(nil, `{"type":"ERROR","object":%s}`+"\n", status)), gone)
	default:
		c.watches.Add(1)
		return t.send()
	}
}

// errorsAfter returns the first error, or the reason for which the stream ends anyway.
func errorsAfter(err error, reason *status) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("watch ended: %s", reason.Message)
}

// follow sends the changes when they happen, and bookmarks where they are asked for.
func (s *Server) follow(ctx context.Context, t *stream, bookmarks bool) {
	ticker := time.NewTicker(s.options.BookmarkEvery)
	defer ticker.Stop()
	start := s.start
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-start:
			start = nil
			err = t.sendChanges(ctx, s.pace)
			t.rv = max(t.rv, t.history.after.rv)
		case <-ticker.C:
			if bookmarks {
				err = t.send(t.history.bookmark(t.rv, false))
			}
		}
		if err != nil {
			return
		}
	}
}

// pace is when changes happen.
type pace struct {
	began time.Time
	rate  int // changes a second; 0: all at once
}

// sendChanges sends the changes behind the position, each when it is due.
func (t *stream) sendChanges(ctx context.Context, p pace) error {
	frames := t.history.since(t.rv)
	if p.rate == 0 {
		return t.send(frames...)
	}
	rvs := t.history.rvs[len(t.history.rvs)-len(frames):]
	due := func(i int) time.Duration {
		return time.Until(p.began.Add(time.Duration(rvs[i]-t.history.before.rv) * time.Second / time.Duration(p.rate)))
	}
	for sent := 0; sent < len(frames) && ctx.Err() == nil; {
		time.Sleep(due(sent))
		next := sent + 1
		for next < len(frames) && due(next) <= 0 {
			next++
		}
		if err := t.send(frames[sent:next]...); err != nil {
			return err
		}
		sent = next
	}
	return ctx.Err()
}

// sendState sends every object of a state as added.
func (t *stream) sendState(at *state) error {
	head := frameHead(corpus.Added)
	var frame []byte
	for _, object := range at.objects {
		frame = append(append(append(frame[:0], head...), object...), frameTail...)
		if _, err := t.w.Write(frame); err != nil {
			return err
		}
	}
	t.rv = at.rv
	return t.send()
}

// send writes frames and flushes behind the last one, as a kube-apiserver does when no further event is waiting. It
// blocks while the client's flow control window is full.
func (t *stream) send(frames ...[]byte) error {
	for _, frame := range frames {
		if _, err := t.w.Write(frame); err != nil {
			return err
		}
	}
	return http.NewResponseController(t.w).Flush()
}
