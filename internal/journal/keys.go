package journal

import (
	"bytes"
	"encoding/binary"
)

// First bytes of the keys. They are part of the format, see docs/journal-format.md.
const (
	prefixBody     = 'b'
	prefixCursor   = 'c'
	prefixDead     = 'd'
	prefixFrame    = 'f'
	prefixKnown    = 'k'
	prefixMeta     = 'm'
	prefixPosition = 'p'
	prefixSnapshot = 's'
)

var (
	keyVersion  = []byte{prefixMeta, 'v'}
	keyRecovery = []byte{prefixMeta, 'r'}
)

func keyCursor(sink string) []byte {
	return append([]byte{prefixCursor}, sink...)
}

func keyPosition(scope string) []byte {
	return append([]byte{prefixPosition}, scope...)
}

func keySnapshot(scope string) []byte {
	return append([]byte{prefixSnapshot}, scope...)
}

func keyFrame(first uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{prefixFrame}, first)
}

// appendKnownPrefix appends what the keys of all known objects of a scope start with. The length in front keeps one
// scope's name from being the start of another's.
func appendKnownPrefix(b []byte, scope string) []byte {
	return appendString(append(b, prefixKnown), scope)
}

// appendBodyPrefix appends what the keys of all bodies of a scope start with.
func appendBodyPrefix(b []byte, scope string) []byte {
	return appendString(append(b, prefixBody), scope)
}

func keyBody(scope, key string) []byte {
	return append(appendBodyPrefix(nil, scope), key...)
}

func appendDeadPrefix(b []byte, sink string) []byte {
	return appendString(append(b, prefixDead), sink)
}

func keyDead(sink string, offset uint64) []byte {
	return binary.BigEndian.AppendUint64(appendDeadPrefix(nil, sink), offset)
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
func cutDead(key []byte) (sink string, offset uint64, ok bool) {
	if len(key) == 0 {
		return "", 0, false
	}
	s := scanner{s: string(key[1:])}
	sink = s.string()
	if s.failed || len(s.s) != 8 {
		return "", 0, false
	}
	return sink, binary.BigEndian.Uint64([]byte(s.s)), true
}
