package codec

import (
	"encoding/binary"
	"fmt"
	"math/bits"

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
	timeCodes  = []event.TimeSource{
		"", event.TimeFromAudit, event.TimeFromManagedFields, event.TimeFromDeletion, event.TimeFromWatch,
	}
)

// minChangeMeta is the least number of bytes that the metadata of one change takes: two codes, nine strings, four
// numbers. It keeps a broken count from causing a huge allocation.
const minChangeMeta = 15

// changePart is a member that few changes have. Its place in changeParts is its bit in the flags.
type changePart struct {
	isThere func(c *event.Change) bool
	code    func(f *changeCoder, c *event.Change) // called if it is there; decoding makes it so
}

// changeParts are the members that few changes have, in the order in which they are stored. They are part of the format.
var changeParts = [...]changePart{
	boolPart(func(c *event.Change) *bool { return &c.Coalesced }),
	bodyPart(func(c *event.Change) *[]byte { return &c.Before }),
	bodyPart(func(c *event.Change) *[]byte { return &c.After }),
	textPart(func(c *event.Change) *string { return &c.Previous }),
	structPart(func(c *event.Change) **event.Actor { return &c.Actor }, codeActor),
	textPart(func(c *event.Change) *string { return &c.ListVersion }),
	{
		func(c *event.Change) bool { return c.Class != "" },
		func(f *changeCoder, c *event.Change) { form.CodeEnum(&f.Coder, classCodes, &c.Class) },
	},
	structPart(func(c *event.Change) **event.SnapshotInfo { return &c.Snapshot }, codeSnapshot),
	bodyPart(func(c *event.Change) *[]byte { return &c.Changed }),
	textPart(func(c *event.Change) *string { return &c.Pass }),
	boolPart(func(c *event.Change) *bool { return &c.FinalStateUnknown }),
	boolPart(func(c *event.Change) *bool { return &c.Left }),
	boolPart(func(c *event.Change) *bool { return &c.RedactionChanged }),
	listPart(func(c *event.Change) *[]string { return &c.Omitted }),
	textPart(func(c *event.Change) *string { return &c.Withheld }),
	textPart(func(c *event.Change) *string { return &c.OnlySink }),
	structPart(func(c *event.Change) **event.GapInfo { return &c.Gap }, codeGap),
	structPart(func(c *event.Change) **event.Stamp { return &c.Stamp }, codeStamp),
	structPart(func(c *event.Change) **event.WatermarkInfo { return &c.Watermark }, codeWatermark),
	structPart(func(c *event.Change) **event.ReplayInfo { return &c.Replay }, codeReplay),
	structPart(func(c *event.Change) **event.Attribution { return &c.Attribution }, codeAttribution),
	{
		func(c *event.Change) bool { return c.ChangedAt != event.ChangeTime{} },
		func(f *changeCoder, c *event.Change) {
			f.CodeTime(&c.ChangedAt.At)
			f.CodeTime(&c.ChangedAt.NotBefore)
			form.CodeEnum(&f.Coder, timeCodes, &c.ChangedAt.Source)
		},
	},
	structPart(func(c *event.Change) **event.HeldInfo { return &c.Held }, func(f *form.Coder, h *event.HeldInfo) {
		f.CodeTextList(&h.Sinks)
		f.CodeTexts(&h.Unknown)
		f.CodeBool(&h.Released)
		form.CodeNumber(f, &h.Wait)
	}),
}

func boolPart(of func(*event.Change) *bool) changePart {
	return changePart{
		func(c *event.Change) bool { return *of(c) },
		func(f *changeCoder, c *event.Change) {
			if f.Decoding {
				*of(c) = true
			}
		},
	}
}

func textPart(of func(*event.Change) *string) changePart {
	return changePart{
		func(c *event.Change) bool { return *of(c) != "" },
		func(f *changeCoder, c *event.Change) { f.CodeText(of(c)) },
	}
}

func listPart(of func(*event.Change) *[]string) changePart {
	return changePart{
		func(c *event.Change) bool { return *of(c) != nil },
		func(f *changeCoder, c *event.Change) { f.CodeTextList(of(c)) },
	}
}

func structPart[T any](of func(*event.Change) **T, code func(*form.Coder, *T)) changePart {
	return changePart{
		func(c *event.Change) bool { return *of(c) != nil },
		func(f *changeCoder, c *event.Change) {
			if f.Decoding {
				*of(c) = new(T)
			}
			code(&f.Coder, *of(c))
		},
	}
}

