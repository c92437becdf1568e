package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/source/decode"
)

// transport wraps all requests. It asks for uncompressed responses (without the header a server may choose any coding),
// rejects others and redirects to other servers, and it compares this machine's clock with the date of each response.
type transport struct {
	http.RoundTripper
	skew *atomic.Int64
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Accept-Encoding", "identity")
	answer, err := t.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		t.skew.Store(int64(clockSkewAt(time.Now(), date)))
	}
	if coding := answer.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		_ = answer.Body.Close() // discarded unread
		return nil, fmt.Errorf("the response from %s is compressed (Content-Encoding: %s) although uncompressed data was requested: "+
			"look at the proxy there", r.URL.Host, coding)
	}
	if to, err := answer.Location(); err == nil && (to.Host != r.URL.Host || to.Scheme != r.URL.Scheme) {
		_ = answer.Body.Close() // discarded unread
		return nil, fmt.Errorf("%s redirects to another server (status %d), which would get the credentials: look at the proxy there",
			r.URL.Host, answer.StatusCode)
	}
	return answer, nil
}

// WrappedRoundTripper lets client-go find the wrapped transport.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

// clockSkewAt returns how far now is ahead of a Date header. The header is truncated to seconds, so up to one second is no
// skew.
func clockSkewAt(now, date time.Time) time.Duration {
	skew := now.Sub(date)
	if skew >= 0 {
		skew -= min(skew, time.Second)
	}
	return skew
}

// leaveOutText returns a RoundTripper with the responses of next, but of failures only what [decode.KnownStatus] leaves:
// it cannot be known what else they quote. Each client wraps its requests in it.
func leaveOutText(next http.RoundTripper) http.RoundTripper { return &textFilter{next} }

type textFilter struct{ http.RoundTripper }

// maxStatusBytes bounds what is read of a failure.
const maxStatusBytes = 64 << 10

func (f *textFilter) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := f.RoundTripper.RoundTrip(r)
	if err != nil || answer.StatusCode < http.StatusBadRequest {
		return answer, err
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxStatusBytes))
	_ = answer.Body.Close() // what is left is discarded
	if err != nil {
		return nil, err
	}
	var status metav1.Status
	if json.Unmarshal(body, &status) != nil || status.Kind != "Status" {
		body = nil // client-go makes an error of the code
	} else if body, err = json.Marshal(decode.KnownStatus(&status)); err != nil {
		return nil, err
	}
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return answer, nil
}

// WrappedRoundTripper lets client-go find the wrapped transport.
func (f *textFilter) WrappedRoundTripper() http.RoundTripper { return f.RoundTripper }

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

// Connection is an open watch. A goroutine reads one batch ahead, so that parsing overlaps with the handling of the previous
// batch. It is used by one receiver.
type Connection struct {
	Batches chan *Batch // closed when the connection ends
	Err     error       // the reason of the end; valid once Batches is closed
	cancel  context.CancelFunc
}

// ErrQuiet means that a connection delivered nothing within the timeout of Next. The connection stays open.
var ErrQuiet = errors.New("the API server sends nothing")

// Batch holds the events that had arrived when its first event was read, bounded in number and bytes. It is valid until the
// next batch is received; then its memory is reused. The zero value is empty.
type Batch struct {
	Events    []deltas.Event // without bookmarks
	Read      uint64         // number of events, bookmarks included
	Position  string         // resourceVersion of the last event
	Bookmarks bool           // the batch has bookmarks
	Listed    bool           // the last event marks the end of a WatchList's initial events (KEP-3157)
	bytes     int
}

const (
	// A batch becomes one observation, which is held in memory until it is appended.
	maxBatchEvents = 256
	maxBatchBytes  = 1 << 20
)

// newConnection reads body until it ends or ctx does, and closes it. cancel ends ctx.
func newConnection(ctx context.Context, cancel context.CancelFunc, body io.ReadCloser, d *decode.Decoder) *Connection {
	c := &Connection{Batches: make(chan *Batch), cancel: cancel}
	events := d.Stream(lossReader{body})
	go func() {
		defer close(c.Batches)
		defer body.Close()
		defer func() {
			if errors.Is(context.Cause(ctx), decode.ErrEnd) { // the watch timed out, whatever error the transport returned
				c.Err = decode.ErrEnd
			}
		}()
		// Two batches alternate: the receiver handles one while the other is filled. The unbuffered send waits for the
		// receiver.
		for spare, b := new(Batch), new(Batch); c.Err == nil; spare, b = b, spare {
			c.Err = b.readArrived(events)
			if b.Read == 0 {
				continue
			}
			select {
			case c.Batches <- b:
			case <-ctx.Done():
				c.Err = ctx.Err()
			}
		}
	}()
	return c
}

// lossReader marks the errors of a lost connection.
type lossReader struct{ io.Reader }

func (r lossReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		err = &lostError{err}
	}
	return n, err
}

// lostError means that a connection was lost while a response was read.
type lostError struct{ err error }

func (e *lostError) Error() string {
	return "the connection to the API server was lost: " + e.err.Error()
}
func (e *lostError) Unwrap() error { return e.err }

// Next returns the next batch. It returns the error of ctx, Err once the connection has ended, or ErrQuiet if nothing
// arrived within timeout.
func (c *Connection) Next(ctx context.Context, timeout time.Duration) (*Batch, error) {
	quiet := time.NewTimer(timeout)
	defer quiet.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-quiet.C:
		return nil, ErrQuiet
	case b, ok := <-c.Batches:
		if !ok {
			return nil, c.Err
		}
		return b, nil
	}
}

// Stop ends the connection and waits for its goroutine. It is called once.
func (c *Connection) Stop() {
	c.cancel()
	for range c.Batches { //nolint:revive // drain until closed
	}
}

// readArrived waits for one event, and then adds the events that are already buffered.
func (b *Batch) readArrived(events *decode.Stream) error {
	clear(b.Events) // release the objects of the previous use
	*b = Batch{Events: b.Events[:0]}
	for {
		e, size, err := events.Next()
		if err != nil {
			return err
		}
		b.Add(e, size)
		if b.Listed || b.Full() || !events.Buffered() {
			return nil
		}
	}
}

// Add adds an event of size bytes.
func (b *Batch) Add(e deltas.Event, size int) {
	b.Read++
	b.bytes += size
	if IsPosition(e.Object.ResourceVersion) {
		b.Position = e.Object.ResourceVersion
	}
	if e.Type == watch.Bookmark {
		b.Bookmarks, b.Listed = true, e.Object.InitialEventsEnd
		return
	}
	b.Events = append(b.Events, e)
}

// IsPosition reports whether a watch can start at a resourceVersion. With an empty one, or 0, the API server starts at an
// arbitrary state, and earlier deletes are lost without notice.
func IsPosition(resourceVersion string) bool { return resourceVersion != "" && resourceVersion != "0" }

// Full reports whether the batch has reached its bounds.
func (b *Batch) Full() bool { return b.Read >= maxBatchEvents || b.bytes >= maxBatchBytes }
