package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/segmentio/kafka-go/compress"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Byte positions in a record batch, version 2 (KIP-98; kafka.apache.org/documentation/#recordbatch).
const (
	HeaderSize = 61

	atBaseOffset  = 0
	AtBatchLength = 8
	AtLeaderEpoch = 12
	atMagic       = 16
	atCRC         = 17
	atAttributes  = 21 // the CRC covers everything from here to the end
	atLastDelta   = 23
	atBaseTime    = 27
	AtMaxTime     = 35
	AtProducerID  = 43
	AtEpoch       = 51
	AtSequence    = 53
	AtCount       = 57
)

// MaxBatchBytes is the largest configurable batch size, in bytes of uncompressed records. A larger record is a batch of its
// own.
const MaxBatchBytes = 16 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ProducerSequence is what a broker recognizes copies of a batch by: producer ID, epoch, and the number of the first record.
type ProducerSequence struct {
	Producer int64
	Epoch    int16
	Sequence int32
}

// SequenceAfter returns the sequence number n records after s. Numbers wrap to 0 after the largest int32.
func SequenceAfter(s int32, n int) int32 { return int32((int64(s) + int64(n)) & math.MaxInt32) }

// Encoder encodes messages as record batches. It reuses its buffers. Not safe for concurrent use.
type Encoder struct {
	format     format.Format
	schemas    SchemaIDs
	tombstones bool // each delete is followed by a record of the same key without a value
	attribute  int16
	compress   compressor
	opened     map[int16]compressor // by attribute: those that were used
	records    []byte               // uncompressed records of the present batch
	prefix     []byte               // scratch: a record up to its value
	headers    []byte               // scratch: a record's headers
	value      []byte               // scratch: a key, or a header's value
}

// NewEncoder returns an encoder of values in a format. With tombstones, a record without a value follows each delete.
func NewEncoder(f format.Format, tombstones bool, c Codec) (*Encoder, error) {
	e := &Encoder{format: f, tombstones: tombstones, opened: map[int16]compressor{}}
	return e, e.UseCodec(c)
}

// SchemaIDs are those that a registry has given to the schemas of the keys and values of a topic.
type SchemaIDs struct{ Key, Value int32 }

// UseSchemas begins keys and values from now on with these IDs, in a format that needs them.
func (e *Encoder) UseSchemas(ids SchemaIDs) { e.schemas = ids }

// appendSchemaID appends how a key or value begins that names its schema.
func (e *Encoder) appendSchemaID(b []byte, id int32) []byte {
	if !e.format.IsRegistered() {
		return b
	}
	return binary.BigEndian.AppendUint32(append(b, format.RegisteredStart), uint32(id))
}

// appendValue appends the value of c; nothing if it has none.
func (e *Encoder) appendValue(b []byte, c *event.Change) []byte {
	begun := e.appendSchemaID(b, e.schemas.Value)
	if whole := e.format.AppendValue(begun, c); len(whole) > len(begun) {
		return whole
	}
	return b
}

// UseCodec compresses the batches from now on with c.
func (e *Encoder) UseCodec(c Codec) (err error) {
	compress := e.opened[c.attribute]
	if compress == nil {
		if compress, err = c.open(); err != nil {
			return err
		}
		e.opened[c.attribute] = compress
	}
	e.attribute, e.compress = c.attribute, compress
	return nil
}

// Encode appends one batch of the first messages to dst: as many as fit into budget bytes of uncompressed records and at
// most most, but at least one. The batch needs a timestamp before it is valid, see [SetTimestamp]. It returns the extended
// slice, and the numbers of messages and of records in the batch.
func (e *Encoder) Encode(dst []byte, messages []sinks.Message, budget, most int, s ProducerSequence) (b []byte, count, records int, err error) {
	e.records = e.records[:0]
	for count < len(messages) && count < most {
		c, before := messages[count].Change, len(e.records)
		more := e.appendMessage(c, records)
		if count > 0 && len(e.records) > budget {
			e.records = e.records[:before]
			break
		}
		count, records = count+1, records+more
	}
	if b, err = e.appendBatch(dst, records, s); err != nil {
		return nil, 0, 0, err
	}
	return b, count, records, nil
}

func (e *Encoder) appendBatch(dst []byte, records int, s ProducerSequence) ([]byte, error) {
	start := len(dst)
	dst, err := e.compress(append(dst, make([]byte, HeaderSize)...), e.records)
	if err != nil {
		return nil, err
	}
	e.writeHeader(dst[start:], records, s)
	if cap(e.records) > 2*MaxBatchBytes { // one unusually large change made it grow
		e.records = nil
	}
	return dst, nil
}

