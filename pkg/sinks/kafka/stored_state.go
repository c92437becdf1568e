package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
)

// producerState is what a later process has to know of a lane. Every change of the lane up to settledUpTo is settled; the
// records of the changes behind it have the sequence numbers from nextSequence on.
type producerState struct {
	producer     int64
	epoch        int16
	settledUpTo  uint64
	nextSequence int32
}

// producerStates holds the states of all lanes, which the journal stores with the cursors. It is safe for concurrent use.
type producerStates struct {
	mu          sync.Mutex
	current     map[sinks.Lane]producerState // of lanes that this process has published to
	previous    map[sinks.Lane]producerState // of the previous process, for lanes that this one has not published to
	newestKnown uint64                       // messages above this offset were never given to the previous process
	settled     uint64                       // everything up to this offset is settled, as far as known
	layouts     map[string]formerLayout      // of the previous process, by topic
	save        func(context.Context) error  // nil: states are not stored
}

// formerLayout is the number of partitions that a topic had when a process published to it.
type formerLayout struct {
	partitions  int
	settledUpTo uint64 // of its newest lane
}

// restoreStates sets the states of the previous process.
func (m *producerStates) restoreStates(previous map[sinks.Lane]producerState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.previous, m.layouts = previous, map[string]formerLayout{}
	for lane, of := range previous {
		topic, _, count, err := parseLane(lane)
		if known, ok := m.layouts[topic]; err == nil && (!ok || of.settledUpTo > known.settledUpTo) {
			m.layouts[topic] = formerLayout{count, of.settledUpTo}
		}
	}
}

// formerPartitions returns how many partitions a topic had for the previous process, while messages of that may be published
// again; else 0. The records of these are known in the lanes that they had.
func (m *producerStates) formerPartitions(topic string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.settled >= m.newestKnown {
		m.layouts = nil
	}
	return m.layouts[topic].partitions
}

// setJournal sets the newest offset that the previous process knew, and how states are stored.
func (m *producerStates) setJournal(newestKnown uint64, save func(context.Context) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.newestKnown, m.save = newestKnown, save
}

// recordSettled records that no message up to low will be published again, and reports whether that are all that the
// previous process knew.
func (m *producerStates) recordSettled(low uint64) (predecessorDone bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settled = low
	return low >= m.newestKnown
}

// encode returns the states of lanes in the stored format, except those of lanes that start over.
func (m *producerStates) encode(low uint64, startsOver func(sinks.Lane) bool) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if low >= m.newestKnown { // no lane will need the states of the previous process
		m.previous = nil
	}
	all := maps.Clone(m.previous)
	if all == nil {
		all = map[sinks.Lane]producerState{}
	}
	maps.Copy(all, m.current)
	maps.DeleteFunc(all, func(lane sinks.Lane, _ producerState) bool { return startsOver(lane) })
	return encodeStates(all)
}

// removeLost drops the states of partitions that went back: nothing is known of what they hold.
func (m *producerStates) removeLost(cuts map[cluster.Partition]ackCut) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, states := range []map[sinks.Lane]producerState{m.current, m.previous} {
		maps.DeleteFunc(states, func(lane sinks.Lane, _ producerState) bool {
			l, _ := parseRecordedLane(lane)
			_, lost := cuts[l.Partition]
			return lost
		})
	}
}

// setState records the state of a lane.
func (m *producerStates) setState(lane sinks.Lane, to producerState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.save == nil {
		return
	}
	if m.current == nil {
		m.current = map[sinks.Lane]producerState{}
	}
	m.current[lane] = to
	delete(m.previous, lane)
}

// removeStates drops the states of lanes through which nothing is under way.
func (m *producerStates) removeStates(lanes []sinks.Lane) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range lanes {
		delete(m.current, l)
	}
}

// previousState returns the state of the previous process, unless this one has replaced it.
func (m *producerStates) previousState(lane sinks.Lane) (producerState, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, ok := m.previous[lane]
	return old, ok
}

// saveStates makes all states durable.
func (m *producerStates) saveStates(ctx context.Context) error {
	m.mu.Lock()
	save := m.save
	m.mu.Unlock()
	if save == nil {
		return nil
	}
	return save(ctx)
}

// stateFormat is the format of the stored state, see docs/journal-format.md: states of lanes, pending repairs, and what was
// acknowledged in each partition. The formats before it lack the last part, or the last two.
const (
	stateFormat            = 3
	stateFormatWithRepairs = 2
	stateFormatOfLanes     = 1
)

