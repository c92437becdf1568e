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

// Connection is one open watch. A goroutine reads it, ahead by one batch, so that objects are found in the bytes while
// those of the batch before are handled. One goroutine receives from it.
type Connection struct {
	Batches chan *Batch // closed when the connection has ended
	Err     error       // how it ended; valid when Batches is closed
	cancel  context.CancelFunc
}

// ErrQuiet says that a connection brought nothing for as long as Next was to wait. It is still open.
var ErrQuiet = errors.New("the API server sends nothing")

// Batch is what had arrived when the first event of it was read, bounded in number and size. It is valid until the next one
// is received. The zero value is empty.
type Batch struct {
	Events    []deltas.Event // without bookmarks
	Read      uint64         // events, with bookmarks
	Position  string         // resourceVersion of the last of them
	Bookmarks bool           // there are some
	Listed    bool           // the last of them marks the end of a WatchList's initial events (KEP-3157)
	Live      bool           // some are no ADDED, and so none of the initial events
	bytes     int
}

const (
	// A batch is one observation; what is known of it at a time is in memory.
	maxBatchEvents = 256
	maxBatchBytes  = 1 << 20
)

// newConnection reads body, which it closes, until it ends or ctx does. cancel ends ctx.
func newConnection(ctx context.Context, cancel context.CancelFunc, body io.ReadCloser, d *decode.Decoder) *Connection {
	c := &Connection{Batches: make(chan *Batch), cancel: cancel}
	events := d.Stream(body)
	go func() {
		defer close(c.Batches)
		defer body.Close()
		defer func() {
			if errors.Is(context.Cause(ctx), decode.ErrEnd) { // its time was up, whatever that looks like from below
				c.Err = decode.ErrEnd
			}
		}()
		// Two are enough: while one is handled the other is filled, and it is handed over when the first is done with.
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

// Next returns the next batch. Its errors are those of ctx, Err when the connection has ended, and ErrQuiet when nothing
// came for as long as given.
func (c *Connection) Next(ctx context.Context, patience time.Duration) (*Batch, error) {
	quiet := time.NewTimer(patience)
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

// Stop ends the connection and waits until nothing reads it any more. It is called once.
func (c *Connection) Stop() {
	c.cancel()
	for range c.Batches { //nolint:revive // until it is closed
	}
}

// readArrived reads one event, however long that takes, and those behind it that have arrived.
func (b *Batch) readArrived(events *decode.Stream) error {
	clear(b.Events) // so that they are not kept
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

// Add takes an event of so many bytes.
func (b *Batch) Add(e deltas.Event, size int) {
	b.Read++
	b.bytes += size
	if IsPosition(e.Object.ResourceVersion) {
		b.Position = e.Object.ResourceVersion
	}
	b.Live = b.Live || e.Type != watch.Added
	if e.Type == watch.Bookmark {
		b.Bookmarks, b.Listed = true, e.Object.InitialEventsEnd
		return
	}
	b.Events = append(b.Events, e)
}

// IsPosition says whether a resourceVersion can be watched on from: without one, or with 0, the API server begins wherever
// it likes, and what was deleted before that is lost without a word.
func IsPosition(resourceVersion string) bool { return resourceVersion != "" && resourceVersion != "0" }

// Full says that the batch takes nothing more.
func (b *Batch) Full() bool { return b.Read >= maxBatchEvents || b.bytes >= maxBatchBytes }
