package nats

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	markEvery = 10 * time.Second
	maxMarks  = 64 // some ten minutes
)

// progress remembers how far the stream was when, so that a stream that went back tells what is missing: JetStream
// acknowledges before it syncs to disk, and a power loss, or a backup that takes the stream's place, undoes
// acknowledgements. It is told by the sequences: they ascend, and one that is given out a second time was lost.
type progress struct {
	mu        sync.Mutex
	newest    uint64 // the highest sequence acknowledged
	attempted uint64 // the highest offset that may have been sent, by this process or the one before
	marks     []mark // ascending
	lost      *sinks.LostError

	// After a loss, messages up to the offset again are sent under another message ID, with the number of the loss. Some
	// newer ones may have been stored before the loss was known; recognised as copies, they would not be stored behind the
	// older ones that they have to follow. // I3
	again, losses uint64
}

const whyBack = "its server lost power before it synced its disk, or a backup was restored, or the stream was made anew"

// mark says that every message up to an offset has a sequence up to this one.
type mark struct {
	at               time.Time
	offset, sequence uint64
}

// before returns what [progress.acknowledged] compares with; call it before a message leaves.
func (p *progress) before() (newest uint64, lost error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost != nil {
		return 0, p.lost
	}
	return p.newest, nil
}

// id returns the message ID for a change that is about to be sent.
func (p *progress) id(m sinks.Message) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attempted = max(p.attempted, m.Offset)
	if m.Offset > p.again {
		return messageID(m.Change)
	}
	return fmt.Sprintf("%s/again-%d", messageID(m.Change), p.losses)
}

// acknowledged notes the sequence of a message, of so many that were on their way. It is an error when the stream had given
// out that sequence before the message left.
func (p *progress) acknowledged(stream string, before, sequence, flying uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost != nil {
		return p.lost
	}
	if sequence > before {
		p.newest = max(p.newest, sequence)
		return nil
	}
	// What was on its way with it may have taken the first of the lost sequences.
	kept := sequence - min(sequence, flying)
	for len(p.marks) > 0 && p.marks[len(p.marks)-1].sequence > kept {
		p.marks = p.marks[:len(p.marks)-1]
	}
	p.lost = &sinks.LostError{Reason: fmt.Sprintf("stream %q went back: it had acknowledged message %d and gave number %d to a later one; "+
		"%s", stream, p.newest, sequence, whyBack)}
	if len(p.marks) > 0 {
		p.lost.From = p.marks[len(p.marks)-1].offset
	}
	p.newest, p.again, p.losses = sequence, p.attempted, p.losses+1
	return p.lost
}

// Restore takes up where the process before was, and publishing again after a loss. See [sinks.Stateful].
func (s *Sink) Restore(state []byte, newest uint64, save func(context.Context) error) error {
	s.mu.Lock()
	clear(s.ahead)
	s.mu.Unlock()
	own := s.ordered.restore(newest, save)
	p := &s.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost, p.attempted = nil, max(p.attempted, newest)
	if state == nil || p.newest > 0 || own { // what this process has seen itself is newer
		return nil
	}
	rest, err := s.ordered.decode(state)
	if err == nil {
		err = p.decode(rest)
	}
	return err
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

// State returns where the stream is, in the way that is in use: in batches the epoch and our newest change; else marks, a
// new one among them from time to time. See [sinks.Stateful].
func (s *Sink) State(low uint64) []byte {
	b := s.ordered.encode([]byte{stateFormat})
	p := &s.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.lost == nil && (len(p.marks) == 0 || now.Sub(p.marks[len(p.marks)-1].at).Abs() >= markEvery) {
		p.marks = append(p.marks, mark{now, low, p.newest})
		p.marks = p.marks[max(0, len(p.marks)-maxMarks):]
	}
	for _, v := range []uint64{p.newest, p.again, p.losses} {
		b = binary.AppendUvarint(b, v)
	}
	for _, m := range p.marks {
		for _, v := range []uint64{uint64(max(m.at.Unix(), 0)), m.offset, m.sequence} {
			b = binary.AppendUvarint(b, v)
		}
	}
	return b
}

// encode appends the state of the way in batches; an empty epoch where it is not in use.
func (o *ordered) encode(b []byte) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	epoch := o.epoch
	if o.beside.Load() {
		epoch = ""
	}
	b = append(append(b, byte(len(epoch))), epoch...)
	if epoch == "" {
		return b
	}
	known := byte(0)
	if o.known {
		known = 1
	}
	return binary.AppendUvarint(binary.AppendUvarint(append(b, known), o.last), o.through)
}

// decode reads what encode wrote, and returns the rest.
func (o *ordered) decode(b []byte) (rest []byte, err error) {
	switch {
	case len(b) > 0 && b[0] == firstFormat:
		return b[1:], nil
	case len(b) < 2 || b[0] != stateFormat || len(b) < 2+int(b[1]):
		return nil, errProgress
	}
	epoch, b := string(b[2:2+b[1]]), b[2+b[1]:]
	if epoch == "" {
		return b, nil
	}
	if len(b) == 0 {
		return nil, errProgress
	}
	known, b := b[0] == 1, b[1:]
	last, n := binary.Uvarint(b)
	through, m := binary.Uvarint(b[max(n, 0):])
	if n <= 0 || m <= 0 {
		return nil, errProgress
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.epoch, o.saved, o.known, o.last, o.through = epoch, true, known, last, through
	return b[n+m:], nil
}

const (
	firstFormat = 1 // without what is known of batches
	stateFormat = 2
)

var errProgress = errors.New("not a state of the NATS sink")

// decode reads marks. mu is held.
func (p *progress) decode(b []byte) error {
	var values []uint64
	for len(b) > 0 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return errProgress
		}
		values, b = append(values, v), b[n:]
	}
	const head, each = 3, 3
	if len(values) < head || (len(values)-head)%each != 0 || len(values) > head+each*maxMarks {
		return errProgress
	}
	p.newest, p.again, p.losses, p.marks = values[0], values[1], values[2], nil
	for m := range slices.Chunk(values[head:], each) {
		p.marks = append(p.marks, mark{time.Unix(int64(m[0]), 0), m[1], m[2]})
	}
	return nil
}
