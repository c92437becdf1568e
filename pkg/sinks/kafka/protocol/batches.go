package protocol

import (
	"encoding/binary"
	"time"
)

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

// BatchAt returns the batch that contains an offset; the zero value if there is none.
func (all Batches) BatchAt(offset int64) BatchID {
	for b, rest := all.splitFirst(); b != nil; b, rest = rest.splitFirst() {
		if b.baseOffset() <= offset && offset < b.endOffset() {
			return BatchID{b.baseOffset(), binary.BigEndian.Uint32(b[crcAt:])}
		}
	}
	return BatchID{}
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
func (all Batches) OriginAt(offset int64) (Origin, bool) {
	for b, rest := all.splitFirst(); b != nil; b, rest = rest.splitFirst() {
		if b.baseOffset() <= offset && offset < b.endOffset() {
			epoch, sequence := binary.BigEndian.Uint16(b[producerEpochAt:]), binary.BigEndian.Uint32(b[sequenceAt:])
			return Origin{b.producer(), int16(epoch), int32(sequence), b.endOffset()}, true
		}
	}
	return Origin{}, false
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
