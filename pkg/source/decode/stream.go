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
	// maxEvent bounds one event. etcd accepts objects of a few MiB; a stream without line ends is not a watch.
	maxEvent = 64 << 20
	// maxKept bounds the buffer kept for long events, so that one large object does not pin its memory.
	maxKept = 1 << 20
	// readBuffer is the size of the read buffer of a stream.
	readBuffer = 32 << 10
)

// ErrEnd means that a stream has ended, orderly or cut off.
var ErrEnd = errors.New("the API server ended the watch")

// Stream reads the events of one watch. It is used by one goroutine.
type Stream struct {
	decoder *Decoder
	frames  frameReader
}

// Stream returns a stream of the events in r.
func (d *Decoder) Stream(r io.Reader) *Stream {
	if d.useStockJSON.Load() {
		return &Stream{d, &valueFrames{dec: json.NewDecoder(r)}}
	}
	return &Stream{d, &lineFrames{r: bufio.NewReaderSize(r, readBuffer)}}
}

// Next returns the next event and its size in bytes. An incomplete event at the end of the stream is dropped. Errors are
// ErrEnd, those of the reader, those of unparseable events, and the status in an ERROR event.
func (s *Stream) Next() (e deltas.Event, size int, err error) {
	frame, err := s.frames.nextFrame()
	if err == nil {
		e, err = s.decoder.decodeEvent(frame)
		return e, len(frame), err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) || utilnet.IsProbableEOF(err) || utilnet.IsTimeout(err) {
		return e, 0, ErrEnd
	}
	return e, 0, err
}

// Buffered reports whether Next would return without reading from the connection.
func (s *Stream) Buffered() bool { return s.frames.frameBuffered() }

// frameReader splits the bytes of a watch into events.
type frameReader interface {
	// nextFrame returns the next event; it is valid until the next call. An incomplete event at the end of the stream is
	// dropped.
	nextFrame() ([]byte, error)
	// frameBuffered reports whether nextFrame would return without reading.
	frameBuffered() bool
}

// lineFrames splits at newlines. Every server built on k8s.io/apiserver writes one event per line, because it uses
// encoding/json's Encoder, and JSON has no newline inside a string. The API does not guarantee that; see Decoder for streams
// in another form.
type lineFrames struct {
	r        *bufio.Reader
	longLine []byte // holds a line longer than the buffer
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
			return nil, fmt.Errorf("the API server sent an event of more than %d MiB", maxEvent>>20)
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

// valueFrames splits at JSON values, whatever white space is between them.
type valueFrames struct {
	dec *json.Decoder
	raw json.RawMessage
}

func (v *valueFrames) nextFrame() ([]byte, error) {
	err := v.dec.Decode(&v.raw)
	return v.raw, err
}

func (v *valueFrames) frameBuffered() bool { return false }
