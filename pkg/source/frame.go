package source

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// lineFramer frames a watch stream at newlines. Every server built on k8s.io/apiserver writes one event a line, because
// it encodes with encoding/json's Encoder, and JSON text has no newline inside a string. That is how it is, not how it
// is promised; a stream that does otherwise is handed to the stock framer (see wire).
//
// Per byte it costs a search and a copy, where the stock framer parses.
type lineFramer struct{}

// NewFrameReader returns a reader that gives one line a Read. A line that does not fit comes in parts, all but the last
// with io.ErrShortBuffer, as streaming.NewDecoder expects. A stream that ends inside a line ends with
// io.ErrUnexpectedEOF and without that line.
func (lineFramer) NewFrameReader(r io.ReadCloser) io.ReadCloser {
	return &lineReader{closer: r, buf: bufio.NewReaderSize(r, 32<<10)}
}

// NewFrameWriter writes what it is given: frames end themselves.
func (lineFramer) NewFrameWriter(w io.Writer) io.Writer { return w }

type lineReader struct {
	closer io.Closer
	buf    *bufio.Reader
	rest   []byte // of what was read last and did not fit; valid until the next read of buf
	inLine bool   // the line goes on behind rest
}

func (l *lineReader) Close() error { return l.closer.Close() }

func (l *lineReader) Read(p []byte) (int, error) {
	n := 0
	for {
		if len(l.rest) == 0 {
			if err := l.fill(n == 0 && !l.inLine); err != nil {
				return n, err
			}
		}
		k := copy(p[n:], l.rest)
		n += k
		l.rest = l.rest[k:]
		switch {
		case len(l.rest) == 0 && !l.inLine:
			return n, nil
		case n == len(p):
			return n, io.ErrShortBuffer
		}
	}
}

// fill reads the next part of a line, passing over blank lines between events.
func (l *lineReader) fill(atStart bool) error {
	for {
		part, err := l.buf.ReadSlice('\n')
		switch {
		case err == nil, errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && (l.inLine || len(bytes.TrimSpace(part)) > 0):
			return io.ErrUnexpectedEOF
		default:
			return err
		}
		if err == nil && atStart && len(bytes.TrimSpace(part)) == 0 {
			continue
		}
		l.rest, l.inLine = part, err != nil
		return nil
	}
}
