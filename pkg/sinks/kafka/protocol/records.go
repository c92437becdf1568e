package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/segmentio/kafka-go/compress"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Record is a record of a partition. A key or a value that is null is nil. The memory belongs to the reader.
type Record struct {
	Offset     int64
	Time       time.Time // as the topic has it: when it was made, or when the broker appended it
	Key, Value []byte
	Headers    []kmsg.Header
}

// HeaderValue returns a copy of the value of a header; "" if there is none.
func (r *Record) HeaderValue(name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// batchReader reads the records of batches. It reuses its memory: batches of few records, as a trickle of changes has them,
// are many.
type batchReader struct {
	decompressed []byte
	buffer       bytes.Buffer
	parsed       kmsg.Record
	record       Record
}

// readable is the only version of batches that brokers since Kafka 0.11 write (KIP-98).
const readable = 2

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// eachRecord is [Batches.EachRecord] for one batch.
func (r *batchReader) eachRecord(b batch, from int64, each func(*Record) error) error {
	records, err := r.open(b)
	if err != nil {
		return fmt.Errorf("an unreadable batch: %w", err)
	}
	for range binary.BigEndian.Uint32(b[countAt:]) {
		length, size := binary.Varint(records)
		if size <= 0 || length < 0 || length > int64(len(records)-size) {
			return fmt.Errorf("an unreadable batch: %w", errTruncated)
		}
		end := size + int(length)
		if err := r.parsed.UnsafeReadFrom(records[:end]); err != nil {
			return fmt.Errorf("an unreadable record: %w", err)
		}
		records = records[end:]
		r.record = Record{
			b.baseOffset() + int64(r.parsed.OffsetDelta), b.timeOf(r.parsed.TimestampDelta64), r.parsed.Key, r.parsed.Value, r.parsed.Headers,
		}
		if r.record.Offset < from {
			continue
		}
		if err := each(&r.record); err != nil {
			return err
		}
	}
	return nil
}

var errTruncated = errors.New("a record is truncated")

// open verifies a batch and returns its records, decompressed.
func (r *batchReader) open(b batch) ([]byte, error) {
	if b[magicAt] != readable {
		return nil, fmt.Errorf("it has version %d, want %d", b[magicAt], readable)
	}
	if sum := binary.BigEndian.Uint32(b[crcAt:]); sum != crc32.Checksum(b[attributesAt:], castagnoli) {
		return nil, errors.New("its checksum is wrong")
	}
	return r.decompress(b[batchHeader:], compress.Compression(b.attributes()&codecMask))
}

func (r *batchReader) decompress(records []byte, by compress.Compression) (_ []byte, err error) {
	if by == compress.None {
		return records, nil
	}
	if by == compress.Zstd {
		r.decompressed, err = zstdDecoder().DecodeAll(records, r.decompressed[:0])
		return r.decompressed, err
	}
	if by.Codec() == nil {
		return nil, fmt.Errorf("its codec is %d, which is unknown", by)
	}
	reader := by.Codec().NewReader(bytes.NewReader(records))
	defer func() { _ = reader.Close() }() // of memory
	r.buffer.Reset()
	n, err := r.buffer.ReadFrom(io.LimitReader(reader, maxDecompressed+1))
	if err == nil && n > maxDecompressed {
		err = zstd.ErrDecoderSizeExceeded // as that of zstd
	}
	return r.buffer.Bytes(), err
}

// maxDecompressed bounds the records of one batch, in bytes. The broker bounds what it has compressed, 1 MiB by default, and
// another process may have written it.
const maxDecompressed = 256 << 20

// zstdDecoder is the decoder of all batches: it is faster with whole frames than with a stream.
var zstdDecoder = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(maxDecompressed))
	if err != nil {
		panic(err) // not reached: the options are valid
	}
	return d
})

// Batches is a sequence of record batches, as in a fetch response. The last one may be truncated.
type Batches []byte

// Byte positions in a record batch (kafka.apache.org/documentation/#recordbatch).
const (
	batchLengthAt   = 8
	batchHead       = 12 // what the length does not count
	magicAt         = 16
	crcAt           = 17
	attributesAt    = 21
	lastDeltaAt     = 23
	baseTimeAt      = 27
	maxTimeAt       = 35
	producerAt      = 43
	producerEpochAt = 51
	sequenceAt      = 53
	countAt         = 57
	batchHeader     = 61
)

