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
	firstFormat = 1 // without what is known of batches
	stateFormat = 2

	ofBatches, ofProgress, ofMark = 3, 3, 3 // so many numbers
)

var errState = errors.New("not a state of the NATS sink")

// Restore takes up where the process before was, and publishing again after a loss. See [sinks.Stateful].
func (s *Sink) Restore(state []byte, newest uint64, save func(context.Context) error) error {
	s.mu.Lock()
	clear(s.ahead)
	clear(s.snapshots) // their sequences mean nothing in a stream that was made anew
	s.mu.Unlock()
	own := s.ordered.restore(newest, save)
	p := &s.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = nil
	if state == nil || p.newest > 0 || own { // what this process has seen itself is newer
		return nil
	}
	epoch, values, err := readState(state)
	if err != nil {
		return err
	}
	if epoch == "" {
		p.attempted = newest
	} else {
		s.ordered.resume(epoch, values)
		values = values[ofBatches:]
	}
	p.resume(values)
	return nil
}

// restore says whether this process has published already: it goes on from what it knows.
func (o *ordered) restore(newest uint64, save func(context.Context) error) (own bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost, o.save = nil, save
	if own = o.known; !own {
		o.newest = newest
	}
	return own
}

// resume takes the numbers that state returned.
func (o *ordered) resume(epoch string, values []uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.epoch, o.saved, o.known, o.last, o.through = epoch, true, values[0] == 1, values[1], values[2]
}

// resume takes the numbers that State returned. mu is held.
func (p *progress) resume(values []uint64) {
	p.newest, p.again, p.losses, p.marks = values[0], values[1], values[2], nil
	for m := range slices.Chunk(values[ofProgress:], ofMark) {
		p.marks = append(p.marks, mark{time.Unix(int64(m[0]), 0), m[1], m[2]})
	}
}

// State returns where the stream is, in the way that is in use: in batches the epoch and our newest change; else marks, a
// new one among them from time to time. See [sinks.Stateful].
func (s *Sink) State(low uint64) []byte {
	epoch, values := s.ordered.state()
	p := &s.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.lost == nil && (len(p.marks) == 0 || now.Sub(p.marks[len(p.marks)-1].at).Abs() >= markEvery) {
		p.marks = append(p.marks, mark{now, low, p.newest})
		p.marks = p.marks[max(0, len(p.marks)-maxMarks):]
	}
	values = append(values, p.newest, p.again, p.losses)
	for _, m := range p.marks {
		values = append(values, uint64(max(m.at.Unix(), 0)), m.offset, m.sequence)
	}
	b := append([]byte{stateFormat, byte(len(epoch))}, epoch...)
	for _, v := range values {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

// state is what is stored of the way in batches; no epoch where it is not in use.
func (o *ordered) state() (epoch string, values []uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.epoch == "" || o.beside.Load() {
		return "", nil
	}
	known := uint64(0)
	if o.known {
		known = 1
	}
	return o.epoch, []uint64{known, o.last, o.through}
}

// readState reads what State wrote, and sees to it that there are as many numbers as there have to be.
func readState(b []byte) (epoch string, values []uint64, err error) {
	least := ofProgress
	switch {
	case len(b) > 0 && b[0] == firstFormat:
		b = b[1:]
	case len(b) < 2 || b[0] != stateFormat || len(b) < 2+int(b[1]):
		return "", nil, errState
	default:
		end := 2 + int(b[1])
		epoch, b = string(b[2:end]), b[end:]
	}
	if epoch != "" {
		least += ofBatches
	}
	for len(b) > 0 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return "", nil, errState
		}
		values, b = append(values, v), b[n:]
	}
	if of := len(values) - least; of < 0 || of%ofMark != 0 || of > maxMarks*ofMark {
		return "", nil, errState
	}
	return epoch, values, nil
}
