package deltas

import (
	"encoding/binary"
	"encoding/hex"
	"strconv"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// packed is event.Known without its key, in as few bytes as it goes: there may be a million of them. The usual UID and the
// usual resourceVersion are written as numbers.
//
//	flags 1 · UID 16, or length uvarint and text · resourceVersion uvarint, or length uvarint and text · summary
type packed string

const (
	packedUID = 1 << iota // is a UUID as Kubernetes writes it
	packedVersion
)

func pack(k event.Known) packed {
	var scratch [256]byte
	b := append(scratch[:0], 0)
	if uid, ok := parseUID(k.UID); ok {
		b[0] |= packedUID
		b = append(b, uid[:]...)
	} else {
		b = append(binary.AppendUvarint(b, uint64(len(k.UID))), k.UID...)
	}
	if n, err := strconv.ParseUint(k.ResourceVersion, 10, 64); err == nil && strconv.FormatUint(n, 10) == k.ResourceVersion {
		b[0] |= packedVersion
		b = binary.AppendUvarint(b, n)
	} else {
		b = append(binary.AppendUvarint(b, uint64(len(k.ResourceVersion))), k.ResourceVersion...)
	}
	return packed(append(b, k.Summary...))
}

// known is the inverse of pack. The zero value is of an object that is not known.
func (p packed) known(key string) event.Known {
	k := event.Known{Key: key}
	if p == "" {
		return k
	}
	rest := string(p[1:])
	if p[0]&packedUID != 0 {
		k.UID, rest = formatUID(rest[:16]), rest[16:]
	} else {
		n, size := uvarint(rest)
		k.UID, rest = rest[size:size+int(n)], rest[size+int(n):]
	}
	n, size := uvarint(rest)
	if rest = rest[size:]; p[0]&packedVersion != 0 {
		k.ResourceVersion = strconv.FormatUint(n, 10)
	} else {
		k.ResourceVersion, rest = rest[:n], rest[n:]
	}
	k.Summary = rest
	return k
}

// uvarint reads a number from the front of s and returns how many bytes it took.
func uvarint(s string) (n uint64, size int) {
	for shift := 0; ; shift += 7 {
		b := s[size]
		size++
		n |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return n, size
		}
	}
}

// dashes are where a UUID has them.
var dashes = [...]int{8, 13, 18, 23}

func parseUID(s string) (uid [16]byte, ok bool) {
	if len(s) != 36 {
		return uid, false
	}
	var digits [32]byte
	n := 0
	for i := range len(s) {
		switch c := s[i]; {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return uid, false
			}
		case c >= 'A' && c <= 'F': // would come back in lower case
			return uid, false
		default:
			digits[n] = c
			n++
		}
	}
	_, err := hex.Decode(uid[:], digits[:])
	return uid, err == nil
}

func formatUID(uid string) string {
	const digits = "0123456789abcdef"
	var b [36]byte
	n := 0
	for i := range len(uid) {
		if n == dashes[0] || n == dashes[1] || n == dashes[2] || n == dashes[3] {
			b[n] = '-'
			n++
		}
		b[n], b[n+1] = digits[uid[i]>>4], digits[uid[i]&15]
		n += 2
	}
	return string(b[:])
}
