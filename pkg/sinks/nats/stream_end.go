package nats

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// streamEnd is the known end of a stream that takes ordered batches: its last sequence, and the newest change of this
// exporter in it. The first message of each batch names that sequence (Nats-Expected-Last-Sequence), so the server refuses a
// batch after another writer, after a batch in doubt that was stored, and in a stream that went back, before it stores
// anything out of order. // I3
//
// It is safe for concurrent use.
type streamEnd struct {
	wroteByID atomic.Bool // changes were sent by message ID since the last batch

	mu            sync.Mutex
	epoch         string                      // names the journal and the selection of changes, the scope of offsets
	newestOffset  uint64                      // the previous process was given no offset above it
	saveState     func(context.Context) error // see [sinks.Stateful]; nil if no state is stored
	epochSaved    bool                        // the stored state has the epoch
	endKnown      bool                        // lastSequence is valid
	lastSequence  uint64                      // of the stream's last message
	storedThrough uint64                      // every change up to this offset is in the stream, or is not for it
	lost          *sinks.LostError            // set after a loss until RestoreState or Fence; no batch is sent meanwhile
}

// randomName returns a name for a process or an epoch. It is part of every message: 64 random bits are enough, and shorter
// than a NUID of 22 letters.
func randomName() string { return strconv.FormatUint(rand.Uint64(), 36) }

// currentEnd returns the last sequence of the stream and the newest offset in it; known is false if they must be read first.
func (e *streamEnd) currentEnd() (last, through uint64, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lastSequence, e.storedThrough, e.endKnown
}

func (e *streamEnd) updateEnd(last, through uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastSequence, e.storedThrough, e.endKnown = last, through, true
}

// invalidate makes the end unknown. The epoch must be saved again, because messages sent by ID do not name it.
func (e *streamEnd) invalidate() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.endKnown, e.epochSaved, e.storedThrough = false, false, 0
}

func (e *streamEnd) currentEpoch() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.epoch
}

// startEpoch begins another epoch, because the stream holds changes of a newer copy of this journal: the journal now gives
// their offsets to other changes.
func (e *streamEnd) startEpoch() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.epoch, e.epochSaved, e.storedThrough = randomName(), false, 0
}

// saveEpoch stores the epoch before its first use, so that the next process recognises the messages of this one.
func (e *streamEnd) saveEpoch(ctx context.Context) error {
	e.mu.Lock()
	save, saved := e.saveState, e.epochSaved
	e.mu.Unlock()
	if saved {
		return nil
	}
	if save != nil {
		if err := save(ctx); err != nil {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.epochSaved = true
	return nil
}

// isBeyondJournal reports whether the journal had not yet given out an offset when the previous process ended.
func (e *streamEnd) isBeyondJournal(offset uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return offset > e.newestOffset
}

// recordBatch advances the end by the stored messages of a batch.
func (e *streamEnd) recordBatch(b *openBatch, st batchState) {
	if st.acked == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.storedThrough = max(e.storedThrough, b.offsets[st.acked-1])
	e.lastSequence = max(e.lastSequence, b.baseSequence+st.acked, st.lastSequence)
}

// lostError returns the loss that RestoreState has not handled yet.
func (e *streamEnd) lostError() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lost == nil {
		return nil
	}
	return e.lost
}

// recordLoss records that the stream ends at a sequence and holds the changes up to an offset only.
func (e *streamEnd) recordLoss(stream string, offset, end uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost = &sinks.LostError{From: offset, Reason: fmt.Sprintf("stream %q went back: message %d was acknowledged, and the "+
		"stream ends with number %d; %s", stream, e.lastSequence, end, rewindCauses)}
	e.lastSequence, e.storedThrough, e.endKnown = end, offset, true
	return e.lost
}

// startTerm begins a new epoch in a stream that ends at a sequence.
func (e *streamEnd) startTerm(end uint64) {
	e.wroteByID.Store(false)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.epoch, e.newestOffset, e.saveState, e.epochSaved = randomName(), 0, nil, true
	e.endKnown, e.lastSequence, e.storedThrough, e.lost = true, end, 0, nil
}

// applyRestore clears a loss and sets the arguments of RestoreState. It reports whether this process has already published:
// then its own knowledge is newer than any stored state.
func (e *streamEnd) applyRestore(newest uint64, save func(context.Context) error) (published bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost, e.saveState = nil, save
	if published = e.endKnown; !published {
		e.newestOffset = newest
	}
	return published
}

// loadState sets the values that stateValues returned.
func (e *streamEnd) loadState(epoch string, values []uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.epoch, e.epochSaved, e.endKnown, e.lastSequence, e.storedThrough = epoch, true, values[0] == 1, values[1], values[2]
}

// stateValues returns the epoch and the values to store; no epoch while changes are sent by message ID.
func (e *streamEnd) stateValues() (epoch string, values []uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.epoch == "" || e.wroteByID.Load() {
		return "", nil
	}
	known := uint64(0)
	if e.endKnown {
		known = 1
	}
	return e.epoch, []uint64{known, e.lastSequence, e.storedThrough}
}
