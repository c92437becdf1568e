package rawjson

import (
	"encoding/binary"
	"math/bits"
)

const (
	other = iota
	quote
	opening
	closing
)

// class tells the bytes that structure JSON from those that do not.
var class = [256]uint8{'"': quote, '{': opening, '[': opening, '}': closing, ']': closing}

// PassValue returns the index behind the value that begins at i, at less cost than [SkipValue] and on trust: it follows
// every bracket and every string, so that a value cut short is never passed, but does not look at the syntax of numbers
// and at what stands between brackets. It is for bytes that a JSON encoder wrote.
func PassValue(b []byte, i int) int {
	if i >= len(b) {
		return Fail(i)
	}
	switch class[b[i]] {
	case quote:
		return passString(b, i)
	case opening:
		return passContainer(b, i)
	}
	from := i
	for i < len(b) && !endsScalar(b[i]) {
		i++
	}
	if i == from {
		return Fail(i)
	}
	return i
}

func endsScalar(c byte) bool {
	switch c {
	case ',', '}', ']', ':', '"', '{', '[', ' ', '\n', '\t', '\r':
		return true
	}
	return false
}

// passString returns the index behind the string whose opening quote is at i. It looks at eight bytes at a time for a
// quote or a backslash: (w-0x01…)&^w&0x80… has the top bit set in the lowest byte of w that is zero. What SkipString checks
// besides would cost a tenth of all that is done with an object on its way in.
func passString(b []byte, i int) int {
	i++
	for i+8 <= len(b) {
		w := binary.LittleEndian.Uint64(b[i:])
		q, s := w^(ones*'"'), w^(ones*'\\')
		found := ((q - ones) & ^q & tops) | ((s - ones) & ^s & tops)
		if found == 0 {
			i += 8
			continue
		}
		i += bits.TrailingZeros64(found) >> 3
		if b[i] == '"' {
			return i + 1
		}
		i += 2
	}
	for i < len(b) {
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			i += 2
		default:
			i++
		}
	}
	return Fail(len(b))
}

// passContainer returns the index behind the object or array that begins at i. The kinds of the open brackets are kept
// as bits of one word; what lies deeper than 64 levels is a container of its own.
func passContainer(b []byte, i int) int {
	var open uint64
	depth := 0
	for i < len(b) {
		switch class[b[i]] {
		case quote:
			if i = passString(b, i); i < 0 {
				return i
			}
			continue
		case opening:
			if depth == 64 {
				if i = passContainer(b, i); i < 0 {
					return i
				}
				continue
			}
			open = open<<1 | bracketKind(b[i])
			depth++
		case closing:
			if open&1 != bracketKind(b[i]) {
				return Fail(i)
			}
			open >>= 1
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
	return Fail(len(b))
}

// bracketKind is 1 for '{' and '}' and 0 for '[' and ']': ASCII tells them apart by one bit.
func bracketKind(c byte) uint64 { return uint64(c>>5) & 1 }
