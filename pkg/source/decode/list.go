package decode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// List reads a list, or a page of one. It passes the metadata to begin, which may be nil, once and usually before the first
// object, and each object to take, which owns it, as they arrive: memory does not depend on the size of the list. It returns
// the metadata. Errors of begin and take end the reading.
func (d *Decoder) List(
	r io.Reader, begin func(metav1.ListMeta) error, take func(*deltas.Object) error,
) (meta metav1.ListMeta, err error) {
	v := valueReader{r: r}
	if v.peekByte() != '{' {
		v.fail(v.start, "the response to a list is not a JSON object")
	}
	for more := v.enter('{', '}'); more; more = v.passSeparator('}') {
		switch v.readName() {
		case "metadata":
			value := v.readValue()
			if v.err != nil {
				return meta, v.err
			}
			if err = json.Unmarshal(value, &meta); err == nil && begin != nil {
				err = begin(meta)
			}
		case "items":
			err = d.readItems(&v, take)
		default:
			v.readValue()
		}
		if err != nil {
			return meta, err
		}
	}
	return meta, v.err
}

// readItems reads the array of objects of a page; null is an empty array.
func (d *Decoder) readItems(v *valueReader, take func(*deltas.Object) error) error {
	if v.peekByte() != '[' {
		if value := v.readValue(); v.err == nil && string(value) != "null" {
			return errors.New("the items of a list are no array")
		}
		return v.err
	}
	for more := v.enter('[', ']'); more; more = v.passSeparator(']') {
		raw := v.readValue()
		if v.err != nil {
			return v.err
		}
		o, err := d.Object(raw)
		if err == nil {
			err = requireName(o)
		}
		if err != nil {
			return d.countFailure(raw, err)
		}
		if err := take(o); err != nil {
			return err
		}
	}
	return v.err
}

// valueReader splits a JSON text into values while it arrives. Like scanDocument it follows brackets and strings only:
// encoding/json's Decoder passes each byte twice, which would take most of the time of a list. After an error, err is set:
// methods return zero values and read no more.
type valueReader struct {
	r      io.Reader
	buffer []byte // what was read and is not passed yet is buffer[start:end]
	start  int
	end    int
	before int   // bytes of the text before the buffer
	ended  error // the error of r, reported once everything before it is passed
	err    error
}

// fill reads until size bytes or r's error are buffered. It moves the buffered bytes or enlarges the buffer.
func (v *valueReader) fill(size int) {
	if size > 2*maxEvent {
		v.fail(v.start, fmt.Sprintf("the API server sent a value of more than %d MiB", maxEvent>>20))
		return
	}
	if v.start+size > len(v.buffer) {
		to := v.buffer
		if size > len(to) {
			to = make([]byte, max(size, readBuffer))
		}
		v.before += v.start
		v.end = copy(to, v.buffer[v.start:v.end])
		v.buffer, v.start = to, 0
	}
	for v.end-v.start < size && v.ended == nil {
		var n int
		n, v.ended = v.r.Read(v.buffer[v.end:])
		v.end += n
	}
	if errors.Is(v.ended, io.EOF) {
		v.ended = io.ErrUnexpectedEOF // a list has not ended before its closing bracket
	}
}

// fail sets the error for the byte at index i of the buffer.
func (v *valueReader) fail(i int, problem string) {
	if v.err == nil {
		v.err = fmt.Errorf("%s at byte %d", problem, v.before+i)
	}
}

// peekByte returns the next byte that is not white space.
func (v *valueReader) peekByte() byte {
	for v.err == nil {
		if v.start = rawjson.SkipSpace(v.buffer[:v.end], v.start); v.start < v.end {
			return v.buffer[v.start]
		}
		if v.err = v.ended; v.err == nil {
			v.fill(1)
		}
	}
	return 0
}

// passByte passes the next byte that is not white space, which must be c.
func (v *valueReader) passByte(c byte) {
	if v.peekByte() == c {
		v.start++
		return
	}
	v.fail(v.start, "malformed JSON")
}

// enter passes an opening bracket and reports whether a member or an element follows.
func (v *valueReader) enter(opening, closing byte) bool {
	v.passByte(opening)
	if v.peekByte() == closing {
		v.passByte(closing)
		return false
	}
	return v.err == nil
}

// passSeparator passes the comma or closing bracket after a value, and reports whether another member or element follows.
func (v *valueReader) passSeparator(closing byte) bool {
	if v.peekByte() == ',' {
		v.passByte(',')
		return v.err == nil
	}
	v.passByte(closing)
	return false
}

// readName reads the name of a member and the colon after it.
func (v *valueReader) readName() string {
	if v.peekByte() != '"' {
		v.fail(v.start, "malformed JSON")
		return ""
	}
	quoted := v.readValue()
	if v.err != nil {
		return ""
	}
	name := string(rawjson.Unquote(quoted))
	v.passByte(':')
	return name
}

// readValue returns the next value. It is valid until the next call of any method.
func (v *valueReader) readValue() []byte {
	v.peekByte()
	for v.err == nil {
		end := rawjson.SkipTrustedValue(v.buffer[:v.end], v.start)
		switch {
		case end >= 0 && (end < v.end || endsItself(v.buffer[end-1])):
			value := v.buffer[v.start:end]
			v.start = end
			return value
		case end < 0 && rawjson.FailAt(end) < v.end:
			v.fail(rawjson.FailAt(end), "malformed JSON")
		case v.ended != nil:
			v.err = v.ended
		default: // twice as much each time, so that a large value is not passed once for each part that arrives
			v.fill(2 * (v.end - v.start))
		}
	}
	return nil
}

// endsItself reports whether the last byte of a value shows that the value is complete. A number may continue.
func endsItself(last byte) bool { return last == '}' || last == ']' || last == '"' }
