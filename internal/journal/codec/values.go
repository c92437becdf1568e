package codec

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/klauspost/compress/s2"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Version is the version of the whole layout. Every change of the layout raises it: an exporter reads its own version only.
const Version = 5

const formatMagic = "kubecdc journal "

// EncodeVersion returns the stored form of Version.
func EncodeVersion() []byte {
	return fmt.Appendf(nil, "%s%d", formatMagic, Version)
}

// DecodeVersion returns the stored version, and 0 for bytes that are no version at all.
func DecodeVersion(b []byte) (version uint64) {
	if _, err := fmt.Sscanf(string(b), formatMagic+"%d", &version); err != nil {
		return 0
	}
	return version
}

const (
	cursorFormat     = 3
	deadLetterFormat = 1
	bodyFormat       = 1
	sinkRecordFormat = 1
	formerSinkFormat = 1
	knownSummary     = 2 // a bit: the resourceVersion is a string and a summary follows
	knownEmitted     = 4 // a bit: two strings follow, the resourceVersion and the versions emitted elsewhere
)

// EncodeCursor returns the stored form of a cursor.
func EncodeCursor(c event.Cursor) []byte { return encodeValue(nil, (*coder).codeCursor, &c) }

// DecodeCursor is the inverse of EncodeCursor.
func DecodeCursor(b []byte) (c event.Cursor, err error) {
	if err = decodeValue("cursor", b, (*coder).codeCursor, &c); err != nil {
		return event.Cursor{}, err
	}
	return c, nil
}

func (f *coder) codeCursor(c *event.Cursor) {
	f.codeFormat(cursorFormat)
	f.codeUvarint(&c.Low)
	f.codeUvarint(&c.High)
	f.codeText(&c.Layout)
	f.codeLanes(&c.Lanes)
	state := string(c.State)
	if f.codeText(&state); f.decoding && state != "" {
		c.State = []byte(state)
	}
}

func (f *coder) codeLanes(v *map[string]uint64) {
	n := f.codeCount(len(*v), 2)
	if !f.decoding {
		for _, lane := range slices.Sorted(maps.Keys(*v)) {
			at := (*v)[lane]
			f.codeText(&lane)
			f.codeUvarint(&at)
		}
		return
	}
	if n > 0 {
		*v = make(map[string]uint64, n)
	}
	for range n {
		var lane string
		f.codeText(&lane)
		(*v)[lane] = f.readUvarint()
	}
}

// EncodeLows encodes up to where each sink has settled everything.
func EncodeLows(lows map[string]uint64) []byte { return encodeValue(nil, (*coder).codeLanes, &lows) }

// DecodeLows is the inverse of EncodeLows.
func DecodeLows(b []byte) (lows map[string]uint64, err error) {
	return lows, decodeValue("settled offsets", b, (*coder).codeLanes, &lows)
}

// SinkRecord is what is kept of a sink beside its cursor, which exists only once the sink has settled something.
type SinkRecord struct {
	Declared bool
	Removed  time.Time // when it was declared no longer, the last time; zero: never
	Low      uint64    // it had received everything up to here then
	Unsent   uint64    // changes after Low that it can never receive
	// Destination identifies where it delivers to; "" if not known. Formerly is the name that it had before it was renamed.
	Destination, Formerly string
}

// EncodeSinkRecord returns the stored form of a sink's record.
func EncodeSinkRecord(r SinkRecord) []byte { return encodeValue(nil, (*coder).codeSinkRecord, &r) }

// DecodeSinkRecord is the inverse of EncodeSinkRecord.
func DecodeSinkRecord(b []byte) (r SinkRecord, err error) {
	err = decodeValue("record of a sink", b, (*coder).codeSinkRecord, &r)
	return r, err
}

