package deltas

import (
	"encoding/binary"
	"strconv"

	"github.com/google/uuid"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// encodedKnown is an event.Known without its key, in a compact form, because there may be a million of them. UUIDs and
// numeric resourceVersions are stored as binary numbers.
//
//	flags 1 · UID 16, or length uvarint and text · resourceVersion uvarint, or length uvarint and text
//	· versions emitted elsewhere, length uvarint and text, if flagged · summary
type encodedKnown string

const (
	flagUUID = 1 << iota // a UUID in the spelling of Kubernetes
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

// decodeKnown is the inverse of encodeKnown. The zero value decodes to an object that is not known.
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

// decodeUvarint reads a number from the start of s and returns its size in bytes.
func decodeUvarint(s string) (n uint64, size int) {
	var b [binary.MaxVarintLen64]byte
	return binary.Uvarint(b[:copy(b[:], s)])
}

// parseUID accepts only UUIDs in the spelling of Kubernetes, because any other spelling would not round-trip.
func parseUID(s string) (uid uuid.UUID, ok bool) {
	uid, err := uuid.Parse(s)
	return uid, err == nil && uid.String() == s
}
