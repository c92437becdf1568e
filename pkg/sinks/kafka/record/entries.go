package record

import (
	"encoding/binary"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

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
	b = b[LengthPrefix:]
	be.PutUint64(b[AtProducerID:], uint64(s.Producer))
	be.PutUint16(b[AtEpoch:], uint16(s.Epoch))
	be.PutUint32(b[AtSequence:], uint32(s.Sequence))
}