func (f *coder) codeSinkRecord(r *SinkRecord) {
	f.codeFormat(sinkRecordFormat)
	var declared byte
	if r.Declared {
		declared = 1
	}
	f.codeByte(&declared)
	r.Declared = declared != 0
	f.codeTime(&r.Removed)
	f.codeUvarint(&r.Low)
	f.codeUvarint(&r.Unsent)
	if r.Destination != "" || r.Formerly != "" || f.decoding && len(f.in) > 0 {
		f.codeTexts(&r.Destination, &r.Formerly)
	}
}

// EncodeFormerSink returns the stored form of a former sink without its name.
func EncodeFormerSink(s event.FormerSink) []byte {
	return encodeValue(nil, (*coder).codeFormerSink, &s)
}

// DecodeFormerSink is the inverse of EncodeFormerSink.
func DecodeFormerSink(name string, b []byte) (s event.FormerSink, err error) {
	s.Name = name
	err = decodeValue("former sink", b, (*coder).codeFormerSink, &s)
	return s, err
}

func (f *coder) codeFormerSink(s *event.FormerSink) {
	f.codeFormat(formerSinkFormat)
	var missed byte
	if s.Missed {
		missed = 1
	}
	f.codeByte(&missed)
	s.Missed = missed != 0
	n := f.codeCount(len(s.Positions), 5)
	if f.decoding && n > 0 {
		s.Positions = make([]event.ResourcePosition, n)
	}
	for i := range n {
		p := &s.Positions[i]
		f.codeTexts(&p.Resource.Group, &p.Resource.Version, &p.Resource.Resource, &p.Resource.Kind, &p.Position)
	}
}

// AppendKnown appends a known object without its key.
func AppendKnown(b []byte, k *event.Known) []byte {
	f := coder{out: b} // encodeValue would allocate it on the heap, once for each object
	f.codeKnown(k)
	return f.out
}

// DecodeKnown decodes a known object. It keeps nothing of key and value.
func DecodeKnown(key, value []byte) (event.Known, error) {
	f, k := coder{decoding: true, in: string(value)}, event.Known{Key: string(key)}
	if f.codeKnown(&k); f.failed || f.in != "" {
		return event.Known{}, fmt.Errorf("%w: known object %q", ErrMalformed, key)
	}
	return k, nil
}

func (f *coder) codeKnown(k *event.Known) {
	var has byte
	if k.Summary != "" {
		has |= knownSummary
	}
	if k.EmittedElsewhere != "" {
		has |= knownEmitted
	}
	f.codeByte(&has)
	f.codeText(&k.UID)
	if has == 0 {
		f.codeRemainingText(&k.ResourceVersion)
		return
	}
	f.codeText(&k.ResourceVersion)
	if has&knownEmitted != 0 {
		f.codeText(&k.EmittedElsewhere)
	}
	if has&knownSummary != 0 {
		f.codeRemainingText(&k.Summary)
	}
	if has&^(knownSummary|knownEmitted) != 0 {
		f.fail()
	}
}

// Recovery describes a store that could not be used and was moved aside.
type Recovery struct {
	Reason  string // what was wrong, one line
	MovedTo string // where the broken store is kept for inspection
}

// EncodeResource returns the stored form of a resource.
func EncodeResource(r event.Resource) []byte { return encodeValue(nil, (*coder).codeResource, &r) }

// DecodeResource is the inverse of EncodeResource.
func DecodeResource(b []byte) (r event.Resource, err error) {
	err = decodeValue("resource", b, (*coder).codeResource, &r)
	return r, err
}

func (f *coder) codeResource(r *event.Resource) {
	f.codeTexts(&r.Group, &r.Version, &r.Resource, &r.Kind)
}

// EncodeScope returns the stored form of a scope, without its ID.
func EncodeScope(s event.StoredScope) []byte { return encodeValue(nil, (*coder).codeScope, &s) }

// DecodeScope is the inverse of EncodeScope.
func DecodeScope(id string, b []byte) (event.StoredScope, error) {
	s := event.StoredScope{ID: id}
	err := decodeValue("scope", b, (*coder).codeScope, &s)
	return s, err
}

