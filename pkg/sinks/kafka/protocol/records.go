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
