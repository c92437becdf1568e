package decode

import (
	"fmt"
	"math/bits"

	"github.com/cespare/xxhash/v2"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// span is a half-open range of bytes. An absent value has the zero span. An empty string also has an empty span: for an
// identity both mean "".
type span struct{ start, end int }

func (s span) isPresent() bool         { return s.end > s.start }
func (s span) bytesOf(b []byte) []byte { return b[s.start:s.end] }
func (s span) withQuotes() span        { return span{s.start - 1, s.end + 1} }

// fields is the result of one pass over an object's JSON. Spans of strings exclude the quotes and may contain escapes.
type fields struct {
	kind                                  span
	namespace, name, uid, resourceVersion span
	generation, grace                     span // numbers
	created, deleting                     span // times, with their quotes
	annotations                           span // object, including its braces
	metadata                              span // object, including its braces
	stamp                                 span // value of event.StampAnnotation
	cuts                                  cuts // what is not part of the object
	parts                                 deltas.Parts
	writers                               [maxWriters]managedEntry
	writerCount                           int // number of writers
}

// cuts are the spans to remove so that the object is valid without managedFields and the stamp, in ascending order and
// without overlaps. There are two at most.
type cuts struct {
	spans [2]span
	count int
}

func (c *cuts) addSpan(s span) {
	if s.isPresent() && c.count < len(c.spans) {
		c.spans[c.count] = s
		c.count++
	}
}

// size returns the number of bytes that are removed.
func (c *cuts) size() (n int) {
	for _, s := range c.spans[:c.count] {
		n += s.end - s.start
	}
	return n
}

// appendWithout appends the bytes of b from start to end that are not removed.
func (c *cuts) appendWithout(out, b []byte, start, end int) []byte {
	for _, s := range c.spans[:c.count] {
		if s.start < start || s.end > end {
			continue
		}
		out, start = append(out, b[start:s.start]...), s.end
	}
	return append(out, b[start:end]...)
}

// remover adds the cuts for removed members of one object. removeMember or keepMember is called for each member, in order.
type remover struct {
	*cuts
	kept bool
}

// removeMember removes the member that was passed last, with the comma before it.
func (r *remover) removeMember(m *members) {
	start := m.Start
	if m.Comma >= 0 {
		start = m.Comma
	}
	if m.I >= 0 {
		r.addSpan(span{start, m.I})
	}
}

// keepMember keeps a member. It is called before anything inside it is removed.
func (r *remover) keepMember(m *members) {
	if !r.kept && m.Comma >= 0 { // all members before were removed
		r.spans[r.count-1].end = m.Comma + 1
	}
	r.kept = true
}

// maxWriters is the number of metadata.managedFields entries that are compared. The API server keeps ten entries of updates,
// and one for each applier, of which there are few.
const maxWriters = 16

// managedEntry is one entry of metadata.managedFields.
type managedEntry struct {
	manager, operation, subresource, time span
	identity                              uint64 // digest of all members except time and fields
	fieldsV1                              span
}

// malformedError means that bytes from the API server are not the JSON of an object.
type malformedError struct {
	offset int // of the first invalid byte of the input
	size   int // of the input
}

func (e *malformedError) Error() string {
	return fmt.Sprintf("malformed JSON at byte %d of %d", e.offset, e.size)
}

// scanDocument makes one pass over b, which holds one JSON object and nothing else but white space. Every bracket and every
// string is checked up to the last byte, so a truncated object is never accepted; the syntax of numbers and the content of
// skipped values are not checked. Members of the identity must be strings. Duplicate metadata or managedFields are rejected,
// because the choice between them would be arbitrary. f must be zero.
func scanDocument(b []byte, f *fields) error {
	end := scanObject(b, rawjson.SkipSpace(b, 0), f)
	if end >= 0 {
		if rest := rawjson.SkipSpace(b, end); rest != len(b) {
			end = rawjson.FailAt(rest)
		}
	}
	if end < 0 {
		return &malformedError{offset: rawjson.FailAt(end), size: len(b)}
	}
	return nil
}

func scanObject(b []byte, i int, f *fields) int {
	seenMetadata := false
	m := enterObject(b, i)
	for m.Next() {
		switch string(m.Key) {
		case "kind":
			m.readString(&f.kind)
		case "apiVersion", "items":
			m.skipValue()
		case "metadata":
			if seenMetadata {
				return rawjson.FailAt(m.Start)
			}
			seenMetadata = true
			if !m.startsWith('{') {
				m.skipValue()
				break
			}
			f.metadata.start = m.I
			m.I = scanMetadata(b, m.I, f)
			f.metadata.end = m.I
		case "status":
			m.digestValue(&f.parts.Status)
		default:
			m.digestValue(&f.parts.Rest)
		}
	}
	return m.I
}

func scanMetadata(b []byte, i int, f *fields) int {
	seenManaged, seenAnnotations := false, false
	out := remover{cuts: &f.cuts}
	m := enterObject(b, i)
	for m.Next() {
		if string(m.Key) == "managedFields" {
			if seenManaged {
				return rawjson.FailAt(m.Start)
			}
			seenManaged = true
			if m.startsWith('[') {
				m.I = scanManaged(b, m.I, f)
			} else {
				m.skipValue()
			}
			out.removeMember(&m)
			continue
		}
		if string(m.Key) == "annotations" && m.startsWith('{') {
			if seenAnnotations {
				return rawjson.FailAt(m.Start)
			}
			seenAnnotations = true
			scanAnnotations(&m, &out, f)
			continue
		}
		out.keepMember(&m)
		switch string(m.Key) {
		case "name":
			m.readString(&f.name)
		case "namespace":
			m.readString(&f.namespace)
		case "uid":
			m.readString(&f.uid)
		case "resourceVersion":
			m.readString(&f.resourceVersion)
		case "generation":
			f.generation = m.skipValue()
		case "deletionTimestamp":
			f.parts.Deleting = !m.startsWith('n')
			f.deleting = m.digestValue(&f.parts.Metadata)
		case "deletionGracePeriodSeconds":
			f.grace = m.digestValue(&f.parts.Metadata)
		case "creationTimestamp":
			f.created = m.digestValue(&f.parts.Metadata)
		default:
			m.digestValue(&f.parts.Metadata)
		}
	}
	return m.I
}

// scanAnnotations passes the annotations, which are the current member of metadata, and removes the stamp from them; if
// nothing else is in them, all of them. The digest is that of the annotations without the stamp.
func scanAnnotations(annotations *members, out *remover, f *fields) {
	start := annotations.I
	var inner cuts
	left := remover{cuts: &inner}
	m := enterObject(annotations.b, start)
	for m.Next() {
		if string(m.Key) != event.StampAnnotation {
			left.keepMember(&m)
			m.skipValue()
			continue
		}
		if f.stamp.isPresent() { // the choice between two would be arbitrary
			m.I = rawjson.FailAt(m.Start)
			break
		}
		m.readString(&f.stamp)
		left.removeMember(&m)
	}
	if annotations.I = m.I; m.I < 0 {
		return
	}
	f.annotations = span{start, m.I}
	switch {
	case inner.count == 0:
		out.keepMember(annotations)
		annotations.digestMember(&f.parts.Metadata)
	case !left.kept:
		out.removeMember(annotations)
	default:
		out.keepMember(annotations)
		var rest xxhash.Digest
		rest.Reset()
		at := annotations.Start
		for _, s := range inner.spans[:inner.count] {
			out.addSpan(s)
			_, _ = rest.Write(annotations.b[at:s.start]) // never fails
			at = s.end
		}
		_, _ = rest.Write(annotations.b[at:m.I])
		addDigest(&f.parts.Metadata, rest.Sum64())
	}
}

// scanManaged passes the array of managed fields and keeps its entries.
func scanManaged(b []byte, i int, f *fields) int {
	e := rawjson.EnterArray(b, i)
	for e.Next() {
		if e.I < len(b) && b[e.I] == '{' && f.writerCount < maxWriters {
			e.I = scanManagedEntry(b, e.I, &f.writers[f.writerCount])
			f.writerCount++
		} else {
			f.parts.WritersTruncated = true
			e.I = rawjson.SkipTrustedValue(b, e.I)
		}
	}
	return e.I
}

func scanManagedEntry(b []byte, i int, e *managedEntry) int {
	m := enterObject(b, i)
	for m.Next() {
		switch string(m.Key) {
		case "manager":
			m.readString(&e.manager)
		case "operation":
			m.readString(&e.operation)
		case "subresource":
			m.readString(&e.subresource)
		case "time":
			m.readString(&e.time)
			continue
		case "fieldsV1":
			e.fieldsV1 = m.skipValue()
			continue
		default:
			m.skipValue()
		}
		m.digestMember(&e.identity)
	}
	return m.I
}

// members iterates over the members of one JSON object and reads their values.
type members struct {
	rawjson.Members
	b []byte
}

func enterObject(b []byte, i int) members { return members{rawjson.EnterObject(b, i), b} }

func (m *members) startsWith(c byte) bool { return m.I < len(m.b) && m.b[m.I] == c }

func (m *members) skipValue() span {
	from := m.I
	m.I = rawjson.SkipTrustedValue(m.b, from)
	if m.I < 0 {
		return span{}
	}
	return span{from, m.I}
}

// readString reads a string value. null is an absent value; anything else is an error.
func (m *members) readString(s *span) {
	from, quoted := m.I, m.startsWith('"')
	v := m.skipValue()
	switch {
	case m.I < 0:
	case quoted:
		*s = span{v.start + 1, v.end - 1}
	case string(v.bytesOf(m.b)) == "null":
		*s = span{}
	default:
		m.I = rawjson.FailAt(from)
	}
}

// digestValue passes the value like skipValue, and adds the member, key and value, to a digest. The digest depends on the
// order of members.
func (m *members) digestValue(sum *uint64) span {
	v := m.skipValue()
	m.digestMember(sum)
	return v
}

// digestMember adds the member that was passed last to a digest.
func (m *members) digestMember(sum *uint64) {
	if m.I >= 0 {
		addDigest(sum, xxhash.Sum64(m.b[m.Start:m.I]))
	}
}

func addDigest(sum *uint64, of uint64) { *sum = (bits.RotateLeft64(*sum, 5) ^ of) * 0x9e3779b97f4a7c15 }
