package deltas

import (
	"encoding/binary"
	"strconv"

	"github.com/google/uuid"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// encodedKnown is event.Known without its key, in as few bytes as it goes: there may be a million of them. The usual UID and the
// usual resourceVersion are written as numbers.
//
//	flags 1 · UID 16, or length uvarint and text · resourceVersion uvarint, or length uvarint and text
//	· told, length uvarint and text, where flagged · summary
type encodedKnown string

const (
	flagUUID = 1 << iota // is a UUID as Kubernetes writes it
	flagNumericVersion
	flagEmittedElsewhere
)

func encodeKnown(k event.Known) encodedKnown {
	var scratch [256]byte
	b := append(scratch[:0], 0)
	if uid, ok := parseUID(k.UID); ok {
		b[0] |= flagUUID
		b = append(b, uid[:]...)
	} else {
		b = append(binary.AppendUvarint(b, uint64(len(k.UID))), k.UID...)
	}
	if n, err := strconv.ParseUint(k.ResourceVersion, 10, 64); err == nil && strconv.FormatUint(n, 10) == k.ResourceVersion {
		b[0] |= flagNumericVersion
		b = binary.AppendUvarint(b, n)
	} else {
		b = append(binary.AppendUvarint(b, uint64(len(k.ResourceVersion))), k.ResourceVersion...)
	}
	if k.EmittedElsewhere != "" {
		b[0] |= flagEmittedElsewhere
		b = append(binary.AppendUvarint(b, uint64(len(k.EmittedElsewhere))), k.EmittedElsewhere...)
	}
	return encodedKnown(append(b, k.Summary...))
}

// decodeKnown is the inverse of pack. The zero value is of an object that is not known.
func (p encodedKnown) decodeKnown(key string) event.Known {
	k := event.Known{Key: key}
	if p == "" {
		return k
	}
	rest := string(p[1:])
	if p[0]&flagUUID != 0 {
		k.UID, rest = uuid.UUID([]byte(rest[:16])).String(), rest[16:]
	} else {
		n, size := decodeUvarint(rest)
		k.UID, rest = rest[size:size+int(n)], rest[size+int(n):]
	}
	n, size := decodeUvarint(rest)
	if rest = rest[size:]; p[0]&flagNumericVersion != 0 {
		k.ResourceVersion = strconv.FormatUint(n, 10)
	} else {
		k.ResourceVersion, rest = rest[:n], rest[n:]
	}
	if p[0]&flagEmittedElsewhere != 0 {
		n, size := decodeUvarint(rest)
		k.EmittedElsewhere, rest = rest[size:size+int(n)], rest[size+int(n):]
	}
	k.Summary = rest
	return k
}

// decodeUvarint reads a number from the front of s and returns how many bytes it took.
func decodeUvarint(s string) (n uint64, size int) {
	var b [binary.MaxVarintLen64]byte
	return binary.Uvarint(b[:copy(b[:], s)])
}

// parseUID parses a UUID as Kubernetes writes it: any other spelling would come back changed.
func parseUID(s string) (uid uuid.UUID, ok bool) {
	uid, err := uuid.Parse(s)
	return uid, err == nil && uid.String() == s
}
