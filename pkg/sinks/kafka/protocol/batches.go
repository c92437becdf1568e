package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/segmentio/kafka-go/protocol"
)

// Batches is a sequence of record batches, as in a fetch response. The last one may be truncated.
type Batches []byte

// Byte positions in a record batch (kafka.apache.org/documentation/#recordbatch).
const (
	batchLengthAt = 8
	batchHead     = 12 // what the length does not count
	crcAt         = 17
	attributesAt  = 21
	lastDeltaAt   = 23
	producerAt    = 43
	batchHeader   = 61
)

// batch is one complete batch.
type batch []byte

func (b batch) baseOffset() int64 { return int64(binary.BigEndian.Uint64(b)) }

// endOffset is the offset behind the last record, including records that compaction has removed.
func (b batch) endOffset() int64 {
	return b.baseOffset() + int64(binary.BigEndian.Uint32(b[lastDeltaAt:])) + 1
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

// BatchAt returns the batch that contains an offset; the zero value if there is none.
func (all Batches) BatchAt(offset int64) BatchID {
	for b, rest := all.splitFirst(); b != nil; b, rest = rest.splitFirst() {
		if b.baseOffset() <= offset && offset < b.endOffset() {
			return BatchID{b.baseOffset(), binary.BigEndian.Uint32(b[crcAt:])}
		}
	}
	return BatchID{}
}

// EachRecord calls each for the records from an offset on, in order, and returns the offset to continue from. Control
// records of transactions are skipped, and so are batches that compaction has emptied, and unless producers is nil, batches
// of other producer IDs: compaction keeps the ID of a batch. Key and headers of a record are valid until each returns.
func (all Batches) EachRecord(from int64, producers map[int64]bool, each func(*protocol.Record) error) (next int64, err error) {
	for b, rest := all.splitFirst(); b != nil; b, rest = rest.splitFirst() {
		control := protocol.Attributes(binary.BigEndian.Uint16(b[attributesAt:])).Control()
		if !control && (producers == nil || producers[int64(binary.BigEndian.Uint64(b[producerAt:]))]) {
			if err := b.eachRecord(from, each); err != nil {
				return from, err
			}
		}
		from = max(from, b.endOffset())
	}
	return from, nil
}

// eachRecord is EachRecord for one batch.
func (b batch) eachRecord(from int64, each func(*protocol.Record) error) error {
	var set protocol.RecordSet
	length := binary.BigEndian.AppendUint32(nil, uint32(len(b)))
	if _, err := set.ReadFrom(io.MultiReader(bytes.NewReader(length), bytes.NewReader(b))); err != nil {
		return fmt.Errorf("an unreadable batch: %w", err)
	}
	if set.Records == nil {
		return nil
	}
	for {
		r, err := set.Records.ReadRecord()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && r.Offset >= from {
			err = each(r)
		}
		if err != nil {
			return err
		}
	}
}

// HeaderValue returns the value of a header; "" if there is none.
func HeaderValue(r *protocol.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// ReadBytes reads a key or a value; nil if it is null.
func ReadBytes(b protocol.Bytes) ([]byte, error) {
	if b == nil {
		return nil, nil
	}
	all := make([]byte, b.Len())
	_, err := io.ReadFull(b, all)
	return all, err
}
