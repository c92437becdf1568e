package decode

import (
	"fmt"
	"math/bits"

	"github.com/cespare/xxhash/v2"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// span is a half-open range of bytes. An absent value has the zero span. An empty string also has an empty span: for an
// identity both mean "".
type span struct{ start, end int }

func (s span) isPresent() bool         { return s.end > s.start }
func (s span) bytesOf(b []byte) []byte { return b[s.start:s.end] }
func (s span) withQuotes() span        { return span{s.start - 1, s.end + 1} }
func unquotedSpan(from, to int) span   { return span{from + 1, to - 1} }

// fields is the result of one pass over an object's JSON. Spans of strings exclude the quotes and may contain escapes.
type fields struct {
	kind                                  span
	namespace, name, uid, resourceVersion span
	generation                            span // number
	annotations                           span // object, including its braces
	metadata                              span // object, including its braces
	managed                               span // metadata.managedFields: the member and exactly one adjacent comma
	parts                                 deltas.Parts
	writers                               [maxWriters]managedEntry
	writerCount                           int // number of writers
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
	seenManaged := false
	m := enterObject(b, i)
	for m.Next() {
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
		case "annotations":
			f.annotations = m.digestValue(&f.parts.Metadata)
		case "deletionTimestamp":
			f.parts.Deleting = !m.startsWith('n')
			m.digestValue(&f.parts.Metadata)
		case "managedFields":
			if seenManaged {
				return rawjson.FailAt(m.Start)
			}
			seenManaged = true
			if m.startsWith('[') {
				m.I = scanManaged(b, m.I, f)
			} else {
				m.skipValue()
			}
			f.managed = m.removalSpan()
		default:
			m.digestValue(&f.parts.Metadata)
		}
	}
	return m.I
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

// skipValue passes the value and returns its span.
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
		*s = unquotedSpan(v.start, v.end)
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
		*sum = (bits.RotateLeft64(*sum, 5) ^ xxhash.Sum64(m.b[m.Start:m.I])) * 0x9e3779b97f4a7c15
	}
}

// removalSpan returns the span to remove so that the object is valid without the member that was passed last.
func (m *members) removalSpan() span {
	if m.I < 0 {
		return span{}
	}
	if m.Comma >= 0 {
		return span{m.Comma, m.I}
	}
	if after := rawjson.SkipSpace(m.b, m.I); after < len(m.b) && m.b[after] == ',' {
		return span{m.Start, after + 1}
	}
	return span{m.Start, m.I}
}
