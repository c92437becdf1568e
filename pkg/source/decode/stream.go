package decode

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/kubecdc/kubecdc/pkg/deltas"
)

const (
	// maxEvent bounds one event. etcd takes no object of more than a few MiB; a stream without an end of line is none.
	maxEvent = 64 << 20
	// maxKept bounds the buffer that is kept for long events: one large object must not stay.
	maxKept = 1 << 20
	// readBuffer is what is read of a stream at a time.
	readBuffer = 32 << 10
)

// ErrEnd says that a stream has ended, in order or cut off: nothing more can come of it.
var ErrEnd = errors.New("the API server ended the watch")

// Stream reads the events of one watch. It is used by one goroutine.
type Stream struct {
	decoder *Decoder
	frames  frameReader
}

// Stream returns the events in r.
func (d *Decoder) Stream(r io.Reader) *Stream {
	if d.useStockJSON.Load() {
		return &Stream{d, &valueFrames{dec: json.NewDecoder(r)}}
	}
	return &Stream{d, &lineFrames{r: bufio.NewReaderSize(r, readBuffer)}}
}

// Next returns the next event, and how many bytes it took. A stream that ends inside an event ends without it. Errors are
// ErrEnd, those of the reader, those of events that cannot be read, and what an ERROR event says.
func (s *Stream) Next() (e deltas.Event, size int, err error) {
	frame, err := s.frames.nextFrame()
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) || utilnet.IsProbableEOF(err) || utilnet.IsTimeout(err) {
		return e, 0, ErrEnd
	}
	if err != nil {
		return e, 0, err
	}
	e, err = s.decoder.decodeEvent(frame)
	return e, len(frame), err
}

// Buffered says that Next would not wait.
func (s *Stream) Buffered() bool { return s.frames.frameBuffered() }

// frameReader finds the events of a watch in its bytes.
type frameReader interface {
	// nextFrame returns the next event; it is valid until the next call. A stream that ends inside an event ends without it.
	nextFrame() ([]byte, error)
	// frameBuffered says that next would not wait.
	frameBuffered() bool
}

// lineFrames finds frames at newlines. Every server built on k8s.io/apiserver writes one event a line, because it encodes
// with encoding/json's Encoder, and JSON text has no newline inside a string. That is how it is, not how it is promised; see
// Decoder for what becomes of a stream that does otherwise.
type lineFrames struct {
	r        *bufio.Reader
	longLine []byte // of a line that is longer than the buffer
}

func (l *lineFrames) nextFrame() ([]byte, error) {
	for {
		line, err := l.readLine()
		if len(bytes.TrimSpace(line)) > 0 || err != nil {
			return line, err
		}
	}
}

func (l *lineFrames) readLine() ([]byte, error) {
	part, err := l.r.ReadSlice('\n')
	if err == nil {
		return part, nil
	}
	l.longLine = append(l.longLine[:0], part...)
	for errors.Is(err, bufio.ErrBufferFull) {
		if len(l.longLine) > maxEvent {
			return nil, fmt.Errorf("the API server sends an event of more than %d MiB", maxEvent>>20)
		}
		part, err = l.r.ReadSlice('\n')
		l.longLine = append(l.longLine, part...)
	}
	if err != nil {
		return nil, err
	}
	line := l.longLine
	if cap(l.longLine) > maxKept {
		l.longLine = nil
	}
	return line, nil
}

func (l *lineFrames) frameBuffered() bool {
	b, err := l.r.Peek(l.r.Buffered())
	return err == nil && bytes.IndexByte(b, '\n') >= 0
}

// valueFrames finds frames as JSON values, whatever stands between them.
type valueFrames struct {
	dec *json.Decoder
	raw json.RawMessage
}

func (v *valueFrames) nextFrame() ([]byte, error) {
	err := v.dec.Decode(&v.raw)
	return v.raw, err
}

func (v *valueFrames) frameBuffered() bool { return false }
