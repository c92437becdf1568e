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
	lanes uint64 // as many messages may be on their way at once

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

// acknowledged notes the sequence of a message. It is an error when the stream had given out that sequence before the
// message left.
func (p *progress) acknowledged(stream string, before, sequence uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost != nil {
		return p.lost
	}
	if sequence > before {
		p.newest = max(p.newest, sequence)
		return nil
	}
	// What is on its way in other lanes may have taken the first of the lost sequences.
	kept := sequence - min(sequence, p.lanes)
	for len(p.marks) > 0 && p.marks[len(p.marks)-1].sequence > kept {
		p.marks = p.marks[:len(p.marks)-1]
	}
	p.lost = &sinks.LostError{Reason: fmt.Sprintf("stream %q went back: it had acknowledged message %d and gave number %d to a later one; "+
		"its server lost power before it synced its disk, or a backup was restored, or the stream was made anew", stream, p.newest, sequence)}
	if len(p.marks) > 0 {
		p.lost.From = p.marks[len(p.marks)-1].offset
	}
	p.newest, p.again, p.losses = sequence, p.attempted, p.losses+1
	return p.lost
}

// Restore takes up the marks of the process before, and publishing again after a loss. See [sinks.Stateful].
func (s *Sink) Restore(state []byte, newest uint64, _ func(context.Context) error) error {
	p := &s.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost, p.attempted = nil, max(p.attempted, newest)
	if state == nil || p.newest > 0 { // what this process has seen itself is newer
		return nil
	}
	return p.decode(state)
}

// State returns the marks, a new one among them from time to time. See [sinks.Stateful].
func (s *Sink) State(low uint64) []byte {
	p := &s.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.lost == nil && (len(p.marks) == 0 || now.Sub(p.marks[len(p.marks)-1].at).Abs() >= markEvery) {
		p.marks = append(p.marks, mark{now, low, p.newest})
		p.marks = p.marks[max(0, len(p.marks)-maxMarks):]
	}
	b := []byte{progressFormat}
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

const progressFormat = 1

var errProgress = errors.New("not a state of the NATS sink")

// decode reads a state. mu is held.
func (p *progress) decode(b []byte) error {
	if len(b) == 0 || b[0] != progressFormat {
		return errProgress
	}
	var values []uint64
	for b = b[1:]; len(b) > 0; {
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