// encodeStates encodes the states of lanes.
func encodeStates(states map[sinks.Lane]producerState) []byte {
	b := binary.AppendUvarint([]byte{stateFormat}, uint64(len(states)))
	for _, lane := range slices.Sorted(maps.Keys(states)) {
		m := states[lane]
		b = appendText(b, string(lane))
		b = binary.AppendUvarint(b, uint64(m.producer))
		b = binary.AppendUvarint(b, uint64(m.epoch))
		b = binary.AppendUvarint(b, m.settledUpTo)
		b = binary.AppendUvarint(b, uint64(m.nextSequence))
	}
	return b
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// appendState appends the pending repairs to an encoded state.
func (r *repairer) appendState(b []byte) []byte {
	if r == nil {
		return binary.AppendUvarint(b, 0)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b = binary.AppendUvarint(b, uint64(len(r.pending)))
	for _, scope := range slices.Sorted(maps.Keys(r.pending)) {
		b = r.pending[scope].appendEncoded(b)
	}
	return b
}

// encode returns what was acknowledged in each partition in the stored format. Signed numbers are zigzag varints.
func (a *ackLog) encode() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := binary.AppendUvarint(nil, uint64(len(a.partitions)))
	for partition, p := range a.partitions {
		b = append(appendText(b, partition.Topic), p.topic[:]...)
		for _, n := range []int64{int64(partition.Index), int64(p.leaderEpoch), int64(p.unplaced), int64(len(p.marks))} {
			b = binary.AppendVarint(b, n)
		}
		for _, m := range p.marks {
			for _, n := range []int64{int64(m.first), int64(m.partitions),
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
		for marks := r.readVarint(); marks > 0 && !r.failed; marks-- {
			m := ackMark{first: uint64(r.readVarint()), partitions: int(r.readVarint())}
			m.origin.Producer, m.origin.Epoch = r.readVarint(), int16(r.readVarint())
			m.origin.Sequence, m.origin.End = int32(r.readVarint()), r.readVarint()
			p.marks = append(p.marks, m)
		}
		all[partition] = p
	}
	return all
}

func (one *repair) appendEncoded(b []byte) []byte {
	c, ended := one.snapshot, uint64(0)
	if one.ended {
		ended = 1
	}
	b = binary.AppendUvarint(b, ended)
	b = binary.AppendUvarint(b, one.endOffset)
	b = binary.AppendUvarint(b, uint64(one.startedAt.UnixNano()))
	b = binary.AppendUvarint(b, uint64(c.ObservedAt.UnixNano()))
	for _, s := range []string{one.topic, c.Cluster, c.Resource.Group, c.Resource.Version, c.Resource.Resource, c.Resource.Kind, c.Namespace,
		c.Snapshot.ID, c.Snapshot.Position} {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	return b
}

var errMalformedState = errors.New("the stored state of a Kafka sink is malformed")

// storedParts is what a stored state has.
type storedParts struct {
	states  map[sinks.Lane]producerState
	repairs []*repair
	acks    map[cluster.Partition]*partitionAcks
}

// decodeState decodes what [Sink.State] has returned.
func decodeState(b []byte) (parts storedParts, err error) {
	format, r := b[0], &stateReader{b: b[1:]}
	if parts.states, err = decodeStates(r); err != nil || format < stateFormatOfLanes || format > stateFormat {
		return parts, errMalformedState
	}
	if format >= stateFormatWithRepairs {
		parts.repairs = decodeRepairs(r)
	}
	if format >= stateFormat {
		parts.acks = decodeAcks(r)
	}
	if !r.isComplete() {
		return parts, errMalformedState
	}
	return parts, nil
}

func decodeStates(r *stateReader) (map[sinks.Lane]producerState, error) {
	count := r.readUvarint()
	states := map[sinks.Lane]producerState{}
	for i := uint64(0); i < count && !r.failed; i++ {
		lane := sinks.Lane(r.readBytes())
		producer, epoch, settledUpTo, next := r.readUvarint(), r.readUvarint(), r.readUvarint(), r.readUvarint()
		if producer > math.MaxInt64 || epoch > math.MaxInt16 || next > math.MaxInt32 {
			return nil, errMalformedState
		}
		states[lane] = producerState{int64(producer), int16(epoch), settledUpTo, int32(next)}
	}
	return states, nil
}

func decodeRepairs(r *stateReader) (all []*repair) {
	for n := r.readUvarint(); n > 0 && !r.failed; n-- {
		one := &repair{ended: r.readUvarint() == 1, endOffset: r.readUvarint(), startedAt: time.Unix(0, int64(r.readUvarint())).UTC()}
		text := func() string { return string(r.readBytes()) }
		observed := time.Unix(0, int64(r.readUvarint())).UTC()
		one.topic = text()
		one.snapshot = &event.Change{
			Type: event.SnapshotEnd, ObservedAt: observed, Cluster: text(),
			Resource:  event.Resource{Group: text(), Version: text(), Resource: text(), Kind: text()},
			Namespace: text(), Snapshot: &event.SnapshotInfo{ID: text(), Position: text()},
		}
		all = append(all, one)
	}
	return all
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
