package nats

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	checkpointInterval = 10 * time.Second
	maxCheckpoints     = 64 // about ten minutes
)

// rewindCauses ends the reason of a loss.
const rewindCauses = "its server lost power before a disk sync, or a backup was restored, or the stream was recreated"

// idProgress tracks the sequences of messages sent by ID, to detect a stream that went back and to find what it lacks:
// JetStream acknowledges before it syncs to disk, so a power failure or a restored backup undoes acknowledgements. Sequences
// only grow; a sequence that the stream gives out twice was lost in between. It is safe for concurrent use.
type idProgress struct {
	mu               sync.Mutex
	newest           uint64               // highest acknowledged sequence
	attemptedThrough uint64               // highest offset that this process or the previous one may have sent by ID
	checkpoints      []sequenceCheckpoint // ascending
	lost             *sinks.LostError     // set after a loss until RestoreState

	// After a loss, messages up to the offset resendThrough are sent under another message ID, which contains lossCount. The
	// stream may have stored some newer ones before the loss was known. If it recognised them as copies, it would not store
	// them again after the older ones that must precede them. // I3
	resendThrough, lossCount uint64
}

// sequenceCheckpoint records that every message up to an offset has a sequence up to this one.
type sequenceCheckpoint struct {
	takenAt          time.Time
	offset, sequence uint64
}

// newestBeforeSend returns the value for recordAck; call it before a message is sent. It fails after a loss.
func (p *idProgress) newestBeforeSend() (newest uint64, lost error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost != nil {
		return 0, p.lost
	}
	return p.newest, nil
}

// newestAcked returns the highest acknowledged sequence.
func (p *idProgress) newestAcked() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.newest
}

// mayHaveSent reports whether a change of this offset may have been sent by ID.
func (p *idProgress) mayHaveSent(offset uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return offset <= p.attemptedThrough
}

// messageIDFor returns the message ID of a change that is about to be sent, and records the attempt.
func (p *idProgress) messageIDFor(m sinks.Message) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attemptedThrough = max(p.attemptedThrough, m.Offset)
	if m.Offset > p.resendThrough {
		return changeMessageID(m.Change)
	}
	return fmt.Sprintf("%s/again-%d", changeMessageID(m.Change), p.lossCount)
}

// recordAck records the sequence of a message. before is the result of newestBeforeSend, and inFlight the number of messages
// that were in flight with it. A sequence up to before is a [sinks.LostError]: the stream had given it out already.
func (p *idProgress) recordAck(stream string, before, sequence, inFlight uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost != nil {
		return p.lost
	}
	if sequence > before {
		p.newest = max(p.newest, sequence)
		return nil
	}
	// Messages in flight with it may have taken the first of the lost sequences.
	kept := sequence - min(sequence, inFlight)
	for len(p.checkpoints) > 0 && p.checkpoints[len(p.checkpoints)-1].sequence > kept {
		p.checkpoints = p.checkpoints[:len(p.checkpoints)-1]
	}
	p.lost = &sinks.LostError{Reason: fmt.Sprintf("stream %q went back: message %d was acknowledged, and a later one got "+
		"number %d; %s", stream, p.newest, sequence, rewindCauses)}
	if len(p.checkpoints) > 0 {
		p.lost.From = p.checkpoints[len(p.checkpoints)-1].offset
	}
	p.newest, p.resendThrough, p.lossCount = sequence, p.attemptedThrough, p.lossCount+1
	return p.lost
}

// startTerm forgets everything about an earlier term, in a stream that ends at a sequence.
func (p *idProgress) startTerm(end uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.newest, p.attemptedThrough, p.checkpoints, p.lost, p.resendThrough, p.lossCount = end, 0, nil, nil, 0, 0
}

// applyRestore clears a loss and reports whether this process has already published by ID.
func (p *idProgress) applyRestore() (published bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = nil
	return p.newest > 0
}

// setAttempted sets the highest offset that the previous process may have sent by ID.
func (p *idProgress) setAttempted(offset uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attemptedThrough = offset
}

// loadState sets the values that stateValues returned.
func (p *idProgress) loadState(values []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.newest, p.resendThrough, p.lossCount, p.checkpoints = values[0], values[1], values[2], nil
	for m := range slices.Chunk(values[progressValues:], checkpointValues) {
		p.checkpoints = append(p.checkpoints, sequenceCheckpoint{time.Unix(int64(m[0]), 0), m[1], m[2]})
	}
}

// stateValues returns the values to store. It takes a checkpoint from time to time: every message up to the offset low is
// acknowledged.
func (p *idProgress) stateValues(low uint64) []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.lost == nil && (len(p.checkpoints) == 0 || now.Sub(p.checkpoints[len(p.checkpoints)-1].takenAt).Abs() >= checkpointInterval) {
		p.checkpoints = append(p.checkpoints, sequenceCheckpoint{now, low, p.newest})
		p.checkpoints = p.checkpoints[max(0, len(p.checkpoints)-maxCheckpoints):]
	}
	values := []uint64{p.newest, p.resendThrough, p.lossCount}
	for _, m := range p.checkpoints {
		values = append(values, uint64(max(m.takenAt.Unix(), 0)), m.offset, m.sequence)
	}
	return values
}
