package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
)

// formerLayouts is how many partitions topics had for the previous process, while messages of that may be published again:
// its records are in these. It is safe for concurrent use.
type formerLayouts struct {
	mu         sync.Mutex
	newest     uint64 // messages above this offset were never given to the previous process
	settled    uint64 // everything up to this offset is settled, as far as known
	partitions map[string]int
}

// restore sets the layouts that the newest acknowledgements of the previous process show.
func (m *formerLayouts) restore(acks map[cluster.Partition]*partitionAcks, newest uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.newest, m.partitions = newest, map[string]int{}
	last := map[string]uint64{}
	for partition, p := range acks {
		_, lane := p.place(partition)
		known := m.partitions[partition.Topic]
		if upTo := p.restored.upTo; lane.of.Partitions > 0 && (known == 0 || upTo > last[partition.Topic]) {
			m.partitions[partition.Topic], last[partition.Topic] = lane.of.Partitions, upTo
		}
	}
}

// partitionsOf returns how many partitions a topic had, while that matters; else 0.
func (m *formerLayouts) partitionsOf(topic string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.settled >= m.newest {
		m.partitions = nil
	}
	return m.partitions[topic]
}

// recordSettled records that no message up to low will be published again.
func (m *formerLayouts) recordSettled(low uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settled = low
}

// stateFormat is the format of the stored state, see docs/journal-format.md: the transactional ID with the producer IDs that
// it had, and what was acknowledged in each partition. The formats before it had sequence numbers.
const stateFormat = 4

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// appendState appends the transactional ID, and the producer IDs that it had. f may be nil.
func (f *fence) appendState(b []byte) []byte {
	if f == nil {
		return append(b, 0, 0)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	b = binary.AppendUvarint(appendText(b, f.transactional.ID), uint64(len(f.producers)))
	for id := range f.producers {
		b = binary.AppendVarint(b, id)
	}
	return b
}

// appendState appends what was acknowledged in each partition. Signed numbers are zigzag varints.
func (a *ackLog) appendState(b []byte) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	b = binary.AppendUvarint(b, uint64(len(a.partitions)))
	for partition, p := range a.partitions {
		b = append(appendText(b, partition.Topic), p.topic[:]...)
		for _, n := range []int64{int64(partition.Index), int64(p.leaderEpoch), int64(p.unplaced), p.begin.end, int64(p.begin.partitions),
			int64(len(p.marks))} {
			b = binary.AppendVarint(b, n)
		}
		for _, m := range p.marks {
			for _, n := range []int64{int64(m.first), int64(m.last), int64(m.partitions),
				m.origin.Producer, int64(m.origin.Epoch), int64(m.origin.Sequence), m.origin.End} {
				b = binary.AppendVarint(b, n)
			}
		}
	}
	return b
}

// decodeAcks decodes what encode has written. All of it is to be compared.
func decodeAcks(r *stateReader) map[cluster.Partition]*partitionAcks {
	all := map[cluster.Partition]*partitionAcks{}
	for n := r.readUvarint(); n > 0 && !r.failed; n-- {
		partition, p := cluster.Partition{Topic: string(r.readBytes())}, &partitionAcks{doubt: ackUncompared}
		copy(p.topic[:], r.readFixed(len(p.topic)))
		partition.Index, p.leaderEpoch, p.unplaced = int32(r.readVarint()), int32(r.readVarint()), uint64(r.readVarint())
		p.begin = ackBegin{r.readVarint(), int(r.readVarint())}
		for marks := r.readVarint(); marks > 0 && !r.failed; marks-- {
			m := ackMark{first: uint64(r.readVarint()), last: uint64(r.readVarint()), partitions: int(r.readVarint())}
			m.origin.Producer, m.origin.Epoch = r.readVarint(), int16(r.readVarint())
			m.origin.Sequence, m.origin.End = int32(r.readVarint()), r.readVarint()
			p.marks = append(p.marks, m)
		}
		all[partition] = p
	}
	return all
}

var errMalformedState = errors.New("the stored state of a Kafka sink is malformed")

// storedParts is what a stored state has.
type storedParts struct {
	transactionalID string
	producers       []int64 // that the transactional ID had
	acks            map[cluster.Partition]*partitionAcks
}

// decodeState decodes what [Sink.State] has returned.
func decodeState(b []byte) (parts storedParts, err error) {
	if b[0] != stateFormat {
		return parts, fmt.Errorf("%w, or of another version", errMalformedState)
	}
	r := &stateReader{b: b[1:]}
	parts.transactionalID = string(r.readBytes())
	for n := r.readUvarint(); n > 0 && !r.failed; n-- {
		parts.producers = append(parts.producers, r.readVarint())
	}
	if parts.acks = decodeAcks(r); !r.isComplete() {
		return parts, errMalformedState
	}
	return parts, nil
}

// stateReader reads from the front of b. After the first failure it returns zeros only.
type stateReader struct {
	b      []byte
	failed bool
}

func (r *stateReader) isComplete() bool { return !r.failed && len(r.b) == 0 }

func (r *stateReader) readUvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.b, r.failed = nil, true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *stateReader) readVarint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.b, r.failed = nil, true
		return 0
	}
	r.b = r.b[n:]
	return v
}

// readFixed reads so many bytes, which are not copied.
func (r *stateReader) readFixed(n int) []byte {
	if n > len(r.b) {
		r.b, r.failed = nil, true
		return nil
	}
	head := r.b[:n]
	r.b = r.b[n:]
	return head
}

// readBytes reads a length and as many bytes, which are not copied.
func (r *stateReader) readBytes() []byte {
	return r.readFixed(int(min(r.readUvarint(), math.MaxInt32)))
}
