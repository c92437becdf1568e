package source

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/deltas"
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
	// maxFrame bounds one event. etcd takes no object of more than a few MiB; a stream without an end of line is none.
	maxFrame = 64 << 20
	// readBuffer is what is read of a connection at a time.
	readBuffer = 32 << 10
)

// connect reads body, which it closes, until it ends or cancel, which ends the request, is called.
func connect(body io.ReadCloser, cancel context.CancelFunc, d *decoder) *connection {
	c := &connection{batches: make(chan *batch), cancel: cancel}
	var f frames = &lineFrames{r: bufio.NewReaderSize(body, readBuffer)}
	if d.stock.Load() {
		f = &valueFrames{dec: json.NewDecoder(body)}
	}
	stopped := make(chan struct{})
	end := cancel
	c.cancel = func() { end(); close(stopped) }
	go func() {
		defer close(c.batches)
		defer body.Close()
		// Two are enough: while one is handled the other is filled, and it is handed over when the first is done with.
		for spare, b := new(batch), new(batch); c.err == nil; spare, b = b, spare {
			c.err = b.fill(f, d)
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
func (b *batch) fill(f frames, d *decoder) error {
	clear(b.events) // so that they are not kept
	*b = batch{events: b.events[:0]}
	for {
		frame, err := f.next()
		if err != nil {
			return endOfStream(err)
		}
		e, err := d.frame(frame)
		if err != nil {
			return err
		}
		b.add(e, len(frame))
		if b.listed || b.read >= maxBatchEvents || b.bytes >= maxBatchBytes || !f.arrived() {
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

// endOfStream makes of a connection that is cut the same as of one that ends: nothing more can come of it. What else goes
// wrong with the bytes is an error.
func endOfStream(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) || utilnet.IsProbableEOF(err) || utilnet.IsTimeout(err) {
		return errStreamEnd
	}
	return err
}

// frames finds the events of a watch in its bytes.
type frames interface {
	// next returns the next event; it is valid until the next call. A stream that ends inside an event ends without it.
	next() ([]byte, error)
	// arrived says that next would not wait.
	arrived() bool
}

// lineFrames finds frames at newlines. Every server built on k8s.io/apiserver writes one event a line, because it encodes with
// encoding/json's Encoder, and JSON text has no newline inside a string. That is how it is, not how it is promised; see
// decoder for what becomes of a stream that does otherwise.
type lineFrames struct {
	r    *bufio.Reader
	long []byte // of a line that is longer than the buffer
}

func (l *lineFrames) next() ([]byte, error) {
	for {
		line, err := l.line()
		if len(bytes.TrimSpace(line)) > 0 || err != nil {
			return line, err
		}
	}
}

func (l *lineFrames) line() ([]byte, error) {
	part, err := l.r.ReadSlice('\n')
	if err == nil {
		return part, nil
	}
	l.long = append(l.long[:0], part...)
	for errors.Is(err, bufio.ErrBufferFull) {
		if len(l.long) > maxFrame {
			return nil, fmt.Errorf("the API server sends an event of more than %d MiB", maxFrame>>20)
		}
		part, err = l.r.ReadSlice('\n')
		l.long = append(l.long, part...)
	}
	if err != nil {
		return nil, err
	}
	line := l.long
	if cap(l.long) > maxBatchBytes {
		l.long = nil // one large object must not stay
	}
	return line, nil
}

func (l *lineFrames) arrived() bool {
	b, err := l.r.Peek(l.r.Buffered())
	return err == nil && bytes.IndexByte(b, '\n') >= 0
}

// valueFrames finds frames as JSON values, whatever stands between them.
type valueFrames struct {
	dec *json.Decoder
	raw json.RawMessage
}

func (v *valueFrames) next() ([]byte, error) {
	err := v.dec.Decode(&v.raw)
	return v.raw, err
}

func (v *valueFrames) arrived() bool { return false }