// bodyPart is a body, which is apart from the metadata: these have its length. Decoding takes it from f.bodies.
func bodyPart(of func(*event.Change) *[]byte) changePart {
	return changePart{
		func(c *event.Change) bool { return *of(c) != nil },
		func(f *changeCoder, c *event.Change) {
			n := uint64(len(*of(c)))
			f.CodeUvarint(&n)
			switch {
			case !f.Decoding, f.bodies == nil:
			case f.Failed || n > uint64(len(f.bodies)):
				f.Fail()
			default:
				*of(c), f.bodies = f.bodies[:n:n], f.bodies[n:]
			}
		},
	}
}

// changeCoder codes changes, whose bodies are apart from their metadata.
type changeCoder struct {
	form.Coder
	bodies []byte // still to be read; nil where they are left out
}

func (f *changeCoder) codeChange(c *event.Change) {
	form.CodeEnum(&f.Coder, typeCodes, &c.Type)
	form.CodeEnum(&f.Coder, deltaCodes, &c.Delta)
	f.CodeTexts(&c.Cluster, &c.Resource.Group, &c.Resource.Version, &c.Resource.Resource, &c.Resource.Kind,
		&c.Namespace, &c.Name, &c.UID, &c.ResourceVersion)
	f.CodeVarint(&c.Generation)
	f.CodeTime(&c.ObservedAt)
	var flags uint64
	for bit, part := range changeParts {
		if !f.Decoding && part.isThere(c) {
			flags |= 1 << bit
		}
	}
	f.CodeUvarint(&flags)
	if flags>>len(changeParts) != 0 {
		f.Fail()
		return
	}
	for ; flags != 0; flags &= flags - 1 {
		changeParts[bits.TrailingZeros64(flags)].code(f, c)
	}
}

func codeActor(f *form.Coder, a *event.Actor) {
	f.CodeTexts(&a.Manager, &a.Operation, &a.Subresource, &a.Time)
}

func codeGap(f *form.Coder, g *event.GapInfo) { f.CodeTexts(&g.From, &g.To, &g.Reason, &g.Sink) }

func codeStamp(f *form.Coder, s *event.Stamp) { f.CodeTexts(&s.User, &s.Replaced) }

func codeSnapshot(f *form.Coder, s *event.SnapshotInfo) {
	f.CodeTexts(&s.ID, &s.Position, &s.Digest)
	form.CodeNumber(f, &s.Count)
}

func codeWatermark(f *form.Coder, w *event.WatermarkInfo) {
	f.CodeTexts(&w.Epoch, &w.Algorithm, &w.Digest)
	f.CodeUvarint(&w.Sequence)
	form.CodeNumber(f, &w.Count)
	form.CodeNumber(f, &w.Lane)
	form.CodeNumber(f, &w.Lanes)
	f.CodeTextList(&w.Sinks)
}

func codeReplay(f *form.Coder, r *event.ReplayInfo) {
	f.CodeTexts(&r.ID, &r.Of, &r.State, &r.Reason)
	form.CodeEnum(f, typeCodes, &r.Type)
	form.CodeNumber(f, &r.Count)
}

func codeAttribution(f *form.Coder, a *event.Attribution) {
	f.CodeTexts(&a.Of, &a.Certainty)
	codeIdentity(f, &a.By)
	requested := a.RequestedBy != nil
	if f.CodeBool(&requested); !requested {
		return
	}
	if f.Decoding {
		a.RequestedBy = new(event.Identity)
	}
	codeIdentity(f, a.RequestedBy)
}

func codeIdentity(f *form.Coder, i *event.Identity) {
	f.CodeTexts(&i.User, &i.UID, &i.Impersonator, &i.ImpersonationConstraint, &i.Verb, &i.Subresource, &i.UserAgent, &i.AuditID)
	f.CodeTextList(&i.Groups)
	f.CodeTextList(&i.SourceIPs)
	f.CodeTime(&i.Received)
}

// appendMeta appends the metadata of changes: everything but their bodies, of which it has the lengths.
func appendMeta(b []byte, changes []*event.Change) []byte {
	f := changeCoder{Coder: form.Coder{Out: b}}
	for _, c := range changes {
		f.codeChange(c)
	}
	return f.Out
}

// appendRaw appends the uncompressed form of a frame: the length of the metadata, the metadata, then all bodies as they are.
func appendRaw(b, meta []byte, changes []*event.Change) []byte {
	b = binary.AppendUvarint(b, uint64(len(meta)))
	b = append(b, meta...)
	for _, c := range changes {
		b = append(append(append(b, c.Before...), c.After...), c.Changed...)
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
