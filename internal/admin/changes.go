package admin

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Bounds of the newest changes that are kept for viewers.
const (
	changesKept    = 4096
	changeMaxBytes = 2 << 10 // of the facts of one change; of a larger one less is kept
)

// changeRing keeps the facts of the newest changes, each a JSON object without bodies. Viewers read from where they are; one
// that is slow misses the oldest, and delivery does not wait for it. Safe for concurrent use.
type changeRing struct {
	mu   sync.Mutex
	next uint64 // number of the next change; change n is in ring[n % changesKept]
	ring [][]byte
}

// appendChange keeps one more. write appends its facts to a slice; what is longer than the bound is written again by short.
func (c *changeRing) appendChange(write, short func([]byte) []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring == nil {
		c.ring = make([][]byte, changesKept)
	}
	slot := &c.ring[c.next%changesKept]
	if *slot = write((*slot)[:0]); len(*slot) > changeMaxBytes {
		*slot = short(nil)
	}
	c.next++
}

// newestAfter returns up to most changes after number after, oldest first, as copies, how many more there were, and the
// number to pass next time.
func (c *changeRing) newestAfter(after uint64, most int) (facts [][]byte, missed, last uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := max(after, c.next-min(c.next, changesKept, uint64(most)))
	for n := first; n < c.next; n++ {
		facts = append(facts, slices.Clone(c.ring[n%changesKept]))
	}
	return facts, first - min(first, after), c.next
}

// Bounds of what is streamed. A viewer that does not take what it is sent is put aside; browsers connect again.
const (
	maxViewers         = 64
	viewerWriteTimeout = 5 * time.Second        // for one write
	changesEvery       = 500 * time.Millisecond // to a page
	changesShown       = 30                     // the newest each time, to a page
	tapEvery           = 100 * time.Millisecond // to a program, which gets all
	aliveEvery         = 10 * time.Second       // how long a program hears nothing at most
)

// errViewGone ends a stream that has nothing more to show.
var errViewGone = errors.New("nothing more to show")

// viewer is one connection that is sent events. It belongs to the goroutine of its request.
type viewer struct {
	w       http.ResponseWriter
	control *http.ResponseController
	buf     bytes.Buffer
}

// streamEvents answers with server-sent events: what poll adds to the viewer, at once and then regularly, until the viewer
// is gone or too slow, poll fails, or the server stops.
func (s *Server) streamEvents(w http.ResponseWriter, r *http.Request, every time.Duration, poll func(*viewer) error) {
	if s.viewers.Add(1) > maxViewers {
		s.viewers.Add(-1)
		http.Error(w, fmt.Sprintf("%d viewers are connected, the most there may be; close one", maxViewers), http.StatusServiceUnavailable)
		return
	}
	defer s.viewers.Add(-1)
	setHeaders(w, "text/event-stream")
	v := &viewer{w: w, control: http.NewResponseController(w)}
	if err := v.control.SetReadDeadline(time.Time{}); err != nil { // else the stream ends with it
		s.options.Logger.Error("a viewer cannot be served", "error", err)
		return
	}
	v.buf.WriteString(": kubecdc\n\n")
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for poll(v) == nil && v.flush() == nil {
		select {
		case <-r.Context().Done():
			return
		case <-ticks.C:
		}
	}
}

// addEvent adds an event to what is sent next.
func (v *viewer) addEvent(name string, data []byte) {
	if name != "" {
		fmt.Fprintf(&v.buf, "event: %s\n", name)
	}
	for line := range bytes.Lines(data) {
		v.buf.WriteString("data: ")
		v.buf.Write(bytes.TrimRight(line, "\r\n"))
		v.buf.WriteByte('\n')
	}
	v.buf.WriteByte('\n')
}

func (v *viewer) flush() error {
	if v.buf.Len() == 0 {
		return nil
	}
	defer v.buf.Reset()
	if err := v.control.SetWriteDeadline(time.Now().Add(viewerWriteTimeout)); err != nil {
		return err
	}
	if _, err := v.w.Write(v.buf.Bytes()); err != nil {
		return err
	}
	return v.control.Flush()
}

// handlePageEvents streams what one view of the page shows: "status" is its HTML when there is something new, "changes" are
// the newest.
func (s *Server) handlePageEvents(w http.ResponseWriter, r *http.Request) {
	p := pageKey{r.URL.Query().Get("view"), r.URL.Query().Get("name")}
	var shown *frame
	var next uint64
	s.streamEvents(w, r, changesEvery, func(v *viewer) error {
		if f := s.currentFrame(); f != shown {
			status, err := s.renderStatus(f, p)
			if err != nil || status == nil {
				return errors.Join(err, errViewGone)
			}
			shown = f
			v.addEvent("status", status)
		}
		facts, missed, last := s.changes.newestAfter(next, changesShown)
		if next == 0 {
			missed = 0 // they came before this viewer
		}
		if next = last; len(facts) > 0 {
			v.addEvent("changes", fmt.Appendf(nil, `{"missed":%d,"changes":[%s]}`, missed, bytes.Join(facts, []byte(","))))
		}
		return nil
	})
}

// handleChanges streams all changes from now on: one event each, and one called "missed", with a number, where some were
// overwritten before they could be sent.
func (s *Server) handleChanges(w http.ResponseWriter, r *http.Request) {
	_, _, next := s.changes.newestAfter(0, 0)
	heard := time.Now()
	s.streamEvents(w, r, tapEvery, func(v *viewer) error {
		facts, missed, last := s.changes.newestAfter(next, changesKept)
		next = last
		if missed > 0 {
			v.addEvent("missed", fmt.Append(nil, missed))
		}
		for _, f := range facts {
			v.addEvent("", f)
		}
		if v.buf.Len() == 0 && time.Since(heard) > aliveEvery { // so that a dead connection is noticed
			v.buf.WriteString(": still here\n\n")
		}
		if v.buf.Len() > 0 {
			heard = time.Now()
		}
		return nil
	})
}
