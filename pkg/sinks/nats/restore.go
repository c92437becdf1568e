package nats

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"time"
)

// What is stored with the cursors, see [sinks.Stateful]: a byte for the format, the length of the epoch, the epoch, and
// numbers (uvarint). With an epoch, which is there while changes go in batches: whether the stream's end is known, the end,
// and our newest change there. Then those of progress: newest, again, losses, and three for each mark.
const (
	stateFormatIDsOnly = 1 // without what is known of batches
	stateFormat        = 2

	batchValues, progressValues, checkpointValues = 3, 3, 3 // so many numbers
)

var errInvalidState = errors.New("not a state of the NATS sink")

// RestoreState takes up where the process before was, and publishing again after a loss. See [sinks.Stateful].
func (s *Sink) RestoreState(state []byte, newest uint64, save func(context.Context) error) error {
	s.mu.Lock()
	clear(s.ackedAhead)
	clear(s.snapshotStarts) // their sequences mean nothing in a stream that was made anew
	s.mu.Unlock()
	own := s.streamEnd.applyRestore(newest, save)
	p := &s.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = nil
	if state == nil || p.newest > 0 || own { // what this process has seen itself is newer
		return nil
	}
	epoch, values, err := decodeState(state)
	if err != nil {
		return err
	}
	if epoch == "" {
		p.attemptedThrough = newest
	} else {
		s.streamEnd.loadState(epoch, values)
		values = values[batchValues:]
	}
	p.loadState(values)
	return nil
}

// applyRestore says whether this process has published already: it goes on from what it knows.
func (o *streamEnd) applyRestore(newest uint64, save func(context.Context) error) (own bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost, o.saveState = nil, save
	if own = o.endKnown; !own {
		o.newestOffset = newest
	}
	return own
}

// loadState takes the numbers that state returned.
func (o *streamEnd) loadState(epoch string, values []uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.epoch, o.epochSaved, o.endKnown, o.lastSequence, o.storedThrough = epoch, true, values[0] == 1, values[1], values[2]
}

// loadState takes the numbers that State returned. mu is held.
func (p *idProgress) loadState(values []uint64) {
	p.newest, p.resendThrough, p.lossCount, p.checkpoints = values[0], values[1], values[2], nil
	for m := range slices.Chunk(values[progressValues:], checkpointValues) {
		p.checkpoints = append(p.checkpoints, sequenceCheckpoint{time.Unix(int64(m[0]), 0), m[1], m[2]})
	}
}

// State returns where the stream is, in the way that is in use: in batches the epoch and our newest change; else marks, a
// new one among them from time to time. See [sinks.Stateful].
func (s *Sink) State(low uint64) []byte {
	epoch, values := s.streamEnd.stateValues()
	p := &s.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.lost == nil && (len(p.checkpoints) == 0 || now.Sub(p.checkpoints[len(p.checkpoints)-1].takenAt).Abs() >= checkpointInterval) {
		p.checkpoints = append(p.checkpoints, sequenceCheckpoint{now, low, p.newest})
		p.checkpoints = p.checkpoints[max(0, len(p.checkpoints)-maxCheckpoints):]
	}
	values = append(values, p.newest, p.resendThrough, p.lossCount)
	for _, m := range p.checkpoints {
		values = append(values, uint64(max(m.takenAt.Unix(), 0)), m.offset, m.sequence)
	}
	b := append([]byte{stateFormat, byte(len(epoch))}, epoch...)
	for _, v := range values {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

// stateValues is what is stored of the way in batches; no epoch where it is not in use.
func (o *streamEnd) stateValues() (epoch string, values []uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.epoch == "" || o.wroteByID.Load() {
		return "", nil
	}
	known := uint64(0)
	if o.endKnown {
		known = 1
	}
	return o.epoch, []uint64{known, o.lastSequence, o.storedThrough}
}

// decodeState reads what State wrote, and sees to it that there are as many numbers as there have to be.
func decodeState(b []byte) (epoch string, values []uint64, err error) {
	least := progressValues
	switch {
	case len(b) > 0 && b[0] == stateFormatIDsOnly:
		b = b[1:]
	case len(b) < 2 || b[0] != stateFormat || len(b) < 2+int(b[1]):
		return "", nil, errInvalidState
	default:
		end := 2 + int(b[1])
		epoch, b = string(b[2:end]), b[end:]
	}
	if epoch != "" {
		least += batchValues
	}
	for len(b) > 0 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return "", nil, errInvalidState
		}
		values, b = append(values, v), b[n:]
	}
	if of := len(values) - least; of < 0 || of%checkpointValues != 0 || of > maxCheckpoints*checkpointValues {
		return "", nil, errInvalidState
	}
	return epoch, values, nil
}
