package rawjson

import (
	"encoding/binary"
	"math/bits"
)

const (
	classOther = iota
	classQuote
	classOpening
	classClosing
)

// byteClasses tells the bytes that structure JSON from those that do not.
var byteClasses = [256]uint8{'"': classQuote, '{': classOpening, '[': classOpening, '}': classClosing, ']': classClosing}

// SkipTrustedValue returns the index behind the value that begins at i, at less cost than [SkipValue] and on trust: it follows
// every bracket and every string, so that a value cut short is never passed, but does not look at the syntax of numbers
// and at what stands between brackets. It is for bytes that a JSON encoder wrote.
func SkipTrustedValue(b []byte, i int) int {
	if i >= len(b) {
		return FailAt(i)
	}
	switch byteClasses[b[i]] {
	case classQuote:
		return skipTrustedString(b, i)
	case classOpening:
		return skipTrustedContainer(b, i)
	}
	from := i
	for i < len(b) && !endsScalar(b[i]) {
		i++
	}
	if i == from {
		return FailAt(i)
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

// skipTrustedString returns the index behind the string whose opening quote is at i. It looks at eight bytes at a time for a
// quote or a backslash: (w-0x01…)&^w&0x80… has the top bit set in the lowest byte of w that is zero. What SkipString checks
// besides would cost a tenth of all that is done with an object on its way in.
func skipTrustedString(b []byte, i int) int {
	i++
	for i+8 <= len(b) {
		w := binary.LittleEndian.Uint64(b[i:])
		q, s := w^(lowBits*'"'), w^(lowBits*'\\')
		found := ((q - lowBits) & ^q & highBits) | ((s - lowBits) & ^s & highBits)
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
	return FailAt(len(b))
}

// skipTrustedContainer returns the index behind the object or array that begins at i. The kinds of the open brackets are kept
// as bits of one word; what lies deeper than 64 levels is a container of its own.
func skipTrustedContainer(b []byte, i int) int {
	var open uint64
	depth := 0
	for i < len(b) {
		switch byteClasses[b[i]] {
		case classQuote:
			if i = skipTrustedString(b, i); i < 0 {
				return i
			}
			continue
		case classOpening:
			if depth == 64 {
				if i = skipTrustedContainer(b, i); i < 0 {
					return i
				}
				continue
			}
			open = open<<1 | bracketKind(b[i])
			depth++
		case classClosing:
			if open&1 != bracketKind(b[i]) {
				return FailAt(i)
			}
			open >>= 1
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
	return FailAt(len(b))
}

// bracketKind is 1 for '{' and '}' and 0 for '[' and ']': ASCII tells them apart by one bit.
func bracketKind(c byte) uint64 { return uint64(c>>5) & 1 }
