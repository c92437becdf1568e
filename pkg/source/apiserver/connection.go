package apiserver

import (
	"context"
	"errors"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/source/decode"
)

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
