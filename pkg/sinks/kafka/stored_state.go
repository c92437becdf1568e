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

// encode returns all states in the stored format.
func (m *producerStates) encode(low uint64) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if low >= m.newestKnown { // no lane will need the states of the previous process
		m.previous = nil
	}
	return encodeStates(m.current, m.previous)
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

// Formats of the stored state, see docs/journal-format.md: states of lanes, optionally followed by pending repairs.
const (
	stateFormat            = 1
	stateFormatWithRepairs = 2
)

// encodeStates encodes the states of lanes.
func encodeStates(current, previous map[sinks.Lane]producerState) []byte {
	b := binary.AppendUvarint([]byte{stateFormat}, uint64(len(current)+len(previous)))
	for _, states := range []map[sinks.Lane]producerState{current, previous} {
		for _, lane := range slices.Sorted(maps.Keys(states)) {
			m := states[lane]
			b = append(binary.AppendUvarint(b, uint64(len(lane))), lane...)
			b = binary.AppendUvarint(b, uint64(m.producer))
			b = binary.AppendUvarint(b, uint64(m.epoch))
			b = binary.AppendUvarint(b, m.settledUpTo)
			b = binary.AppendUvarint(b, uint64(m.nextSequence))
		}
	}
	return b
}

// appendState appends the pending repairs to encoded states. Without any it changes nothing.
func (r *repairer) appendState(states []byte) []byte {
	if r == nil {
		return states
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending) == 0 {
		return states
	}
	states[0] = stateFormatWithRepairs
	b := binary.AppendUvarint(states, uint64(len(r.pending)))
	for _, scope := range slices.Sorted(maps.Keys(r.pending)) {
		b = r.pending[scope].appendEncoded(b)
	}
	return b
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

// decodeState decodes what encodeStates and appendState have written.
func decodeState(b []byte) (map[sinks.Lane]producerState, []*repair, error) {
	format, r := b[0], &stateReader{b: b[1:]}
	states, err := decodeStates(r)
	if err != nil || format != stateFormat && format != stateFormatWithRepairs {
		return nil, nil, errMalformedState
	}
	var repairs []*repair
	if format == stateFormatWithRepairs {
		repairs = decodeRepairs(r)
	}
	if !r.isComplete() {
		return nil, nil, errMalformedState
	}
	return states, repairs, nil
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

// readBytes reads a length and as many bytes, which are not copied.
func (r *stateReader) readBytes() []byte {
	n := r.readUvarint()
	if n > uint64(len(r.b)) {
		r.b, r.failed = nil, true
		return nil
	}
	head := r.b[:n]
	r.b = r.b[n:]
	return head
}
