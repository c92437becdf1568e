package codec

import (
	"encoding/binary"
	"fmt"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Codes of the enumerations in stored changes. They are part of the format: append only.
var (
	typeCodes = []event.Type{
		"", event.Added, event.Updated, event.Deleted, event.Snapshot, event.Gap, event.SnapshotBegin, event.SnapshotEnd,
		event.Sync, event.Attributed, event.AttributionGap, event.Watermark, event.PartialBegin, event.PartialEnd,
		event.Replayed, event.ReplayEnd,
	}
	deltaCodes = []event.Delta{
		"", event.DeltaAdded, event.DeltaUpdated, event.DeltaDeleted, event.DeltaReplaced, event.DeltaSync,
	}
	classCodes = []event.Class{"", event.ClassDeleting, event.ClassSpec, event.ClassStatus, event.ClassMetadata}
)

// Flags of a change, in up to three bytes, see coder.codeFlags.
const (
	flagCoalesced = 1 << iota
	flagFinalStateUnknown
	flagActor
	flagGap
	flagBefore
	flagAfter
	flagMore // a second byte follows
	flagRedactionChanged

	flagClass
	flagSnapshot
	flagChanged
	flagPatch
	flagOmitted
	flagWithheld
	flagLeft
	flagPass

	flagPrevious
	flagAttribution
	flagOnlySink // of a gap, or of the change
	flagConstraint
	flagListVersion
	flagStamp
	flagWatermark
	flagReplay

	flagsKnown = 1<<iota - 1
)

// minChangeMeta is the least number of bytes that the metadata of one change takes: three codes, nine strings, three
// numbers. It keeps a broken count from causing a huge allocation.
const minChangeMeta = 15

func flagsOf(c *event.Change) (flags uint32) {
	for _, f := range [...]struct {
		on  bool
		bit uint32
	}{
		{c.Coalesced, flagCoalesced}, {c.FinalStateUnknown, flagFinalStateUnknown}, {c.Actor != nil, flagActor},
		{c.Gap != nil, flagGap}, {c.Before != nil, flagBefore}, {c.After != nil, flagAfter},
		{c.RedactionChanged, flagRedactionChanged}, {c.Class != "", flagClass}, {c.Snapshot != nil, flagSnapshot},
		{c.Changed != nil, flagChanged}, {c.Patch != nil, flagPatch}, {c.Omitted != nil, flagOmitted},
		{c.Withheld != "", flagWithheld}, {c.Left, flagLeft}, {c.Pass != "", flagPass},
		{c.Previous != "", flagPrevious}, {c.Attribution != nil, flagAttribution}, {isConstrained(c.Attribution), flagConstraint},
		{c.Gap != nil && c.Gap.Sink != "" || c.Gap == nil && c.OnlySink != "", flagOnlySink}, {c.ListVersion != "", flagListVersion}, {c.Stamp != nil, flagStamp},
		{c.Watermark != nil, flagWatermark}, {c.Replay != nil, flagReplay},
	} {
		if f.on {
			flags |= f.bit
		}
	}
	return flags
}

// codeFlags codes one, two or four bytes. Four bytes are first, 0, third, second: a second byte of 0 announces a third.
func (f *coder) codeFlags(v *uint32) {
	first, second, third := byte(*v), byte(*v>>8), byte(*v>>16)
	if second|third != 0 {
		first |= flagMore
	}
	if f.codeByte(&first); first&flagMore == 0 {
		*v = uint32(first)
		return
	}
	last := second
	if third != 0 {
		second = 0
	}
	if f.codeByte(&second); second == 0 {
		if f.codeByte(&third); third == 0 {
			f.fail()
		}
		second = last
		f.codeByte(&second)
	}
	if *v = uint32(first) | uint32(second)<<8 | uint32(third)<<16; *v&^flagsKnown != 0 {
		f.fail()
	}
}

// codeChange codes the metadata of a change, with the lengths of its bodies in place of these.
func (f *coder) codeChange(c *event.Change) {
	codeEnum(f, typeCodes, &c.Type)
	codeEnum(f, deltaCodes, &c.Delta)
	var flags uint32
	if !f.decoding {
		flags = flagsOf(c)
	}
	f.codeFlags(&flags)
	is := func(bit uint32) bool { return flags&bit != 0 }
	if f.decoding {
		c.Coalesced, c.FinalStateUnknown = is(flagCoalesced), is(flagFinalStateUnknown)
		c.RedactionChanged, c.Left = is(flagRedactionChanged), is(flagLeft)
	}
	f.codeTexts(&c.Cluster, &c.Resource.Group, &c.Resource.Version, &c.Resource.Resource, &c.Resource.Kind,
		&c.Namespace, &c.Name, &c.UID, &c.ResourceVersion)
	f.codeVarint(&c.Generation)
	f.codeTime(&c.ObservedAt)
	if allocateOptional(f, is(flagActor), &c.Actor) {
		f.codeTexts(&c.Actor.Manager, &c.Actor.Operation, &c.Actor.Subresource, &c.Actor.Time)
	}
	if allocateOptional(f, is(flagGap), &c.Gap) {
		f.codeTexts(&c.Gap.From, &c.Gap.To, &c.Gap.Reason)
	}
	switch {
	case !is(flagOnlySink):
	case c.Gap == nil:
		f.codeText(&c.OnlySink)
	default:
		f.codeText(&c.Gap.Sink)
	}
	if is(flagClass) {
		codeEnum(f, classCodes, &c.Class)
	}
	if allocateOptional(f, is(flagSnapshot), &c.Snapshot) {
		f.codeSnapshot(c.Snapshot)
	}
	if is(flagChanged) {
		f.codeTextList(&c.Changed)
	}
	if is(flagOmitted) {
		f.codeTextList(&c.Omitted)
	}
	if is(flagWithheld) {
		f.codeText(&c.Withheld)
	}
	if is(flagPass) {
		f.codeText(&c.Pass)
	}
	if is(flagPrevious) {
		f.codeText(&c.Previous)
	}
	if is(flagListVersion) {
		f.codeText(&c.ListVersion)
	}
	if allocateOptional(f, is(flagStamp), &c.Stamp) {
		f.codeTexts(&c.Stamp.User, &c.Stamp.Replaced)
	}
	if allocateOptional(f, is(flagWatermark), &c.Watermark) {
		codeWatermark(f, c.Watermark)
	}
	if allocateOptional(f, is(flagReplay), &c.Replay) {
		codeReplay(f, c.Replay)
	}
	if allocateOptional(f, is(flagAttribution), &c.Attribution) {
		f.codeAttribution(c.Attribution)
	}
	if is(flagConstraint) {
		f.codeConstraints(c.Attribution)
	}
	f.codeBodyLength(is(flagBefore), &c.Before)
	f.codeBodyLength(is(flagAfter), &c.After)
	f.codeBodyLength(is(flagPatch), &c.Patch)
}

func (f *coder) codeSnapshot(s *event.SnapshotInfo) {
	f.codeTexts(&s.ID, &s.Position, &s.Digest)
	count := int64(s.Count)
	if f.codeVarint(&count); f.decoding {
		s.Count = int(count)
	}
}

func codeWatermark(f *coder, w *event.WatermarkInfo) {
	f.codeTexts(&w.Epoch, &w.Algorithm, &w.Digest)
	f.codeUvarint(&w.Sequence)
	count, lane, lanes := int64(w.Count), int64(w.Lane), int64(w.Lanes)
	f.codeVarint(&count)
	f.codeVarint(&lane)
	if f.codeVarint(&lanes); f.decoding {
		w.Count, w.Lane, w.Lanes = int(count), int(lane), int(lanes)
	}
	f.codeTextList(&w.Sinks)
}

func codeReplay(f *coder, r *event.ReplayInfo) {
	f.codeTexts(&r.ID, &r.Of, &r.State, &r.Reason)
	codeEnum(f, typeCodes, &r.Type)
	count := int64(r.Count)
	if f.codeVarint(&count); f.decoding {
		r.Count = int(count)
	}
}

func (f *coder) codeAttribution(a *event.Attribution) {
	f.codeTexts(&a.Of, &a.Certainty)
	f.codeIdentity(&a.By)
	var requested byte
	if a.RequestedBy != nil {
		requested = 1
	}
	f.codeByte(&requested)
	if allocateOptional(f, requested == 1, &a.RequestedBy) {
		f.codeIdentity(a.RequestedBy)
	}
}

// isConstrained reports whether a user of an attribution was impersonated with a constraint.
func isConstrained(a *event.Attribution) bool {
	return a != nil && (a.By.ImpersonationConstraint != "" || a.RequestedBy != nil && a.RequestedBy.ImpersonationConstraint != "")
}

func (f *coder) codeConstraints(a *event.Attribution) {
	if a == nil {
		f.fail()
		return
	}
	if f.codeText(&a.By.ImpersonationConstraint); a.RequestedBy != nil {
		f.codeText(&a.RequestedBy.ImpersonationConstraint)
	}
}

func (f *coder) codeIdentity(i *event.Identity) {
	f.codeTexts(&i.User, &i.UID, &i.Impersonator, &i.Verb, &i.Subresource, &i.UserAgent, &i.AuditID)
	f.codeTextList(&i.Groups)
	f.codeTextList(&i.SourceIPs)
	f.codeTime(&i.Received)
}

// codeBodyLength codes the length of a body. Decoding takes the body itself from f.bodies.
func (f *coder) codeBodyLength(there bool, v *[]byte) {
	if !there {
		return
	}
	n := uint64(len(*v))
	f.codeUvarint(&n)
	switch {
	case !f.decoding, f.bodies == nil:
	case f.failed || n > uint64(len(f.bodies)):
		f.fail()
	default:
		*v, f.bodies = f.bodies[:n:n], f.bodies[n:]
	}
}

// appendMeta appends the metadata of c: everything but its bodies, of which it has the lengths.
func appendMeta(b []byte, c *event.Change) []byte {
	f := coder{out: b} // encodeValue would allocate it on the heap, once for each change
	f.codeChange(c)
	return f.out
}

// appendRaw appends the uncompressed form of a frame: the length of the metadata, the metadata, then all bodies as they are.
func appendRaw(b, meta []byte, changes []*event.Change) []byte {
	b = binary.AppendUvarint(b, uint64(len(meta)))
	b = append(b, meta...)
	for _, c := range changes {
		b = append(append(append(b, c.Before...), c.After...), c.Patch...)
	}
	return b
}

// decodeRaw is the inverse of appendRaw. The changes share one allocation, their strings another, and their bodies alias
// raw, which must not change afterwards.
func decodeRaw(raw []byte, count uint64) ([]event.Change, error) {
	size, n := binary.Uvarint(raw)
	if n <= 0 || size > uint64(len(raw)-n) {
		return nil, fmt.Errorf("%w: length of the metadata", ErrMalformed)
	}
	return decodeMeta(string(raw[n:n+int(size)]), raw[n+int(size):], count)
}

// decodeMeta decodes count changes; with nil for bodies, without their bodies.
func decodeMeta(text string, bodies []byte, count uint64) ([]event.Change, error) {
	if count > uint64(len(text))/minChangeMeta {
		return nil, fmt.Errorf("%w: %d changes in %d bytes", ErrMalformed, count, len(text))
	}
	f := coder{decoding: true, in: text, bodies: bodies}
	changes := make([]event.Change, count)
	for i := range changes {
		f.codeChange(&changes[i])
	}
	if f.failed || len(f.in) > 0 || len(f.bodies) > 0 {
		return nil, fmt.Errorf("%w: metadata or bodies do not add up", ErrMalformed)
	}
	return changes, nil
}
