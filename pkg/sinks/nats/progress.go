package nats

import (
	"fmt"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	checkpointInterval = 10 * time.Second
	maxCheckpoints     = 64 // some ten minutes
)

// idProgress remembers how far the stream was when, so that a stream that went back tells what is missing: JetStream
// acknowledges before it syncs to disk, and a power loss, or a backup that takes the stream's place, undoes
// acknowledgements. It is told by the sequences: they ascend, and one that is given out a second time was lost.
type idProgress struct {
	mu               sync.Mutex
	newest           uint64               // the highest sequence acknowledged
	attemptedThrough uint64               // the highest offset that may have been sent by ID, by this process or the one before
	checkpoints      []sequenceCheckpoint // ascending
	lost             *sinks.LostError

	// After a loss, messages up to the offset again are sent under another message ID, with the number of the loss. Some
	// newer ones may have been stored before the loss was known; recognised as copies, they would not be stored behind the
	// older ones that they have to follow. // I3
	resendThrough, lossCount uint64
}

const rewindCauses = "its server lost power before it synced its disk, or a backup was restored, or the stream was made anew"

// sequenceCheckpoint says that every message up to an offset has a sequence up to this one.
type sequenceCheckpoint struct {
	takenAt          time.Time
	offset, sequence uint64
}

// newestBeforeSend returns what [progress.acknowledged] compares with; call it before a message leaves.
func (p *idProgress) newestBeforeSend() (newest uint64, lost error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost != nil {
		return 0, p.lost
	}
	return p.newest, nil
}

// mayHaveSent says whether a change of this offset may have been sent by ID.
func (p *idProgress) mayHaveSent(offset uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return offset <= p.attemptedThrough
}

// messageIDFor returns the message ID for a change that is about to be sent.
func (p *idProgress) messageIDFor(m sinks.Message) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attemptedThrough = max(p.attemptedThrough, m.Offset)
	if m.Offset > p.resendThrough {
		return changeMessageID(m.Change)
	}
	return fmt.Sprintf("%s/again-%d", changeMessageID(m.Change), p.lossCount)
}

// recordAck notes the sequence of a message, of so many that were on their way. It is an error when the stream had given
// out that sequence before the message left.
func (p *idProgress) recordAck(stream string, before, sequence, flying uint64) error {
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
	for len(p.checkpoints) > 0 && p.checkpoints[len(p.checkpoints)-1].sequence > kept {
		p.checkpoints = p.checkpoints[:len(p.checkpoints)-1]
	}
	p.lost = &sinks.LostError{Reason: fmt.Sprintf("stream %q went back: it had acknowledged message %d and gave number %d to a later one; "+
		"%s", stream, p.newest, sequence, rewindCauses)}
	if len(p.checkpoints) > 0 {
		p.lost.From = p.checkpoints[len(p.checkpoints)-1].offset
	}
	p.newest, p.resendThrough, p.lossCount = sequence, p.attemptedThrough, p.lossCount+1
	return p.lost
}
