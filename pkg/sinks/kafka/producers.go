package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// producerState is what a later process needs to know about a lane: under which numbers it writes, and where these stand.
// Every change of the lane up to through is settled; the records of the changes behind it carry the numbers from next on.
type producerState struct {
	producer     int64
	epoch        int16
	settledUpTo  uint64
	nextSequence int32
}

// producerStates is what outlives the process: the states of all lanes. It is safe for concurrent use.
type producerStates struct {
	mu          sync.Mutex
	current     map[sinks.Lane]producerState // of lanes that this process has published to
	previous    map[sinks.Lane]producerState // of the process before, for lanes that this one has not published to
	newestKnown uint64                       // messages above it were never given to the process before
	save        func(context.Context) error
}

// RestoreState is [sinks.Stateful.RestoreState].
func (s *Sink) RestoreState(state []byte, newest uint64, save func(ctx context.Context) error) error {
	m := &s.producers
	m.mu.Lock()
	defer m.mu.Unlock()
	m.newestKnown, m.save = newest, save
	if len(state) == 0 {
		return nil
	}
	previous, snapshots, err := decodeState(state)
	if err != nil {
		return err
	}
	m.previous = previous
	s.repairer.restorePending(snapshots)
	return nil
}

// State is [sinks.Stateful.State].
func (s *Sink) State(low uint64) []byte {
	m := &s.producers
	m.mu.Lock()
	defer m.mu.Unlock()
	if low >= m.newestKnown { // nothing of the process before is published any more, so nobody will ask
		m.previous = nil
	}
	return s.repairer.appendState(encodeStates(m.current, m.previous))
}

// ObserveSettled is [sinks.Settler.ObserveSettled].
func (s *Sink) ObserveSettled(low uint64) {
	s.producers.mu.Lock()
	ours := low >= s.producers.newestKnown
	s.producers.mu.Unlock()
	if ours {
		s.repairer.startDue(low)
	}
}

// setState notes where the numbers of a lane stand.
func (m *producerStates) setState(lane sinks.Lane, to producerState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.save == nil { // nobody stores it
		return
	}
	if m.current == nil {
		m.current = map[sinks.Lane]producerState{}
	}
	m.current[lane] = to
	delete(m.previous, lane)
}

// removeStates drops the states of lanes through which nothing is on its way.
func (m *producerStates) removeStates(lanes []sinks.Lane) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range lanes {
		delete(m.current, l)
	}
}

// previousState returns the state of the process before, if this one has not replaced it.
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

// The formats of the state: states of lanes, and those and behind them the snapshots that repairs are due for.
const (
	stateFormat            = 1
	stateFormatWithRepairs = 2
)

// encodeStates writes the states of both; docs/journal-format.md says how.
func encodeStates(own, inherited map[sinks.Lane]producerState) []byte {
	b := binary.AppendUvarint([]byte{stateFormat}, uint64(len(own)+len(inherited)))
	for _, marks := range []map[sinks.Lane]producerState{own, inherited} {
		for _, lane := range slices.Sorted(maps.Keys(marks)) {
			m := marks[lane]
			b = append(binary.AppendUvarint(b, uint64(len(lane))), lane...)
			b = binary.AppendUvarint(b, uint64(m.producer))
			b = binary.AppendUvarint(b, uint64(m.epoch))
			b = binary.AppendUvarint(b, m.settledUpTo)
			b = binary.AppendUvarint(b, uint64(m.nextSequence))
		}
	}
	return b
}

var errMalformedState = errors.New("the stored state of a Kafka sink is malformed")

// decodeState reads the states of lanes, and what appendState has put behind them.
func decodeState(b []byte) (map[sinks.Lane]producerState, []*repair, error) {
	format, r := b[0], &stateReader{b: b[1:]}
	states, err := decodeStates(r)
	if err != nil || format != stateFormat && format != stateFormatWithRepairs {
		return nil, nil, errMalformedState
	}
	var snapshots []*repair
	if format == stateFormatWithRepairs {
		snapshots = decodeRepairs(r)
	}
	if !r.isComplete() {
		return nil, nil, errMalformedState
	}
	return states, snapshots, nil
}

func decodeStates(r *stateReader) (map[sinks.Lane]producerState, error) {
	count := r.readUvarint()
	marks := map[sinks.Lane]producerState{}
	for i := uint64(0); i < count && !r.failed; i++ {
		lane := sinks.Lane(r.readBytes())
		producer, epoch, through, next := r.readUvarint(), r.readUvarint(), r.readUvarint(), r.readUvarint()
		if producer > math.MaxInt64 || epoch > math.MaxInt16 || next > math.MaxInt32 {
			return nil, errMalformedState
		}
		marks[lane] = producerState{int64(producer), int16(epoch), through, int32(next)}
	}
	return marks, nil
}

// stateReader reads from the front of b. After the first failure it only returns zeros.
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