// RawBytes returns the size of the records of the last batch before compression.
func (e *Encoder) RawBytes() int { return len(e.records) }

// SetTimestamp writes the timestamp of all records, and the checksum that makes the batch valid. The timestamp is the time
// of sending: brokers expire records and producers by it, and refuse one too far from their own clock. The time of
// observation is in the headers. The zero time means no timestamp, which brokers always accept.
func SetTimestamp(b []byte, t time.Time) {
	be, millis := binary.BigEndian, noTimestamp
	if !t.IsZero() {
		millis = t.UnixMilli()
	}
	be.PutUint64(b[atBaseTime:], uint64(millis))
	be.PutUint64(b[AtMaxTime:], uint64(millis))
	be.PutUint32(b[atCRC:], crc32.Checksum(b[atAttributes:], castagnoli)) // last
}

// noTimestamp is the timestamp of a record that has none (org.apache.kafka.common.record.RecordBatch).
const noTimestamp int64 = -1

func (e *Encoder) writeHeader(b []byte, records int, s ProducerSequence) {
	be := binary.BigEndian
	be.PutUint64(b[atBaseOffset:], 0)
	be.PutUint32(b[AtBatchLength:], uint32(len(b)-AtLeaderEpoch))
	be.PutUint32(b[AtLeaderEpoch:], math.MaxUint32) // -1: the leader writes its own
	b[atMagic] = 2
	be.PutUint16(b[atAttributes:], uint16(e.attribute))
	be.PutUint32(b[atLastDelta:], uint32(records-1))
	be.PutUint32(b[AtCount:], uint32(records))
	SetSequence(b, s)
}

// nullLength is the length of a null value, as opposed to an empty one.
const nullLength = -1

// maxPrefix bounds the bytes of a record before its value, except the key: the length of the record, its attributes, two
// deltas, and the lengths of key and value.
const maxPrefix = binary.MaxVarintLen32 + 2 + 3*binary.MaxVarintLen32

// appendMessage appends the records of one change and returns their number.
func (e *Encoder) appendMessage(c *event.Change, offsetDelta int) int {
	e.appendHeaders(c)
	e.appendRecord(c, offsetDelta, e.appendValue)
	if !HasTombstone(c, e.tombstones) {
		return 1
	}
	e.appendRecord(c, offsetDelta+1, appendNothing)
	return 2
}

// HasTombstone reports whether the record of c is followed by a tombstone.
func HasTombstone(c *event.Change, tombstones bool) bool {
	return tombstones && c.Type == event.Deleted
}

func appendNothing(b []byte, _ *event.Change) []byte { return b }

// appendRecord appends one record with the headers in e. The value is written straight into the buffer, behind space for
// what precedes it, and moved down by a few bytes once its length is known. An empty value is null.
func (e *Encoder) appendRecord(c *event.Change, offsetDelta int, appendValue func([]byte, *event.Change) []byte) {
	e.prefix = append(e.prefix[:0], 0, 0) // no attributes are defined for a record; timestamp delta 0
	e.prefix = binary.AppendVarint(e.prefix, int64(offsetDelta))
	e.value = e.format.AppendKey(e.appendSchemaID(e.value[:0], e.schemas.Key), c)
	e.prefix = append(binary.AppendVarint(e.prefix, int64(len(e.value))), e.value...)

	start := len(e.records)
	space := maxPrefix + len(e.prefix)
	e.records = slices.Grow(e.records, space)[:start+space]
	e.records = appendValue(e.records, c)
	value := len(e.records) - start - space

	if value > 0 {
		e.prefix = binary.AppendVarint(e.prefix, int64(value))
	} else {
		e.prefix = binary.AppendVarint(e.prefix, nullLength)
	}
	var lead [binary.MaxVarintLen32]byte
	n := binary.PutVarint(lead[:], int64(len(e.prefix)+value+len(e.headers)))

	at := start + copy(e.records[start:], lead[:n])
	at += copy(e.records[at:], e.prefix)
	at += copy(e.records[at:], e.records[start+space:])
	e.records = append(e.records[:at], e.headers...)
}

// Codec compresses the records of a batch. attribute is its value in the batch header (KIP-98, KIP-110 for zstd).
type Codec struct {
	attribute int16
	open      func() (compressor, error)
}

