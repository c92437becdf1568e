package codec

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Version is the version of the whole layout. A change that an older exporter would misread raises it.
const Version = 5

// OldestVersion is the oldest version that is read, see upgrade.
const OldestVersion = 1

const formatMagic = "kubecdc journal "

// EncodeVersion writes the version of the layout.
func EncodeVersion() []byte {
	return fmt.Appendf(nil, "%s%d", formatMagic, Version)
}

// DecodeVersion returns 0 for what is not a version at all.
func DecodeVersion(b []byte) (version uint64) {
	if _, err := fmt.Sscanf(string(b), formatMagic+"%d", &version); err != nil {
		return 0
	}
	return version
}

const (
	cursorFormat = 3
	deadFormat   = 1
	knownSummary = 2 // a bit: the resourceVersion is a string and a summary follows
	knownTold    = 4 // a bit: the resourceVersion is a string, and so is what follows: what some sinks were told
)

// EncodeCursor writes a cursor.
func EncodeCursor(c event.Cursor) []byte {
	b := binary.AppendUvarint([]byte{cursorFormat}, c.Low)
	b = binary.AppendUvarint(b, c.High)
	b = AppendString(b, c.Layout)
	b = binary.AppendUvarint(b, uint64(len(c.Lanes)))
	for _, lane := range slices.Sorted(maps.Keys(c.Lanes)) {
		b = binary.AppendUvarint(AppendString(b, lane), c.Lanes[lane])
	}
	return AppendString(b, string(c.State))
}

// DecodeCursor is the inverse of EncodeCursor, and reads what earlier versions wrote.
func DecodeCursor(b []byte) (event.Cursor, error) {
	s := scanner{s: string(b)}
	format := s.byte()
	if format < 1 || format > cursorFormat {
		return event.Cursor{}, fmt.Errorf("%w: cursor format", ErrMalformed)
	}
	c := event.Cursor{Low: s.uvarint()}
	c.High = c.Low
	if format >= 3 { // what older versions wrote names the lanes above Low
		c.High = s.uvarint()
	}
	c.Layout = s.string()
	n := s.uvarint()
	if n > uint64(len(s.s)/2) {
		s.fail()
	} else if n > 0 {
		c.Lanes = make(map[string]uint64, n)
	}
	for range n {
		if s.failed {
			break
		}
		lane := s.string()
		c.Lanes[lane] = s.uvarint()
	}
	if format >= 2 { // what version 1 wrote has no state
		if state := s.string(); state != "" {
			c.State = []byte(state)
		}
	}
	if s.failed || len(s.s) > 0 {
		return event.Cursor{}, fmt.Errorf("%w: cursor", ErrMalformed)
	}
	return c, nil
}

// AppendKnown appends a known object without its key.
func AppendKnown(b []byte, k *event.Known) []byte {
	var state byte
	if k.Summary != "" {
		state |= knownSummary
	}
	if k.Told != "" {
		state |= knownTold
	}
	b = AppendString(append(b, state), k.UID)
	if state == 0 {
		return append(b, k.ResourceVersion...)
	}
	b = AppendString(b, k.ResourceVersion)
	if k.Told != "" {
		b = AppendString(b, k.Told)
	}
	return append(b, k.Summary...)
}

// DecodeKnown keeps nothing of key and value.
func DecodeKnown(key, value []byte) (event.Known, error) {
	s := scanner{s: string(value)}
	state := s.byte()
	k := event.Known{Key: string(key), UID: s.string()}
	if state == 0 {
		k.ResourceVersion, s.s = s.s, ""
	} else {
		k.ResourceVersion = s.string()
	}
	if state&knownTold != 0 {
		k.Told = s.string()
	}
	if state&knownSummary != 0 {
		k.Summary, s.s = s.s, ""
	}
	if s.failed || s.s != "" || state&^(knownSummary|knownTold) != 0 {
		return event.Known{}, fmt.Errorf("%w: known object %q", ErrMalformed, key)
	}
	return k, nil
}

// Recovery says what Open did about a store it could not use.
type Recovery struct {
	Reason  string // what was wrong, one line
	MovedTo string // where the broken store is kept for inspection
}

// EncodeResource writes a resource.
func EncodeResource(r event.Resource) []byte {
	return encodeTexts(r.Group, r.Version, r.Resource, r.Kind)
}

// DecodeResource is the inverse of EncodeResource.
func DecodeResource(b []byte) (r event.Resource, err error) {
	err = decodeTexts("resource", b, &r.Group, &r.Version, &r.Resource, &r.Kind)
	return r, err
}

// EncodeScope writes what is stored of a scope, without its ID.
func EncodeScope(s event.StoredScope) []byte {
	return encodeTexts(s.Position, s.Snapshot, s.Lost, s.Pass)
}

// DecodeScope is the inverse of EncodeScope.
func DecodeScope(id string, b []byte) (event.StoredScope, error) {
	s := event.StoredScope{ID: id}
	err := decodeTexts("scope", b, &s.Position, &s.Snapshot, &s.Lost, &s.Pass)
	return s, err
}

// EncodeRecovery writes a recovery.
func EncodeRecovery(r Recovery) []byte { return encodeTexts(r.Reason, r.MovedTo) }

// DecodeRecovery is the inverse of EncodeRecovery.
func DecodeRecovery(b []byte) (*Recovery, error) {
	r := &Recovery{}
	return r, decodeTexts("recovery", b, &r.Reason, &r.MovedTo)
}

func encodeTexts(texts ...string) (b []byte) {
	for _, text := range texts {
		b = AppendString(b, text)
	}
	return b
}

func decodeTexts(what string, b []byte, texts ...*string) error {
	s := scanner{s: string(b)}
	for _, text := range texts {
		*text = s.string()
	}
	if s.failed || len(s.s) > 0 {
		return fmt.Errorf("%w: %s", ErrMalformed, what)
	}
	return nil
}

// EncodeDead writes a dead letter; its change is stored as a frame of one.
func EncodeDead(p *Packer, d *event.DeadLetter) []byte {
	b := AppendString(appendTime([]byte{deadFormat}, d.Time), d.Reason)
	return append(b, p.Frame(FrameHeader{Count: 1}, []*event.Change{d.Change})...)
}

// DecodeDead is the inverse of EncodeDead.
func DecodeDead(u *Unpacker, offset uint64, value []byte) (event.DeadLetter, error) {
	s := scanner{s: string(value)}
	if s.byte() != deadFormat {
		return event.DeadLetter{}, fmt.Errorf("%w: dead letter format", ErrMalformed)
	}
	d := event.DeadLetter{Offset: offset, Time: s.time(), Reason: s.string()}
	if s.failed {
		return event.DeadLetter{}, fmt.Errorf("%w: dead letter", ErrMalformed)
	}
	changes, err := u.Changes([]byte(s.s))
	if err != nil {
		return event.DeadLetter{}, err
	}
	if len(changes) != 1 {
		return event.DeadLetter{}, fmt.Errorf("%w: dead letter of %d changes", ErrMalformed, len(changes))
	}
	d.Change = &changes[0]
	return d, nil
}

// EncodeNumber writes a number.
func EncodeNumber(n uint64) []byte { return binary.AppendUvarint(nil, n) }

// DecodeNumber is the inverse of EncodeNumber; what is not stored is 0.
func DecodeNumber(b []byte) (uint64, error) {
	s := scanner{s: string(b)}
	n := s.uvarint()
	if b == nil || !s.failed && s.s == "" {
		return n, nil
	}
	return 0, fmt.Errorf("%w: a number", ErrMalformed)
}
