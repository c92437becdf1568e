package codec

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/klauspost/compress/s2"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
)

// The layout as a whole has a version, the value of KeyVersion: VersionPrefix and a name. Every change of the layout raises
// Version: an exporter reads its own only.
const (
	VersionPrefix = "kubecdc journal "
	Version       = "v1"
)

const (
	knownSummary = 1 << iota // a bit: a summary follows
	knownEmitted             // a bit: the versions emitted elsewhere follow
)

// EncodeCursor returns the stored form of a cursor.
func EncodeCursor(c event.Cursor) []byte { return form.EncodeValue(nil, codeCursor, &c) }

// DecodeCursor is the inverse of EncodeCursor.
func DecodeCursor(b []byte) (c event.Cursor, err error) {
	if err = form.DecodeValue("cursor", b, codeCursor, &c); err != nil {
		return event.Cursor{}, err
	}
	return c, nil
}

func codeCursor(f *form.Coder, c *event.Cursor) {
	f.CodeUvarint(&c.Low)
	f.CodeUvarint(&c.High)
	f.CodeText(&c.Layout)
	codeLanes(f, &c.Lanes)
	state := string(c.State)
	if f.CodeText(&state); f.Decoding && state != "" {
		c.State = []byte(state)
	}
	codeResending(f, &c.Resending)
}

// codeResending codes the last part of a value, which is there only while a loss is sent again.
func codeResending(f *form.Coder, v *uint64) {
	if f.In != "" || *v > 0 {
		f.CodeUvarint(v)
	}
}

func codeLanes(f *form.Coder, v *map[string]uint64) {
	n := f.CodeCount(len(*v), 2)
	if !f.Decoding {
		for _, lane := range slices.Sorted(maps.Keys(*v)) {
			at := (*v)[lane]
			f.CodeText(&lane)
			f.CodeUvarint(&at)
		}
		return
	}
	if n > 0 {
		*v = make(map[string]uint64, n)
	}
	for range n {
		var lane string
		var at uint64
		f.CodeText(&lane)
		f.CodeUvarint(&at)
		(*v)[lane] = at
	}
}

// EncodeLows encodes up to where each sink has settled everything.
func EncodeLows(lows map[string]uint64) []byte { return form.EncodeValue(nil, codeLanes, &lows) }

// DecodeLows is the inverse of EncodeLows.
func DecodeLows(b []byte) (lows map[string]uint64, err error) {
	return lows, form.DecodeValue("settled offsets", b, codeLanes, &lows)
}

// SinkRecord is what is kept of a sink beside its cursor, which exists only once the sink has settled something.
type SinkRecord struct {
	Declared bool
	Removed  time.Time // when it was declared no longer, the last time; zero: never
	Low      uint64    // it had received everything up to here then
	Unsent   uint64    // changes after Low that it can never receive
	// Destination identifies where it delivers to; "" if not known. Formerly is the name that it had before it was renamed.
	Destination, Formerly string
	Resending             uint64 // as in its cursor then
}

// EncodeSinkRecord returns the stored form of a sink's record.
func EncodeSinkRecord(r SinkRecord) []byte { return form.EncodeValue(nil, codeSinkRecord, &r) }

// DecodeSinkRecord is the inverse of EncodeSinkRecord.
func DecodeSinkRecord(b []byte) (r SinkRecord, err error) {
	err = form.DecodeValue("record of a sink", b, codeSinkRecord, &r)
	return r, err
}

func codeSinkRecord(f *form.Coder, r *SinkRecord) {
	f.CodeBool(&r.Declared)
	f.CodeTime(&r.Removed)
	f.CodeUvarint(&r.Low)
	f.CodeUvarint(&r.Unsent)
	f.CodeTexts(&r.Destination, &r.Formerly)
	codeResending(f, &r.Resending)
}

// EncodeFormerSink returns the stored form of a former sink without its name.
func EncodeFormerSink(s event.FormerSink) []byte {
	return form.EncodeValue(nil, codeFormerSink, &s)
}

// DecodeFormerSink is the inverse of EncodeFormerSink.
func DecodeFormerSink(name string, b []byte) (s event.FormerSink, err error) {
	s.Name = name
	err = form.DecodeValue("former sink", b, codeFormerSink, &s)
	return s, err
}

func codeFormerSink(f *form.Coder, s *event.FormerSink) {
	f.CodeBool(&s.Missed)
	form.CodeList(f, &s.Positions, 5, func(f *form.Coder, p *event.ResourcePosition) {
		codeResource(f, &p.Resource)
		f.CodeText(&p.Position)
	})
}

// AppendKnown appends a known object without its key.
func AppendKnown(b []byte, k *event.Known) []byte {
	f := form.Coder{Out: b} // encodeValue would allocate it on the heap, once for each object
	codeKnown(&f, k)
	return f.Out
}

// DecodeKnown decodes a known object. It keeps nothing of key and value.
func DecodeKnown(key, value []byte) (event.Known, error) {
	f, k := form.Coder{Decoding: true, In: string(value)}, event.Known{Key: string(key)}
	if codeKnown(&f, &k); f.Failed || f.In != "" {
		return event.Known{}, fmt.Errorf("%w: known object %q", form.ErrMalformed, key)
	}
	return k, nil
}

func codeKnown(f *form.Coder, k *event.Known) {
	var has byte
	if k.Summary != "" {
		has |= knownSummary
	}
	if k.EmittedElsewhere != "" {
		has |= knownEmitted
	}
	f.CodeByte(&has)
	f.CodeTexts(&k.UID, &k.ResourceVersion)
	if has&knownEmitted != 0 {
		f.CodeText(&k.EmittedElsewhere)
	}
	if has&knownSummary != 0 {
		f.CodeRemainingText(&k.Summary)
	}
	if has&^(knownSummary|knownEmitted) != 0 {
		f.Fail()
	}
}

