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
	frames  frames
}

// Stream returns the events in r.
func (d *Decoder) Stream(r io.Reader) *Stream {
	if d.stock.Load() {
		return &Stream{d, &valueFrames{dec: json.NewDecoder(r)}}
	}
	return &Stream{d, &lineFrames{r: bufio.NewReaderSize(r, readBuffer)}}
}

// Next returns the next event, and how many bytes it took. A stream that ends inside an event ends without it. Errors are
// ErrEnd, those of the reader, those of events that cannot be read, and what an ERROR event says.
func (s *Stream) Next() (e deltas.Event, size int, err error) {
	frame, err := s.frames.next()
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) || utilnet.IsProbableEOF(err) || utilnet.IsTimeout(err) {
		return e, 0, ErrEnd
	}
	if err != nil {
		return e, 0, err
	}
	e, err = s.decoder.frame(frame)
	return e, len(frame), err
}

// Arrived says that Next would not wait.
func (s *Stream) Arrived() bool { return s.frames.arrived() }

// frames finds the events of a watch in its bytes.
type frames interface {
	// next returns the next event; it is valid until the next call. A stream that ends inside an event ends without it.
	next() ([]byte, error)
	// arrived says that next would not wait.
	arrived() bool
}

// lineFrames finds frames at newlines. Every server built on k8s.io/apiserver writes one event a line, because it encodes
// with encoding/json's Encoder, and JSON text has no newline inside a string. That is how it is, not how it is promised; see
// Decoder for what becomes of a stream that does otherwise.
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
		if len(l.long) > maxEvent {
			return nil, fmt.Errorf("the API server sends an event of more than %d MiB", maxEvent>>20)
		}
		part, err = l.r.ReadSlice('\n')
		l.long = append(l.long, part...)
	}
	if err != nil {
		return nil, err
	}
	line := l.long
	if cap(l.long) > maxKept {
		l.long = nil
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