func (f *coder) codeScope(s *event.StoredScope) {
	f.codeTexts(&s.Position, &s.Snapshot, &s.LostReason, &s.Pass)
	if s.AheadUpTo != "" || s.Requests != "" || f.decoding && len(f.in) > 0 {
		f.codeText(&s.AheadUpTo)
	}
	if s.Requests != "" || f.decoding && len(f.in) > 0 {
		f.codeText(&s.Requests)
	}
}

// EncodeRecovery returns the stored form of a recovery.
func EncodeRecovery(r Recovery) []byte { return encodeValue(nil, (*coder).codeRecovery, &r) }

// DecodeRecovery is the inverse of EncodeRecovery.
func DecodeRecovery(b []byte) (*Recovery, error) {
	r := &Recovery{}
	return r, decodeValue("recovery", b, (*coder).codeRecovery, r)
}

func (f *coder) codeRecovery(r *Recovery) { f.codeTexts(&r.Reason, &r.MovedTo) }

// EncodeDeadLetter returns the stored form of a dead letter; its change is stored as a frame of one.
func EncodeDeadLetter(p *FrameEncoder, d *event.DeadLetter) []byte {
	header := encodeValue(nil, (*coder).codeDeadLetterHeader, d)
	return append(header, p.Encode(FrameHeader{Count: 1}, []*event.Change{d.Change})...)
}

// DecodeDeadLetter is the inverse of EncodeDeadLetter.
func DecodeDeadLetter(u *FrameDecoder, offset uint64, value []byte) (event.DeadLetter, error) {
	f, d := coder{decoding: true, in: string(value)}, event.DeadLetter{Offset: offset}
	if f.codeDeadLetterHeader(&d); f.failed {
		return event.DeadLetter{}, fmt.Errorf("%w: dead letter", ErrMalformed)
	}
	changes, err := u.Decode(value[len(value)-len(f.in):])
	if err != nil {
		return event.DeadLetter{}, err
	}
	if len(changes) != 1 {
		return event.DeadLetter{}, fmt.Errorf("%w: dead letter of %d changes", ErrMalformed, len(changes))
	}
	d.Change = &changes[0]
	return d, nil
}

// codeDeadLetterHeader codes everything before the change.
func (f *coder) codeDeadLetterHeader(d *event.DeadLetter) {
	f.codeFormat(deadLetterFormat)
	f.codeTime(&d.Time)
	f.codeText(&d.Reason)
}

// AppendBody appends the stored form of a body to b. packed is a buffer for the compressed bytes; it is returned for the
// next call.
func AppendBody(b, packed []byte, body *event.Body) (stored, scratch []byte) {
	packed = s2.EncodeSnappy(packed[:cap(packed)], body.Raw)
	return append(encodeValue(b, (*coder).codeBodyHeader, body), packed...), packed
}

// DecodeBody is the inverse of AppendBody. It keeps nothing of stored.
func DecodeBody(key string, stored []byte) (event.Body, error) {
	f, body := coder{decoding: true, in: string(stored)}, event.Body{Key: key}
	f.codeBodyHeader(&body)
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

// codeBodyHeader codes everything before the compressed bytes.
func (f *coder) codeBodyHeader(b *event.Body) {
	f.codeFormat(bodyFormat)
	f.codeTexts(&b.UID, &b.ResourceVersion)
}

// EncodeNumber returns the stored form of a number.
func EncodeNumber(n uint64) []byte { return binary.AppendUvarint(nil, n) }

// DecodeNumber is the inverse of EncodeNumber; nil, which is a missing value, is 0.
func DecodeNumber(b []byte) (n uint64, err error) {
	if b == nil {
		return 0, nil
	}
	err = decodeValue("a number", b, (*coder).codeUvarint, &n)
	return n, err
}
