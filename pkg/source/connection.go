package source

import (
	"context"
	"io"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/source/decode"
)

// connection is one open watch. A goroutine reads it, ahead by one batch, so that objects are found in the bytes while
// those of the batch before are handled.
type connection struct {
	batches chan *batch // closed when the connection has ended
	cancel  context.CancelFunc
	err     error // how it ended; valid when batches is closed
}

// batch is what had arrived when the first event of it was read, bounded in number and size. It is valid until the next one
// is received.
type batch struct {
	events    []deltas.Event // without bookmarks
	read      uint64         // events, with bookmarks
	position  string         // resourceVersion of the last of them
	bookmarks bool           // there are some
	listed    bool           // the last of them marks the end of a WatchList's initial events (KEP-3157)
	bytes     int
}

const (
	// A batch is one observation; what is known of it at a time is in memory.
	maxBatchEvents = 256
	maxBatchBytes  = 1 << 20
)

// connect reads body, which it closes, until it ends or cancel, which ends the request, is called.
func connect(body io.ReadCloser, cancel context.CancelFunc, d *decode.Decoder) *connection {
	c := &connection{batches: make(chan *batch), cancel: cancel}
	events := d.Stream(body)
	stopped := make(chan struct{})
	end := cancel
	c.cancel = func() { end(); close(stopped) }
	go func() {
		defer close(c.batches)
		defer body.Close()
		// Two are enough: while one is handled the other is filled, and it is handed over when the first is done with.
		for spare, b := new(batch), new(batch); c.err == nil; spare, b = b, spare {
			c.err = b.fill(events)
			if b.read == 0 {
				continue
			}
			select {
			case c.batches <- b:
			case <-stopped:
				return
			}
		}
	}()
	return c
}

// stop ends the connection and waits until nothing reads it any more. It is called once.
func (c *connection) stop() {
	c.cancel()
	for range c.batches { //nolint:revive // until it is closed
	}
}

// fill reads one event, however long that takes, and those behind it that have arrived.
func (b *batch) fill(events *decode.Stream) error {
	clear(b.events) // so that they are not kept
	*b = batch{events: b.events[:0]}
	for {
		e, size, err := events.Next()
		if err != nil {
			return err
		}
		b.add(e, size)
		if b.listed || b.read >= maxBatchEvents || b.bytes >= maxBatchBytes || !events.Arrived() {
			return nil
		}
	}
}

func (b *batch) add(e deltas.Event, size int) {
	b.read++
	b.bytes += size
	if e.Object.ResourceVersion != "" {
		b.position = e.Object.ResourceVersion
	}
	if e.Type == watch.Bookmark {
		b.bookmarks, b.listed = true, e.Object.InitialEventsEnd
		return
	}
	b.events = append(b.events, e)
}
