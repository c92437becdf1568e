package form

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// ErrMalformed is returned for stored bytes that do not have the specified form.
var ErrMalformed = errors.New("malformed")

// Coder encodes or decodes values. Each stored value is described once, by a function that calls the methods of Coder for
// its parts in order and serves both directions. Values that are encoded are not modified: other goroutines may read them.
// Stored bytes may be broken: decoding then fails, and neither panics nor allocates much memory.
type Coder struct {
	Decoding bool
	Failed   bool   // the input was too short or invalid; all further values are zero
	Out      []byte // written so far
	In       string // still to be read; strings that are read are parts of it: one allocation backs them all
}

// EncodeValue appends the stored form of v to b.
func EncodeValue[T any](b []byte, parts func(*Coder, *T), v *T) []byte {
	f := Coder{Out: b}
	parts(&f, v)
	return f.Out
}

// DecodeValue is the inverse of EncodeValue, and refuses remaining bytes. It keeps nothing of b.
func DecodeValue[T any, B ~string | ~[]byte](what string, b B, parts func(*Coder, *T), v *T) error {
	f := Coder{Decoding: true, In: string(b)}
	if parts(&f, v); f.Failed || f.In != "" {
		return fmt.Errorf("%w: %s", ErrMalformed, what)
	}
	return nil
}

// AppendText appends a text: a uvarint length, and the bytes.
func AppendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// Fail refuses what is decoded.
func (f *Coder) Fail() { f.In, f.Failed = "", true }

// CodeByte codes a byte.
func (f *Coder) CodeByte(v *byte) {
	switch {
	case !f.Decoding:
		f.Out = append(f.Out, *v)
	case f.In == "":
		*v = 0
		f.Fail()
	default:
		*v, f.In = f.In[0], f.In[1:]
	}
}

// CodeFormat codes the format byte that a value begins with. Decoding fails for any other byte.
func (f *Coder) CodeFormat(format byte) {
	found := format
	if f.CodeByte(&found); found != format {
		f.Fail()
	}
}

// CodeBool codes a byte, 1 for true.
func (f *Coder) CodeBool(v *bool) {
	var b byte
	if *v {
		b = 1
	}
	if f.CodeByte(&b); f.Decoding {
		*v = b == 1
	}
}

// CodeUvarint codes an unsigned number, as a uvarint of encoding/binary.
func (f *Coder) CodeUvarint(v *uint64) {
	if f.Decoding {
		*v = f.readUvarint()
	} else {
		f.Out = binary.AppendUvarint(f.Out, *v)
	}
}

// CodeVarint codes a signed number, as a varint of encoding/binary.
func (f *Coder) CodeVarint(v *int64) {
	if f.Decoding {
		u := f.readUvarint()
		*v = int64(u>>1) ^ -int64(u&1)
	} else {
		f.Out = binary.AppendVarint(f.Out, *v)
	}
}

// CodeNumber codes a number of another type as a varint.
func CodeNumber[T ~int | ~int16 | ~int32 | ~int64 | ~uint64](f *Coder, v *T) {
	n := int64(*v)
	if f.CodeVarint(&n); f.Decoding {
		*v = T(n)
	}
}

func (f *Coder) readUvarint() uint64 {
	var v uint64
	for i := 0; i < len(f.In) && i < binary.MaxVarintLen64; i++ {
		b := f.In[i]
		if b < 0x80 {
			if i == binary.MaxVarintLen64-1 && b > 1 {
				break // more than 64 bits
			}
			f.In = f.In[i+1:]
			return v | uint64(b)<<(7*i)
		}
		v |= uint64(b&0x7f) << (7 * i)
	}
	f.Fail()
	return 0
}

// CodeText codes a text with its length.
func (f *Coder) CodeText(v *string) {
	if f.Decoding {
		*v = f.cutText(f.readUvarint())
	} else {
		f.Out = AppendText(f.Out, *v)
	}
}

// CodeTexts codes texts, one after another.
func (f *Coder) CodeTexts(all ...*string) {
	for _, v := range all {
		f.CodeText(v)
	}
}

// CodeRemainingText codes the last text of a value, without its length.
func (f *Coder) CodeRemainingText(v *string) {
	if f.Decoding {
		*v = f.cutText(uint64(len(f.In)))
	} else {
		f.Out = append(f.Out, *v...)
	}
}

func (f *Coder) cutText(n uint64) string {
	if n > uint64(len(f.In)) {
		f.Fail()
		return ""
	}
	v := f.In[:n]
	f.In = f.In[n:]
	return v
}

// CodeFixed codes as many bytes as v has.
func (f *Coder) CodeFixed(v []byte) {
	if f.Decoding {
		copy(v, f.cutText(uint64(len(v))))
	} else {
		f.Out = append(f.Out, v...)
	}
}

// CodeCount codes the number of items that follow. Each takes at least so many bytes, which keeps a broken count from
// causing a huge allocation.
func (f *Coder) CodeCount(n, least int) int {
	count := uint64(n)
	if f.CodeUvarint(&count); f.Decoding && count > uint64(len(f.In)/least) {
		f.Fail()
		return 0
	}
	return int(count)
}

// CodeList codes a list of items, each of which takes at least so many bytes; a decoded empty list is nil.
func CodeList[T any](f *Coder, v *[]T, least int, item func(*Coder, *T)) {
	n := f.CodeCount(len(*v), least)
	if f.Decoding && n > 0 {
		*v = make([]T, n)
	}
	for i := range n {
		item(f, &(*v)[i])
	}
}

// CodeTextList codes a list of texts; a decoded empty list is not nil.
func (f *Coder) CodeTextList(v *[]string) {
	n := f.CodeCount(len(*v), 1)
	if f.Decoding {
		*v = make([]string, n)
	}
	for i := range n {
		f.CodeText(&(*v)[i])
	}
}

// CodeTime codes a time as seconds since 1970 and nanoseconds.
func (f *Coder) CodeTime(v *time.Time) {
	sec, nsec := v.Unix(), uint64(v.Nanosecond())
	f.CodeVarint(&sec)
	f.CodeUvarint(&nsec)
	switch {
	case !f.Decoding:
	case nsec >= uint64(time.Second):
		f.Fail()
	default:
		*v = time.Unix(sec, int64(nsec)).UTC()
	}
}

// CodeMillis codes a time as milliseconds since 1970.
func (f *Coder) CodeMillis(v *time.Time) {
	ms := v.UnixMilli()
	if f.CodeVarint(&ms); f.Decoding {
		*v = time.UnixMilli(ms).UTC()
	}
}

// CodeEnum codes a value of an enumeration by its index. Code 0 means that the value follows as a text.
func CodeEnum[T ~string](f *Coder, codes []T, v *T) {
	if !f.Decoding {
		for i := 1; i < len(codes); i++ {
			if codes[i] == *v {
				f.Out = append(f.Out, byte(i))
				return
			}
		}
		f.Out = AppendText(append(f.Out, 0), string(*v))
		return
	}
	var i byte
	switch f.CodeByte(&i); {
	case i == 0:
		*v = T(f.cutText(f.readUvarint()))
	case int(i) >= len(codes):
		f.Fail()
	default:
		*v = codes[i]
	}
}
