package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// ErrMalformed is returned for stored bytes that do not have the form of docs/journal-format.md. The caller moves the store
// aside.
var ErrMalformed = errors.New("malformed")

// coder encodes or decodes values. Each stored value is described once, by a function that calls the methods of coder for
// its parts in order and serves both directions. Values that are encoded are not modified: other goroutines may read them.
type coder struct {
	decoding bool
	out      []byte // written so far
	in       string // still to be read; strings that are read are parts of it: one allocation backs them all
	bodies   []byte // of changes, still to be read; nil where they are left out
	failed   bool   // the input was too short or invalid; all further values are zero
}

// encodeValue appends the stored form of v to b.
func encodeValue[T any](b []byte, parts func(*coder, *T), v *T) []byte {
	f := coder{out: b}
	parts(&f, v)
	return f.out
}

// decodeValue is the inverse of encodeValue, and refuses remaining bytes. It keeps nothing of b.
func decodeValue[T any](what string, b []byte, parts func(*coder, *T), v *T) error {
	f := coder{decoding: true, in: string(b)}
	if parts(&f, v); f.failed || f.in != "" {
		return fmt.Errorf("%w: %s", ErrMalformed, what)
	}
	return nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func (f *coder) fail() { f.in, f.failed = "", true }

func (f *coder) codeByte(v *byte) {
	switch {
	case !f.decoding:
		f.out = append(f.out, *v)
	case f.in == "":
		*v = 0
		f.fail()
	default:
		*v, f.in = f.in[0], f.in[1:]
	}
}

// codeFormat codes the format byte that a value begins with. Decoding fails for any other byte.
func (f *coder) codeFormat(format byte) {
	found := format
	if f.codeByte(&found); found != format {
		f.fail()
	}
}

func (f *coder) codeUvarint(v *uint64) {
	if f.decoding {
		*v = f.readUvarint()
	} else {
		f.out = binary.AppendUvarint(f.out, *v)
	}
}

func (f *coder) codeVarint(v *int64) {
	if f.decoding {
		u := f.readUvarint()
		*v = int64(u>>1) ^ -int64(u&1)
	} else {
		f.out = binary.AppendVarint(f.out, *v)
	}
}

func (f *coder) readUvarint() uint64 {
	var v uint64
	for i := 0; i < len(f.in) && i < binary.MaxVarintLen64; i++ {
		b := f.in[i]
		if b < 0x80 {
			if i == binary.MaxVarintLen64-1 && b > 1 {
				break // more than 64 bits
			}
			f.in = f.in[i+1:]
			return v | uint64(b)<<(7*i)
		}
		v |= uint64(b&0x7f) << (7 * i)
	}
	f.fail()
	return 0
}

func (f *coder) codeText(v *string) {
	if f.decoding {
		*v = f.cutText(f.readUvarint())
	} else {
		f.out = appendText(f.out, *v)
	}
}

func (f *coder) codeTexts(all ...*string) {
	for _, v := range all {
		f.codeText(v)
	}
}

// codeRemainingText codes the last text of a value, without its length.
func (f *coder) codeRemainingText(v *string) {
	if f.decoding {
		*v = f.cutText(uint64(len(f.in)))
	} else {
		f.out = append(f.out, *v...)
	}
}

func (f *coder) cutText(n uint64) string {
	if n > uint64(len(f.in)) {
		f.fail()
		return ""
	}
	v := f.in[:n]
	f.in = f.in[n:]
	return v
}

// codeCount codes the number of items that follow. Each takes at least so many bytes, which keeps a broken count from
// causing a huge allocation.
func (f *coder) codeCount(n, least int) int {
	count := uint64(n)
	if f.codeUvarint(&count); f.decoding && count > uint64(len(f.in)/least) {
		f.fail()
		return 0
	}
	return int(count)
}

// codeTextList codes a list of texts; a decoded empty list is not nil.
func (f *coder) codeTextList(v *[]string) {
	n := f.codeCount(len(*v), 1)
	if f.decoding {
		*v = make([]string, n)
	}
	for i := range n {
		f.codeText(&(*v)[i])
	}
}

func (f *coder) codeTime(v *time.Time) {
	sec, nsec := v.Unix(), uint64(v.Nanosecond())
	f.codeVarint(&sec)
	f.codeUvarint(&nsec)
	switch {
	case !f.decoding:
	case nsec >= uint64(time.Second):
		f.fail()
	default:
		*v = time.Unix(sec, int64(nsec)).UTC()
	}
}

// codeEnum codes a value of an enumeration by its index. Code 0 means that the value follows as a text.
func codeEnum[T ~string](f *coder, codes []T, v *T) {
	if !f.decoding {
		for i := 1; i < len(codes); i++ {
			if codes[i] == *v {
				f.out = append(f.out, byte(i))
				return
			}
		}
		f.out = appendText(append(f.out, 0), string(*v))
		return
	}
	var i byte
	switch f.codeByte(&i); {
	case i == 0:
		*v = T(f.cutText(f.readUvarint()))
	case int(i) >= len(codes):
		f.fail()
	default:
		*v = codes[i]
	}
}

// allocateOptional allocates an optional part for decoding, and returns there.
func allocateOptional[T any](f *coder, there bool, v **T) bool {
	if there && f.decoding {
		*v = new(T)
	}
	return there
}