// The attributes of a batch.
const (
	codecMask   = 7
	appendedBit = 1 << 3 // the time is that of the broker, and maxTime is that of all records
	controlBit  = 1 << 5
)

// batch is one complete batch.
type batch []byte

func (b batch) baseOffset() int64 { return int64(binary.BigEndian.Uint64(b)) }

// endOffset is the offset behind the last record, including records that compaction has removed.
func (b batch) endOffset() int64 {
	return b.baseOffset() + int64(binary.BigEndian.Uint32(b[lastDeltaAt:])) + 1
}

func (b batch) attributes() uint16 { return binary.BigEndian.Uint16(b[attributesAt:]) }

func (b batch) isControl() bool { return b.attributes()&controlBit != 0 }

func (b batch) producer() int64 { return int64(binary.BigEndian.Uint64(b[producerAt:])) }

// timeOf returns the time of a record, from its milliseconds after the first record's; zero if it has none.
func (b batch) timeOf(delta int64) time.Time {
	millis := int64(binary.BigEndian.Uint64(b[baseTimeAt:])) + delta
	if b.attributes()&appendedBit != 0 {
		millis = int64(binary.BigEndian.Uint64(b[maxTimeAt:]))
	}
	if millis < 0 {
		return time.Time{}
	}
	return time.UnixMilli(millis)
}

// splitFirst returns the first batch, nil if it is truncated, and the others.
func (all Batches) splitFirst() (batch, Batches) {
	if len(all) < batchHeader {
		return nil, nil
	}
	size := batchHead + int(binary.BigEndian.Uint32(all[batchLengthAt:]))
	if size < batchHeader || size > len(all) {
		return nil, nil
	}
	return batch(all[:size]), all[size:]
}

// BatchID identifies a batch. Two batches at one offset of a recreated partition differ in their checksums almost certainly.
type BatchID struct {
	Base int64 // offset of the first record
	CRC  uint32
}

// find returns the batch that contains an offset; nil if there is none.
func (all Batches) find(offset int64) batch {
	b, rest := all.splitFirst()
	for b != nil && (offset < b.baseOffset() || b.endOffset() <= offset) {
		b, rest = rest.splitFirst()
	}
	return b
}

// BatchAt returns the batch that contains an offset; the zero value if there is none.
func (all Batches) BatchAt(offset int64) (id BatchID) {
	if b := all.find(offset); b != nil {
		id = BatchID{b.baseOffset(), binary.BigEndian.Uint32(b[crcAt:])}
	}
	return id
}

// Origin is the writer of a batch, and where it ends. A broker keeps it for as long as it has the batch, also if it
// compresses it again or compaction removes its records.
type Origin struct {
	Producer int64
	Epoch    int16 // of the producer
	Sequence int32 // of the first record
	End      int64 // the offset behind the last record
}

// OriginAt returns the origin of the batch that contains an offset; false if there is none.
func (all Batches) OriginAt(offset int64) (o Origin, found bool) {
	b := all.find(offset)
	if b == nil {
		return o, false
	}
	epoch, sequence := binary.BigEndian.Uint16(b[producerEpochAt:]), binary.BigEndian.Uint32(b[sequenceAt:])
	return Origin{b.producer(), int16(epoch), int32(sequence), b.endOffset()}, true
}

// EachRecord calls each for the records from an offset on, in order, and returns the offset to continue from. Control
// records of transactions are skipped, and so are batches that compaction has emptied, and unless producers is nil, batches
// of other producer IDs: compaction keeps the ID of a batch. A record is valid until each returns.
func (all Batches) EachRecord(from int64, producers map[int64]bool, each func(*Record) error) (next int64, err error) {
	var reading batchReader
	for b, rest := all.splitFirst(); b != nil; b, rest = rest.splitFirst() {
		if !b.isControl() && (producers == nil || producers[b.producer()]) {
			if err := reading.eachRecord(b, from, each); err != nil {
				return from, err
			}
		}
		from = max(from, b.endOffset())
	}
	return from, nil
}
