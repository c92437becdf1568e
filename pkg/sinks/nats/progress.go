package nats

import (
	"fmt"
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
	attempted uint64 // the highest offset that may have been sent by ID, by this process or the one before
	marks     []mark // ascending
	lost      *sinks.LostError

	// After a loss, messages up to the offset again are sent under another message ID, with the number of the loss. Some
	// newer ones may have been stored before the loss was known; recognised as copies, they would not be stored behind the
	// older ones that they have to follow. // I3
	again, losses uint64
}

const whyRewound = "its server lost power before it synced its disk, or a backup was restored, or the stream was made anew"

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

// sent says whether a change of this offset may have been sent by ID.
func (p *progress) sent(offset uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return offset <= p.attempted
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
		"%s", stream, p.newest, sequence, whyRewound)}
	if len(p.marks) > 0 {
		p.lost.From = p.marks[len(p.marks)-1].offset
	}
	p.newest, p.again, p.losses = sequence, p.attempted, p.losses+1
	return p.lost
}
