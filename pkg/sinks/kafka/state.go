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

// mark is what a later process needs to know about a lane: under which numbers it writes, and where these stand. Every
// change of the lane up to through is settled; the records of the changes behind it carry the numbers from next on.
type mark struct {
	producer int64
	epoch    int16
	through  uint64
	next     int32
}

// memory is what outlives the process: the marks of all lanes. It is safe for concurrent use.
type memory struct {
	mu        sync.Mutex
	marks     map[sinks.Lane]mark // of lanes that this process has published to
	inherited map[sinks.Lane]mark // of the process before, for lanes that this one has not published to
	newest    uint64              // messages above it were never given to the process before
	save      func(context.Context) error
}

// Restore is [sinks.Stateful.Restore].
func (s *Sink) Restore(state []byte, newest uint64, save func(ctx context.Context) error) error {
	m := &s.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	m.newest, m.save = newest, save
	if len(state) == 0 {
		return nil
	}
	var err error
	m.inherited, err = decodeMarks(state)
	return err
}

// State is [sinks.Stateful.State].
func (s *Sink) State(low uint64) []byte {
	m := &s.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if low >= m.newest { // nothing of the process before is published any more, so nobody will ask
		m.inherited = nil
	}
	return encodeMarks(m.marks, m.inherited)
}

// set notes where the numbers of a lane stand.
func (m *memory) set(lane sinks.Lane, to mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.save == nil { // nobody stores it
		return
	}
	if m.marks == nil {
		m.marks = map[sinks.Lane]mark{}
	}
	m.marks[lane] = to
	delete(m.inherited, lane)
}

// forget drops the marks of lanes through which nothing is on its way.
func (m *memory) forget(lanes []sinks.Lane) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range lanes {
		delete(m.marks, l)
	}
}

// old returns the mark of the process before, if this one has not replaced it.
func (m *memory) old(lane sinks.Lane) (mark, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, ok := m.inherited[lane]
	return old, ok
}

// store makes all marks durable.
func (m *memory) store(ctx context.Context) error {
	m.mu.Lock()
	save := m.save
	m.mu.Unlock()
	if save == nil {
		return nil
	}
	return save(ctx)
}

const stateFormat = 1

// encodeMarks writes the marks of both; docs/journal-format.md says how.
func encodeMarks(own, inherited map[sinks.Lane]mark) []byte {
	b := binary.AppendUvarint([]byte{stateFormat}, uint64(len(own)+len(inherited)))
	for _, marks := range []map[sinks.Lane]mark{own, inherited} {
		for _, lane := range slices.Sorted(maps.Keys(marks)) {
			m := marks[lane]
			b = append(binary.AppendUvarint(b, uint64(len(lane))), lane...)
			b = binary.AppendUvarint(b, uint64(m.producer))
			b = binary.AppendUvarint(b, uint64(m.epoch))
			b = binary.AppendUvarint(b, m.through)
			b = binary.AppendUvarint(b, uint64(m.next))
		}
	}
	return b
}

var errState = errors.New("the stored state of a Kafka sink is malformed")

func decodeMarks(b []byte) (map[sinks.Lane]mark, error) {
	if b[0] != stateFormat {
		return nil, errState
	}
	r := reader{b: b[1:]}
	count := r.uvarint()
	marks := map[sinks.Lane]mark{}
	for i := uint64(0); i < count && !r.failed; i++ {
		lane := sinks.Lane(r.bytes(r.uvarint()))
		producer, epoch, through, next := r.uvarint(), r.uvarint(), r.uvarint(), r.uvarint()
		if producer > math.MaxInt64 || epoch > math.MaxInt16 || next > math.MaxInt32 {
			return nil, errState
		}
		marks[lane] = mark{int64(producer), int16(epoch), through, int32(next)}
	}
	if r.failed || len(r.b) > 0 {
		return nil, errState
	}
	return marks, nil
}
