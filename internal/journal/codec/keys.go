package codec

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/kubecdc/kubecdc/pkg/form"
)

// First bytes of the keys. They are part of the format, see internal/journal/FORMAT.md.
const (
	PrefixBody             = 'b'
	PrefixCursor           = 'c'
	PrefixDeadLetter       = 'd'
	PrefixEvidence         = 'e'
	PrefixFrame            = 'f'
	PrefixKnown            = 'k'
	PrefixEvidencePosition = 'l'
	PrefixMeta             = 'm'
	PrefixResource         = 'r'
	PrefixScope            = 't'
)

// Keys of values that a journal has once.
var (
	KeyVersion     = []byte{PrefixMeta, 'v'} // of the layout
	KeyRecovery    = []byte{PrefixMeta, 'r'} // description of a broken store that was replaced, until its gaps are emitted
	KeyWrites      = []byte{PrefixMeta, 'w'} // number of groups ever written
	KeyCluster     = []byte{PrefixMeta, 'c'} // UID of the cluster that the journal was filled from
	KeyClusterName = []byte{PrefixMeta, 'l'} // of the cluster in records; empty: its UID
	KeyResetReason = []byte{PrefixMeta, 'a'} // why all resources were reset, until the gaps are emitted
	KeyEmptied     = []byte{PrefixMeta, 'n'} // offset of the newest change when all changes were dropped
	KeyID          = []byte{PrefixMeta, 'i'} // of the journal
	KeyDeployment  = []byte{PrefixMeta, 'u'} // identity of the deployment, and the generation of its last take-over
	KeyLastOwner   = []byte{PrefixMeta, 'o'} // ID of the journal and take-over of the last other owner of the replicated state
	KeySeeding     = []byte{PrefixMeta, 's'} // present while a seed is incomplete
	KeySalvaging   = []byte{PrefixMeta, 'y'} // present while what a broken store had is carried over: there is no version yet
	KeySecret      = []byte{PrefixMeta, 'k'} // of redaction
	KeyRedaction   = []byte{PrefixMeta, 'f'} // fingerprint of the redaction of what is stored
)

// PrefixRetried begins the keys of retried dead letters.
var PrefixRetried = []byte{PrefixMeta, 'x'}

// PrefixOrphans begins the keys of passes over destinations that are due behind snapshots.
var PrefixOrphans = []byte{PrefixMeta, 'e'}

// KeyOrphanPass is the key of the pass of a sink behind the snapshot of a resource, or of one namespace.
func KeyOrphanPass(sink, resource, namespace string) []byte {
	return append(form.AppendText(form.AppendText(bytes.Clone(PrefixOrphans), sink), resource), namespace...)
}

// PrefixSignals begins the keys of entries of the requests of operators, see internal/signals.
var PrefixSignals = []byte{PrefixMeta, 'j'}

// KeySignal is the key of the entry with a number.
func KeySignal(number uint64) []byte {
	return binary.BigEndian.AppendUint64(bytes.Clone(PrefixSignals), number)
}

// SplitSignalKey is the inverse of KeySignal.
func SplitSignalKey(key []byte) (number uint64, err error) {
	if rest := key[len(PrefixSignals):]; len(rest) == 8 {
		return binary.BigEndian.Uint64(rest), nil
	}
	return 0, fmt.Errorf("%w: key of a signal %x", form.ErrMalformed, key)
}

// KeyCursor is the key of a sink's cursor.
func KeyCursor(sink string) []byte {
	return append([]byte{PrefixCursor}, sink...)
}

// KeySinkRecord is the key of the record of a sink that was ever declared.
func KeySinkRecord(sink string) []byte {
	return append([]byte{PrefixMeta, 'd'}, sink...)
}

// KeyFormerSink is the key of a sink that is declared no longer.
func KeyFormerSink(sink string) []byte {
	return append([]byte{PrefixMeta, 'p'}, sink...)
}

// KeyReplay is the key of a replay that was requested.
func KeyReplay(id string) []byte {
	return append([]byte{PrefixMeta, 'q'}, id...)
}

// KeyRetried is present while the change at an offset may be dropped before a sink has it, which was a dead letter of that.
func KeyRetried(sink string, offset uint64) []byte {
	return append(bytes.Clone(PrefixRetried), KeyDeadLetter(sink, offset)[1:]...)
}

// SplitRetriedKey is the inverse of KeyRetried.
func SplitRetriedKey(key []byte) (sink string, offset uint64, err error) {
	return SplitDeadLetterKey(key[1:])
}

// KeyBodiless is present while the known objects of a seeded resource have no bodies.
func KeyBodiless(resource string) []byte {
	return append([]byte{PrefixMeta, 'b'}, resource...)
}

// KeyResource is the key of a resource's record.
func KeyResource(resource string) []byte {
	return append([]byte{PrefixResource}, resource...)
}

// AppendNamePrefix appends the prefix of all keys of a resource, or of a sink, under a first byte. The length in front of
// the name keeps one name from being a prefix of another.
func AppendNamePrefix(b []byte, first byte, name string) []byte {
	return form.AppendText(append(b, first), name)
}

// KeyNamed is a key of a resource under a first byte.
func KeyNamed(first byte, resource, key string) []byte {
	return append(AppendNamePrefix(nil, first, resource), key...)
}

// SplitNamedKey returns the name of the resource or sink of a key, and the rest of the key.
func SplitNamedKey(key []byte) (name, rest string, err error) {
	f := form.Coder{Decoding: true, In: string(key[1:])}
	if f.CodeText(&name); f.Failed {
		return "", "", fmt.Errorf("%w: name in the key %x", form.ErrMalformed, key)
	}
	return name, f.In, nil
}

// KeyFrame is the key of the frame that begins with an offset.
func KeyFrame(first uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{PrefixFrame}, first)
}

// KeyDeadLetter is the key of a sink's dead letter.
func KeyDeadLetter(sink string, offset uint64) []byte {
	return binary.BigEndian.AppendUint64(AppendNamePrefix(nil, PrefixDeadLetter, sink), offset)
}

// KeyAfterPrefix returns the first key that does not start with prefix.
func KeyAfterPrefix(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		end[i]++
		if end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil // the prefix is all 0xff, which no prefix of the journal is
}

// OffsetOfFrame is the inverse of KeyFrame.
func OffsetOfFrame(key []byte) (uint64, bool) {
	if len(key) != 9 || key[0] != PrefixFrame {
		return 0, false
	}
	return binary.BigEndian.Uint64(key[1:]), true
}

// SplitDeadLetterKey is the inverse of KeyDeadLetter.
func SplitDeadLetterKey(key []byte) (sink string, offset uint64, err error) {
	sink, rest, err := SplitNamedKey(key)
	if err == nil && len(rest) != 8 {
		err = fmt.Errorf("%w: key of a dead letter %x", form.ErrMalformed, key)
	}
	if err != nil {
		return "", 0, err
	}
	return sink, binary.BigEndian.Uint64([]byte(rest)), nil
}
