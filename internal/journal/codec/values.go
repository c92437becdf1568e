package codec

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/klauspost/compress/s2"

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
	bodyFormat   = 1
	knownSummary = 2 // a bit: the resourceVersion is a string and a summary follows
	knownTold    = 4 // a bit: the resourceVersion is a string, and so is what follows: what some sinks were told
)

// EncodeCursor writes a cursor.
func EncodeCursor(c event.Cursor) []byte { return write(nil, (*form).cursor, &c) }

// DecodeCursor is the inverse of EncodeCursor, and reads what earlier versions wrote.
func DecodeCursor(b []byte) (c event.Cursor, err error) {
	if err = read("cursor", b, (*form).cursor, &c); err != nil {
		return event.Cursor{}, err
	}
	return c, nil
}

func (f *form) cursor(c *event.Cursor) {
	format := f.format(cursorFormat)
	f.uvarint(&c.Low)
	if format >= 3 {
		f.uvarint(&c.High)
	} else { // what older versions wrote names the lanes above Low
		c.High = c.Low
	}
	f.text(&c.Layout)
	f.lanes(&c.Lanes)
	if format >= 2 { // what version 1 wrote has no state
		state := string(c.State)
		if f.text(&state); f.reading && state != "" {
			c.State = []byte(state)
		}
	}
}

func (f *form) lanes(v *map[string]uint64) {
	n := f.count(len(*v), 2)
	if !f.reading {
		for _, lane := range slices.Sorted(maps.Keys(*v)) {
			at := (*v)[lane]
			f.text(&lane)
			f.uvarint(&at)
		}
		return
	}
	if n > 0 {
		*v = make(map[string]uint64, n)
	}
	for range n {
		var lane string
		f.text(&lane)
		(*v)[lane] = f.readUvarint()
	}
}

// AppendKnown appends a known object without its key.
func AppendKnown(b []byte, k *event.Known) []byte {
	f := form{out: b} // write would put it on the heap, once for each object
	f.known(k)
	return f.out
}

// DecodeKnown keeps nothing of key and value.
func DecodeKnown(key, value []byte) (event.Known, error) {
	f, k := form{reading: true, in: string(value)}, event.Known{Key: string(key)}
	if f.known(&k); f.failed || f.in != "" {
		return event.Known{}, fmt.Errorf("%w: known object %q", ErrMalformed, key)
	}
	return k, nil
}

func (f *form) known(k *event.Known) {
	var has byte
	if k.Summary != "" {
		has |= knownSummary
	}
	if k.Told != "" {
		has |= knownTold
	}
	f.byte(&has)
	f.text(&k.UID)
	if has == 0 {
		f.rest(&k.ResourceVersion)
		return
	}
	f.text(&k.ResourceVersion)
	if has&knownTold != 0 {
		f.text(&k.Told)
	}
	if has&knownSummary != 0 {
		f.rest(&k.Summary)
	}
	if has&^(knownSummary|knownTold) != 0 {
		f.fail()
	}
}

// Recovery says what Open did about a store it could not use.
type Recovery struct {
	Reason  string // what was wrong, one line
	MovedTo string // where the broken store is kept for inspection
}

// EncodeResource writes a resource.
func EncodeResource(r event.Resource) []byte { return write(nil, (*form).resource, &r) }

// DecodeResource is the inverse of EncodeResource.
func DecodeResource(b []byte) (r event.Resource, err error) {
	err = read("resource", b, (*form).resource, &r)
	return r, err
}

func (f *form) resource(r *event.Resource) { f.texts(&r.Group, &r.Version, &r.Resource, &r.Kind) }

// EncodeScope writes what is stored of a scope, without its ID.
func EncodeScope(s event.StoredScope) []byte { return write(nil, (*form).scope, &s) }

// DecodeScope is the inverse of EncodeScope.
func DecodeScope(id string, b []byte) (event.StoredScope, error) {
	s := event.StoredScope{ID: id}
	err := read("scope", b, (*form).scope, &s)
	return s, err
}

func (f *form) scope(s *event.StoredScope) { f.texts(&s.Position, &s.Snapshot, &s.Lost, &s.Pass) }

// EncodeRecovery writes a recovery.
func EncodeRecovery(r Recovery) []byte { return write(nil, (*form).recovery, &r) }

// DecodeRecovery is the inverse of EncodeRecovery.
func DecodeRecovery(b []byte) (*Recovery, error) {
	r := &Recovery{}
	return r, read("recovery", b, (*form).recovery, r)
}

func (f *form) recovery(r *Recovery) { f.texts(&r.Reason, &r.MovedTo) }

// EncodeDead writes a dead letter; its change is stored as a frame of one.
func EncodeDead(p *Packer, d *event.DeadLetter) []byte {
	return append(write(nil, (*form).dead, d), p.Frame(FrameHeader{Count: 1}, []*event.Change{d.Change})...)
}

// DecodeDead is the inverse of EncodeDead.
func DecodeDead(u *Unpacker, offset uint64, value []byte) (event.DeadLetter, error) {
	f, d := form{reading: true, in: string(value)}, event.DeadLetter{Offset: offset}
	if f.dead(&d); f.failed {
		return event.DeadLetter{}, fmt.Errorf("%w: dead letter", ErrMalformed)
	}
	changes, err := u.Changes(value[len(value)-len(f.in):])
	if err != nil {
		return event.DeadLetter{}, err
	}
	if len(changes) != 1 {
		return event.DeadLetter{}, fmt.Errorf("%w: dead letter of %d changes", ErrMalformed, len(changes))
	}
	d.Change = &changes[0]
	return d, nil
}

// dead is what is in front of the change.
func (f *form) dead(d *event.DeadLetter) {
	f.format(deadFormat)
	f.time(&d.Time)
	f.text(&d.Reason)
}

// AppendBody appends the stored form of a body. packed is scratch.
func AppendBody(b, packed []byte, body *event.Body) (stored, scratch []byte) {
	packed = s2.EncodeSnappy(packed[:cap(packed)], body.Raw)
	return append(write(b, (*form).bodyOf, body), packed...), packed
}

// DecodeBody is the inverse of AppendBody. It keeps nothing of stored.
func DecodeBody(key string, stored []byte) (event.Body, error) {
	f, body := form{reading: true, in: string(stored)}, event.Body{Key: key}
	f.bodyOf(&body)
	packed := stored[len(stored)-len(f.in):]
	n, err := s2.DecodedLen(packed)
	if err == nil && !f.failed && n <= maxRawBytes {
		body.Raw, err = s2.Decode(nil, packed)
	} else {
		err = ErrMalformed
	}
	if err != nil {
		return event.Body{}, fmt.Errorf("%w: body of %q", ErrMalformed, key)
	}
	return body, nil
}

// bodyOf is what is in front of the compressed bytes.
func (f *form) bodyOf(b *event.Body) {
	f.format(bodyFormat)
	f.texts(&b.UID, &b.ResourceVersion)
}

// EncodeNumber writes a number.
func EncodeNumber(n uint64) []byte { return binary.AppendUvarint(nil, n) }

// DecodeNumber is the inverse of EncodeNumber; what is not stored is 0.
func DecodeNumber(b []byte) (n uint64, err error) {
	if b == nil {
		return 0, nil
	}
	err = read("a number", b, (*form).uvarint, &n)
	return n, err
}