// Recovery describes a store that could not be used and was moved aside.
type Recovery struct {
	Reason  string `json:"reason"`  // what was wrong, one line
	MovedTo string `json:"movedTo"` // where the broken store is kept for inspection
}

// EncodeResource returns the stored form of a resource.
func EncodeResource(r event.Resource) []byte { return form.EncodeValue(nil, codeResource, &r) }

// DecodeResource is the inverse of EncodeResource.
func DecodeResource(b []byte) (r event.Resource, err error) {
	err = form.DecodeValue("resource", b, codeResource, &r)
	return r, err
}

func codeResource(f *form.Coder, r *event.Resource) {
	f.CodeTexts(&r.Group, &r.Version, &r.Resource, &r.Kind)
}

// EncodeScope returns the stored form of a scope, without its ID.
func EncodeScope(s event.StoredScope) []byte { return form.EncodeValue(nil, codeScope, &s) }

// DecodeScope is the inverse of EncodeScope.
func DecodeScope(id string, b []byte) (event.StoredScope, error) {
	s := event.StoredScope{ID: id}
	err := form.DecodeValue("scope", b, codeScope, &s)
	return s, err
}

func codeScope(f *form.Coder, s *event.StoredScope) {
	f.CodeTexts(&s.Position, &s.Snapshot, &s.LostReason, &s.Pass)
	if s.AheadUpTo != "" || s.Requests != "" || f.Decoding && len(f.In) > 0 {
		f.CodeText(&s.AheadUpTo)
	}
	if s.Requests != "" || f.Decoding && len(f.In) > 0 {
		f.CodeText(&s.Requests)
	}
}

// EncodeRecovery returns the stored form of a recovery.
func EncodeRecovery(r Recovery) []byte { return form.EncodeValue(nil, codeRecovery, &r) }

// DecodeRecovery is the inverse of EncodeRecovery.
func DecodeRecovery(b []byte) (*Recovery, error) {
	r := &Recovery{}
	return r, form.DecodeValue("recovery", b, codeRecovery, r)
}

func codeRecovery(f *form.Coder, r *Recovery) { f.CodeTexts(&r.Reason, &r.MovedTo) }

// EncodeDeadLetter returns the stored form of a dead letter; its change is stored as a frame of one.
func EncodeDeadLetter(p *FrameEncoder, d *event.DeadLetter) []byte {
	header := form.EncodeValue(nil, codeDeadLetterHeader, d)
	return append(header, p.Encode(FrameHeader{Count: 1}, []*event.Change{d.Change})...)
}

// DecodeDeadLetter is the inverse of EncodeDeadLetter.
func DecodeDeadLetter(u *FrameDecoder, offset uint64, value []byte) (event.DeadLetter, error) {
	f, d := form.Coder{Decoding: true, In: string(value)}, event.DeadLetter{Offset: offset}
	if codeDeadLetterHeader(&f, &d); f.Failed {
		return event.DeadLetter{}, fmt.Errorf("%w: dead letter", form.ErrMalformed)
	}
	changes, err := u.Decode(value[len(value)-len(f.In):])
	if err != nil {
		return event.DeadLetter{}, err
	}
	if len(changes) != 1 {
		return event.DeadLetter{}, fmt.Errorf("%w: dead letter of %d changes", form.ErrMalformed, len(changes))
	}
	d.Change = &changes[0]
	return d, nil
}

// codeDeadLetterHeader codes everything before the change.
func codeDeadLetterHeader(f *form.Coder, d *event.DeadLetter) {
	f.CodeTime(&d.Time)
	f.CodeText(&d.Reason)
}

// AppendBody appends the stored form of a body to b. packed is a buffer for the compressed bytes; it is returned for the
// next call.
func AppendBody(b, packed []byte, body *event.Body) (stored, scratch []byte) {
	packed = s2.EncodeSnappy(packed[:cap(packed)], body.Raw)
	return append(form.EncodeValue(b, codeBodyHeader, body), packed...), packed
}

// DecodeBody is the inverse of AppendBody. It keeps nothing of stored.
func DecodeBody(key string, stored []byte) (event.Body, error) {
	f, body := form.Coder{Decoding: true, In: string(stored)}, event.Body{Key: key}
	codeBodyHeader(&f, &body)
	packed := stored[len(stored)-len(f.In):]
	n, err := s2.DecodedLen(packed)
	if err == nil && !f.Failed && n <= maxRawBytes {
		body.Raw, err = s2.Decode(nil, packed)
	} else {
		err = form.ErrMalformed
	}
	if err != nil {
		return event.Body{}, fmt.Errorf("%w: body of %q", form.ErrMalformed, key)
	}
	return body, nil
}

// codeBodyHeader codes everything before the compressed bytes.
func codeBodyHeader(f *form.Coder, b *event.Body) {
	f.CodeTexts(&b.UID, &b.ResourceVersion)
}

// EncodeNumber returns the stored form of a number.
func EncodeNumber(n uint64) []byte { return binary.AppendUvarint(nil, n) }

// DecodeNumber is the inverse of EncodeNumber; nil, which is a missing value, is 0.
func DecodeNumber(b []byte) (n uint64, err error) {
	if b == nil {
		return 0, nil
	}
	err = form.DecodeValue("a number", b, (*form.Coder).CodeUvarint, &n)
	return n, err
}