// compressor appends the compressed form of src to dst. Not safe for concurrent use.
type compressor func(dst, src []byte) ([]byte, error)

// Codecs by their name in the configuration.
var Codecs = map[string]Codec{
	"none":   {0, func() (compressor, error) { return appendUncompressed, nil }},
	"gzip":   {1, streamingCodec(compress.Gzip)},
	"snappy": {2, streamingCodec(compress.Snappy)},
	"lz4":    {3, streamingCodec(compress.Lz4)},
	"zstd":   {4, openZstd},
}

func appendUncompressed(dst, src []byte) ([]byte, error) { return append(dst, src...), nil }

// zstdWindow is how far back zstd looks, in bytes. Changes resemble the few before them: a small window costs hardly any
// ratio, and its tables stay in the cache of the processor.
const zstdWindow = 128 << 10

// openZstd does not use kafka-go's codec, which compresses at the default level: 1.7 times the time for the same size on
// Kubernetes objects. The frame has no checksum because the batch has one.
func openZstd() (compressor, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(zstdWindow), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	return func(dst, src []byte) ([]byte, error) { return enc.EncodeAll(src, dst), nil }, nil
}

func streamingCodec(c compress.Compression) func() (compressor, error) {
	return func() (compressor, error) {
		return func(dst, src []byte) ([]byte, error) {
			out := appendWriter{dst}
			w := c.Codec().NewWriter(&out)
			_, err := w.Write(src)
			if closeErr := w.Close(); err == nil {
				err = closeErr
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c, err)
			}
			return out.b, nil
		}, nil
	}
}

// appendWriter is an io.Writer that appends to a slice.
type appendWriter struct{ b []byte }

var _ io.Writer = (*appendWriter)(nil)

func (a *appendWriter) Write(p []byte) (int, error) {
	a.b = append(a.b, p...)
	return len(p), nil
}

const headerContentType = "content-type"

// appendHeaders sets e.headers to the headers of c's record. Their number is in the one byte that is reserved for it: there
// are fewer than 64.
func (e *Encoder) appendHeaders(c *event.Change) {
	e.headers = append(e.headers[:0], 0)
	switch e.format {
	case format.CloudEvents:
		e.appendTextHeader(headerContentType, e.format.ContentType())
		for _, a := range attributes {
			if e.value = a.Append(e.value[:0], c); len(e.value) > 0 {
				e.appendValueHeader(a.header)
			}
		}
	case format.CloudEventsStructured:
		e.appendTextHeader(headerContentType, e.format.ContentType())
	default:
		e.appendNativeHeaders(c)
	}
}

// appendNativeHeaders appends the headers by which consumers route, filter and drop duplicates without reading the value,
// and the facts that the value does not contain.
func (e *Encoder) appendNativeHeaders(c *event.Change) {
	e.value = c.AppendID(e.value[:0])
	e.appendValueHeader("id")
	e.appendTextHeader("type", string(c.Type))
	e.appendTextHeader(headerContentType, e.format.ContentType())
	e.appendTextHeader("cluster", c.Cluster)
	e.value = append(e.value[:0], c.Resource.Resource...)
	if c.Resource.Group != "" {
		e.value = append(append(e.value, '.'), c.Resource.Group...)
	}
	e.appendValueHeader("resource")
	e.value = c.ObservedAt.UTC().AppendFormat(e.value[:0], time.RFC3339Nano)
	e.appendValueHeader("observedAt")
	if c.Snapshot != nil {
		e.appendTextHeader("snapshot", c.Snapshot.ID)
	}
	if c.ListVersion != "" {
		e.appendTextHeader("listVersion", c.ListVersion)
	}
	if e.format.NeedsFactsHeader(c) {
		e.value = format.AppendFacts(e.value[:0], c)
		e.appendValueHeader("change")
	}
}

// appendValueHeader appends a header with the value in e.value.
func (e *Encoder) appendValueHeader(name string) {
	e.headers = appendString(e.headers, name)
	e.headers = append(binary.AppendVarint(e.headers, int64(len(e.value))), e.value...)
	e.headers[0] += 1 << 1 // varints of the protocol are zigzag-encoded
}

func (e *Encoder) appendTextHeader(name, value string) {
	e.value = append(e.value[:0], value...)
	e.appendValueHeader(name)
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendVarint(b, int64(len(s))), s...)
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
