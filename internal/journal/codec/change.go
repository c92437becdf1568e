package codec

import (
	"encoding/binary"
	"fmt"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
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

// Flags of a change, in up to three bytes, see codeFlags.
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
func codeFlags(f *form.Coder, v *uint32) {
	first, second, third := byte(*v), byte(*v>>8), byte(*v>>16)
	if second|third != 0 {
		first |= flagMore
	}
	if f.CodeByte(&first); first&flagMore == 0 {
		*v = uint32(first)
		return
	}
	last := second
	if third != 0 {
		second = 0
	}
	if f.CodeByte(&second); second == 0 {
		if f.CodeByte(&third); third == 0 {
			f.Fail()
		}
		second = last
		f.CodeByte(&second)
	}
	if *v = uint32(first) | uint32(second)<<8 | uint32(third)<<16; *v&^flagsKnown != 0 {
		f.Fail()
	}
}

// changeCoder codes changes, whose bodies are apart from their metadata.
type changeCoder struct {
	form.Coder
	bodies []byte // still to be read; nil where they are left out
}

// codeChange codes the metadata of a change, with the lengths of its bodies in place of these.
func (f *changeCoder) codeChange(c *event.Change) {
	form.CodeEnum(&f.Coder, typeCodes, &c.Type)
	form.CodeEnum(&f.Coder, deltaCodes, &c.Delta)
	var flags uint32
	if !f.Decoding {
		flags = flagsOf(c)
	}
	codeFlags(&f.Coder, &flags)
	is := func(bit uint32) bool { return flags&bit != 0 }
	if f.Decoding {
		c.Coalesced, c.FinalStateUnknown = is(flagCoalesced), is(flagFinalStateUnknown)
		c.RedactionChanged, c.Left = is(flagRedactionChanged), is(flagLeft)
	}
	f.CodeTexts(&c.Cluster, &c.Resource.Group, &c.Resource.Version, &c.Resource.Resource, &c.Resource.Kind,
		&c.Namespace, &c.Name, &c.UID, &c.ResourceVersion)
	f.CodeVarint(&c.Generation)
	f.CodeTime(&c.ObservedAt)
	if allocateOptional(f.Decoding, is(flagActor), &c.Actor) {
		f.CodeTexts(&c.Actor.Manager, &c.Actor.Operation, &c.Actor.Subresource, &c.Actor.Time)
	}
	if allocateOptional(f.Decoding, is(flagGap), &c.Gap) {
		f.CodeTexts(&c.Gap.From, &c.Gap.To, &c.Gap.Reason)
	}
	switch {
	case !is(flagOnlySink):
	case c.Gap == nil:
		f.CodeText(&c.OnlySink)
	default:
		f.CodeText(&c.Gap.Sink)
	}
	if is(flagClass) {
		form.CodeEnum(&f.Coder, classCodes, &c.Class)
	}
	if allocateOptional(f.Decoding, is(flagSnapshot), &c.Snapshot) {
		codeSnapshot(&f.Coder, c.Snapshot)
	}
	if is(flagChanged) {
		f.CodeTextList(&c.Changed)
	}
	if is(flagOmitted) {
		f.CodeTextList(&c.Omitted)
	}
	if is(flagWithheld) {
		f.CodeText(&c.Withheld)
	}
	if is(flagPass) {
		f.CodeText(&c.Pass)
	}
	if is(flagPrevious) {
		f.CodeText(&c.Previous)
	}
	if is(flagListVersion) {
		f.CodeText(&c.ListVersion)
	}
	if allocateOptional(f.Decoding, is(flagStamp), &c.Stamp) {
		f.CodeTexts(&c.Stamp.User, &c.Stamp.Replaced)
	}
	if allocateOptional(f.Decoding, is(flagWatermark), &c.Watermark) {
		codeWatermark(&f.Coder, c.Watermark)
	}
	if allocateOptional(f.Decoding, is(flagReplay), &c.Replay) {
		codeReplay(&f.Coder, c.Replay)
	}
	if allocateOptional(f.Decoding, is(flagAttribution), &c.Attribution) {
		codeAttribution(&f.Coder, c.Attribution)
	}
	if is(flagConstraint) {
		codeConstraints(&f.Coder, c.Attribution)
	}
	f.codeBodyLength(is(flagBefore), &c.Before)
	f.codeBodyLength(is(flagAfter), &c.After)
	f.codeBodyLength(is(flagPatch), &c.Patch)
}

// allocateOptional allocates an optional part for decoding, and returns there.
func allocateOptional[T any](decoding, there bool, v **T) bool {
	if there && decoding {
		*v = new(T)
	}
	return there
}

func codeSnapshot(f *form.Coder, s *event.SnapshotInfo) {
	f.CodeTexts(&s.ID, &s.Position, &s.Digest)
	count := int64(s.Count)
	if f.CodeVarint(&count); f.Decoding {
		s.Count = int(count)
	}
}

func codeWatermark(f *form.Coder, w *event.WatermarkInfo) {
	f.CodeTexts(&w.Epoch, &w.Algorithm, &w.Digest)
	f.CodeUvarint(&w.Sequence)
	count, lane, lanes := int64(w.Count), int64(w.Lane), int64(w.Lanes)
	f.CodeVarint(&count)
	f.CodeVarint(&lane)
	if f.CodeVarint(&lanes); f.Decoding {
		w.Count, w.Lane, w.Lanes = int(count), int(lane), int(lanes)
	}
	f.CodeTextList(&w.Sinks)
}

func codeReplay(f *form.Coder, r *event.ReplayInfo) {
	f.CodeTexts(&r.ID, &r.Of, &r.State, &r.Reason)
	form.CodeEnum(f, typeCodes, &r.Type)
	count := int64(r.Count)
	if f.CodeVarint(&count); f.Decoding {
		r.Count = int(count)
	}
}

func codeAttribution(f *form.Coder, a *event.Attribution) {
	f.CodeTexts(&a.Of, &a.Certainty)
	codeIdentity(f, &a.By)
	var requested byte
	if a.RequestedBy != nil {
		requested = 1
	}
	f.CodeByte(&requested)
	if allocateOptional(f.Decoding, requested == 1, &a.RequestedBy) {
		codeIdentity(f, a.RequestedBy)
	}
}

// isConstrained reports whether a user of an attribution was impersonated with a constraint.
func isConstrained(a *event.Attribution) bool {
	return a != nil && (a.By.ImpersonationConstraint != "" || a.RequestedBy != nil && a.RequestedBy.ImpersonationConstraint != "")
}

func codeConstraints(f *form.Coder, a *event.Attribution) {
	if a == nil {
		f.Fail()
		return
	}
	if f.CodeText(&a.By.ImpersonationConstraint); a.RequestedBy != nil {
		f.CodeText(&a.RequestedBy.ImpersonationConstraint)
	}
}

func codeIdentity(f *form.Coder, i *event.Identity) {
	f.CodeTexts(&i.User, &i.UID, &i.Impersonator, &i.Verb, &i.Subresource, &i.UserAgent, &i.AuditID)
	f.CodeTextList(&i.Groups)
	f.CodeTextList(&i.SourceIPs)
	f.CodeTime(&i.Received)
}

// codeBodyLength codes the length of a body. Decoding takes the body itself from f.bodies.
func (f *changeCoder) codeBodyLength(there bool, v *[]byte) {
	if !there {
		return
	}
	n := uint64(len(*v))
	f.CodeUvarint(&n)
	switch {
	case !f.Decoding, f.bodies == nil:
	case f.Failed || n > uint64(len(f.bodies)):
		f.Fail()
	default:
		*v, f.bodies = f.bodies[:n:n], f.bodies[n:]
	}
}

// appendMeta appends the metadata of c: everything but its bodies, of which it has the lengths.
func appendMeta(b []byte, c *event.Change) []byte {
	f := changeCoder{Coder: form.Coder{Out: b}} // EncodeValue would allocate it on the heap, once for each change
	f.codeChange(c)
	return f.Out
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
		return nil, fmt.Errorf("%w: length of the metadata", form.ErrMalformed)
	}
	return decodeMeta(string(raw[n:n+int(size)]), raw[n+int(size):], count)
}

// decodeMeta decodes count changes; with nil for bodies, without their bodies.
func decodeMeta(text string, bodies []byte, count uint64) ([]event.Change, error) {
	if count > uint64(len(text))/minChangeMeta {
		return nil, fmt.Errorf("%w: %d changes in %d bytes", form.ErrMalformed, count, len(text))
	}
	f := changeCoder{form.Coder{Decoding: true, In: text}, bodies}
	changes := make([]event.Change, count)
	for i := range changes {
		f.codeChange(&changes[i])
	}
	if f.Failed || len(f.In) > 0 || len(f.bodies) > 0 {
		return nil, fmt.Errorf("%w: metadata or bodies do not add up", form.ErrMalformed)
	}
	return changes, nil
}
