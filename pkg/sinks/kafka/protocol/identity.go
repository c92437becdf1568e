package protocol

import "encoding/binary"

// crcAt is the position of the checksum in a record batch.
const crcAt = 17

// BatchID tells batches apart: two at one offset of two partitions of one name hardly have the same checksum.
type BatchID struct {
	Base int64 // offset of the first record
	CRC  uint32
}

// BatchAt returns the identity of the batch that has an offset; ok is false where there is none.
func (f Fetched) BatchAt(offset int64) (id BatchID, ok bool) {
	be := binary.BigEndian
	for b := f.batches; len(b) >= batchHeader; {
		size := batchHead + int(be.Uint32(b[batchLengthAt:]))
		base := int64(be.Uint64(b))
		if base <= offset && offset <= base+int64(be.Uint32(b[lastDeltaAt:])) {
			return BatchID{base, be.Uint32(b[crcAt:])}, true
		}
		if size < batchHeader || size > len(b) {
			break
		}
		b = b[size:]
	}
	return BatchID{}, false
}
