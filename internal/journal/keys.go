package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// First bytes of the keys. They are part of the format, see docs/journal-format.md.
const (
	prefixBody     = 'b'
	prefixCursor   = 'c'
	prefixDead     = 'd'
	prefixEvidence = 'e'
	prefixFrame    = 'f'
	prefixKnown    = 'k'
	prefixPlace    = 'l'
	prefixMeta     = 'm'
	prefixResource = 'r'
	prefixScope    = 't'
)

var (
	keyVersion  = []byte{prefixMeta, 'v'}
	keyRecovery = []byte{prefixMeta, 'r'}
	keyWrites   = []byte{prefixMeta, 'w'}
)

func keyCursor(sink string) []byte {
	return append([]byte{prefixCursor}, sink...)
}

func keyResource(resource string) []byte {
	return append([]byte{prefixResource}, resource...)
}

// appendNamePrefix appends what all keys start with that belong to a resource, or to a sink, under a first byte. The length
// in front keeps one name from being the start of another.
func appendNamePrefix(b []byte, first byte, name string) []byte {
	return appendString(append(b, first), name)
}

// keyOf is a key of something that belongs to a resource.
func keyOf(first byte, resource, key string) []byte {
	return append(appendNamePrefix(nil, first, resource), key...)
}

// cutName takes the name of what a key belongs to off the key.
func cutName(key []byte) (name, rest string, err error) {
	s := scanner{s: string(key[1:])}
	name = s.string()
	if s.failed {
		return "", "", fmt.Errorf("%w: name in the key %x", errMalformed, key)
	}
	return name, s.s, nil
}

func keyFrame(first uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{prefixFrame}, first)
}

func keyDead(sink string, offset uint64) []byte {
	return binary.BigEndian.AppendUint64(appendNamePrefix(nil, prefixDead, sink), offset)
}

// keyAfter returns the first key that does not start with prefix.
func keyAfter(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		end[i]++
		if end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil // no such key: the prefix is all 0xff, which no prefix of ours is
}

func offsetOfFrame(key []byte) (uint64, bool) {
	if len(key) != 9 || key[0] != prefixFrame {
		return 0, false
	}
	return binary.BigEndian.Uint64(key[1:]), true
}

// cutDead takes a key of a dead letter apart.
func cutDead(key []byte) (sink string, offset uint64, err error) {
	sink, rest, err := cutName(key)
	if err == nil && len(rest) != 8 {
		err = fmt.Errorf("%w: key of a dead letter %x", errMalformed, key)
	}
	if err != nil {
		return "", 0, err
	}
	return sink, binary.BigEndian.Uint64([]byte(rest)), nil
}
