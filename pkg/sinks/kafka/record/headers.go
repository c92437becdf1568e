package record

import (
	"encoding/binary"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const headerContentType = "content-type"

// appendHeaders sets e.headers to the number of headers of c's record and the headers.
func (e *Encoder) appendHeaders(c *event.Change) {
	switch e.format {
	case format.CloudEvents:
		e.appendCloudEventHeaders(c)
	case format.CloudEventsStructured:
		e.headers = binary.AppendVarint(e.headers[:0], 1)
		e.headers = appendHeader(e.headers, headerContentType, e.format.ContentType())
	default:
		e.appendNativeHeaders(c)
	}
}

// appendNativeHeaders sets e.headers to the headers by which consumers route, filter and drop duplicates without reading
// the value, and to the facts that the value does not contain.
func (e *Encoder) appendNativeHeaders(c *event.Change) {
	beside := e.format.NeedsFactsHeader(c)
	count := int64(6)
	if c.Snapshot != nil {
		count++
	}
	if beside {
		count++
	}
	if c.ListVersion != "" {
		count++
	}
	e.headers = binary.AppendVarint(e.headers[:0], count)
	e.appendIdentityHeaders(c)
	e.value = c.ObservedAt.UTC().AppendFormat(e.value[:0], time.RFC3339Nano)
	e.appendValueHeader("observedAt")
	if c.Snapshot != nil {
		e.headers = appendHeader(e.headers, "snapshot", c.Snapshot.ID)
	}
	if c.ListVersion != "" {
		e.headers = appendHeader(e.headers, "listVersion", c.ListVersion)
	}
	if beside {
		e.value = format.AppendFacts(e.value[:0], c)
		e.appendValueHeader("change")
	}
}

func (e *Encoder) appendIdentityHeaders(c *event.Change) {
	e.value = c.AppendID(e.value[:0])
	e.appendValueHeader("id")
	b := appendHeader(e.headers, "type", string(c.Type))
	b = appendHeader(b, headerContentType, e.format.ContentType())
	b = appendHeader(b, "cluster", c.Cluster)
	b = binary.AppendVarint(b, int64(len("resource")))
	b = append(b, "resource"...)
	if c.Resource.Group == "" {
		e.headers = appendString(b, c.Resource.Resource)
		return
	}
	b = binary.AppendVarint(b, int64(len(c.Resource.Resource)+1+len(c.Resource.Group)))
	b = append(append(b, c.Resource.Resource...), '.')
	b = append(b, c.Resource.Group...)
	e.headers = b
}

func (e *Encoder) appendValueHeader(name string) {
	e.headers = appendString(e.headers, name)
	e.headers = append(binary.AppendVarint(e.headers, int64(len(e.value))), e.value...)
}

// attribute is a CloudEvents attribute and the name of its header.
type attribute struct {
	format.Attribute
	header string
}

// attributes are those of the binary mode (cloudevents/bindings/kafka-protocol-binding.md, section 3.2.3).
var attributes = func() (all []attribute) {
	for _, a := range format.Attributes() {
		all = append(all, attribute{a, "ce_" + a.Name})
	}
	return all
}()

// appendCloudEventHeaders sets e.headers to c's CloudEvents attributes. Their number is written last, into the one byte
// that is reserved for it: there are fewer than 64.
func (e *Encoder) appendCloudEventHeaders(c *event.Change) {
	count := 1
	e.headers = appendHeader(append(e.headers[:0], 0), headerContentType, e.format.ContentType())
	for _, a := range attributes {
		if e.value = a.Append(e.value[:0], c); len(e.value) > 0 {
			e.appendValueHeader(a.header)
			count++
		}
	}
	e.headers[0] = byte(count) << 1 // varints of the protocol are zigzag-encoded
}

func appendHeader(b []byte, name, value string) []byte {
	return appendString(appendString(b, name), value)
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendVarint(b, int64(len(s))), s...)
}

// EncodeEntries appends one batch of entries, at least one, to dst and returns the extended slice. The batch needs a
// timestamp, see [SetTimestamp].
func (e *Encoder) EncodeEntries(dst []byte, entries []sinks.StateEntry, s ProducerSequence) ([]byte, error) {
	e.records = e.records[:0]
	for i, entry := range entries {
		e.prefix = append(e.prefix[:0], 0, 0) // no attributes; timestamp delta 0
		e.prefix = binary.AppendVarint(e.prefix, int64(i))
		e.prefix = append(binary.AppendVarint(e.prefix, int64(len(entry.Key))), entry.Key...)
		length := int64(len(entry.Value))
		if entry.Value == nil {
			length = nullLength
		}
		e.prefix = binary.AppendVarint(e.prefix, length)
		const noHeaders = 0
		e.records = binary.AppendVarint(e.records, int64(len(e.prefix)+len(entry.Value)+1))
		e.records = append(append(append(e.records, e.prefix...), entry.Value...), noHeaders)
	}
	return e.appendBatch(dst, len(entries), s)
}

// SetSequence replaces the numbers of a batch. It then needs [SetTimestamp] again, for the checksum.
func SetSequence(b []byte, s ProducerSequence) {
	be := binary.BigEndian
	be.PutUint64(b[AtProducerID:], uint64(s.Producer))
	be.PutUint16(b[AtEpoch:], uint16(s.Epoch))
	be.PutUint32(b[AtSequence:], uint32(s.Sequence))
}
