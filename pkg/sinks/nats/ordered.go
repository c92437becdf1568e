package nats

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// maxBatchStarts bounds how often one Publish begins a batch that the stream refuses, because it ends otherwise than expected.
// Each time more is known.
const maxBatchStarts = 8

// streamEnd is what is known of a stream that changes go to in batches, one after the other: where it ends, and which of our
// changes is the newest there. The first message of each batch names the sequence that it must come behind
// (Nats-Expected-Last-Sequence). So another writer, a batch in doubt that came through after all, and a stream that went
// back are found out before anything is stored in the wrong place.
type streamEnd struct {
	batchesPossible atomic.Bool // the stream takes batches, and nobody else writes to it
	wroteByID       atomic.Bool // changes have gone to the stream in the other way since the last batch
	batchPrefix     string      // begins the IDs of the batches of this process

	// Of the one Publish that is running.
	batchCount    uint64     // numbers the batches of this life
	nextBatchSize int        // messages of the next batch: 0 is 1, and it grows with each that is stored as a whole
	inDoubt       *openBatch // the last batch, while it is not known how much of it is stored
	lastClosed    string     // the ID of the last batch that was fenced

	mu            sync.Mutex
	epoch         string                      // names the journal and what is selected of it: offsets of another mean nothing
	newestOffset  uint64                      // offsets above it were never given to the process before
	saveState     func(context.Context) error // see sinks.Stateful; nil when nobody stores a state
	epochSaved    bool                        // the epoch is
	endKnown      bool                        // last is
	lastSequence  uint64                      // the sequence of the stream's last message
	storedThrough uint64                      // every change up to this offset is in the stream, or settled otherwise
	lost          *sinks.LostError            // nothing is published until Restore
}

// randomName names a life or an epoch. It is in each message, and 64 random bits are as good as the 22 letters of a NUID.
func randomName() string { return strconv.FormatUint(rand.Uint64(), 36) }

// currentEnd is where the stream ends, as far as known.
func (o *streamEnd) currentEnd() (last, through uint64, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lastSequence, o.storedThrough, o.endKnown
}

func (o *streamEnd) updateEnd(last, through uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lastSequence, o.storedThrough, o.endKnown = last, through, true
}

// prepareBatch sees to it that a batch may begin: what became of the last one is known, and where the stream ends. A new epoch is
// stored before it is used, so that the next process knows it for its own.
func (s *Sink) prepareBatch(ctx context.Context, l *connection.Link) error {
	o := &s.streamEnd
	o.mu.Lock()
	lost, known := o.lost, o.endKnown
	o.mu.Unlock()
	if lost != nil {
		return lost
	}
	if err := s.resolveInDoubt(ctx, l); err != nil {
		return err
	}
	if !known {
		found, err := s.streamClient(l).RequireInfo(ctx)
		if err == nil {
			err = s.checkOwnership(ctx, l, found.State.LastSeq)
		}
		if err != nil {
			return err
		}
		o.updateEnd(found.State.LastSeq, 0)
	}
	o.mu.Lock()
	save, saved := o.saveState, o.epochSaved
	o.mu.Unlock()
	if saved {
		return nil
	}
	if save != nil {
		if err := save(ctx); err != nil {
			return err
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.epochSaved = true
	return nil
}

// invalidateEnd says that where the stream ends, and which change is there, is not known any more. What was stored meanwhile
// does not name the epoch.
func (o *streamEnd) invalidateEnd() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.endKnown, o.epochSaved, o.storedThrough, o.nextBatchSize = false, false, 0, 0
}

// readEndOfBatches learns what batches have put into a stream that takes none any more: their messages have no IDs that the
// stream could drop a repetition by.
func (s *Sink) readEndOfBatches(ctx context.Context, l *connection.Link) error {
	o := &s.streamEnd
	for range maxBatchStarts {
		last, _, known := o.currentEnd()
		if !known || o.wroteByID.Load() || o.batchesPossible.Load() {
			return nil
		}
		if err := s.resolveInDoubt(ctx, l); err != nil {
			return err
		}
		found, err := s.streamClient(l).RequireInfo(ctx)
		switch {
		case err != nil:
			return err
		case found.State.LastSeq == last:
			return nil
		case found.State.LastSeq < last: // it went back: by ID everything is sent again that the stream has not
			o.invalidateEnd()
		default:
			err = s.readStreamEnd(ctx, l, found.State.LastSeq, "")
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("stream %q grows whenever it is looked at; is there another writer?", s.cfg.Stream)
}

// startEpoch begins another epoch, when the journal is an older copy of the one whose changes the stream holds.
func (o *streamEnd) startEpoch() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.epoch, o.epochSaved, o.storedThrough = randomName(), false, 0
}

// recordBatch notes how far a batch got.
func (o *streamEnd) recordBatch(b *openBatch, st batchState) {
	if st.acked == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.storedThrough = max(o.storedThrough, b.offsets[st.acked-1])
	o.lastSequence = max(o.lastSequence, b.baseSequence+st.acked, st.lastSequence)
}

// publishInBatches publishes messages as batches of the server, each committed before the next one begins.
func (s *Sink) publishInBatches(ctx context.Context, l *connection.Link, messages []sinks.Message) (int, error) {
	o := &s.streamEnd
	if o.wroteByID.Swap(false) {
		o.invalidateEnd()
	}
	done, starts := 0, 0
	for {
		if err := s.prepareBatch(ctx, l); err != nil {
			return done, err
		}
		before := done
		if done = s.countStored(messages, done); done == len(messages) {
			return done, nil
		}
		if starts++; done > before {
			starts = 0
		}
		if starts > maxBatchStarts {
			return done, fmt.Errorf("stream %q ends otherwise whenever a batch begins; is there another writer?", s.cfg.Stream)
		}
		err := s.publishBatch(ctx, l, messages[done:])
		if err != nil || !o.batchesPossible.Load() {
			return s.countStored(messages, done), err
		}
	}
}

// countStored returns how many messages, of which the first are, are in the stream or have no place there.
func (s *Sink) countStored(messages []sinks.Message, done int) int {
	_, through, _ := s.streamEnd.currentEnd()
	for done < len(messages) && (messages[done].Offset <= through || s.omitsChange(messages[done].Change)) {
		done++
	}
	return done
}

// readStreamEnd reads what has come to the stream's end since we knew it, and takes note of the newest change of ours. A batch
// that it finds may still be growing, when it is one of the process before: it is ended first, by a message to a subject
// that the stream takes. It may keep messages under other subjects than they were sent to. "" says that it takes no batches
// any more, and has ended all.
func (s *Sink) readStreamEnd(ctx context.Context, l *connection.Link, end uint64, subject string) error {
	o := &s.streamEnd
	last, through, _ := o.currentEnd()
	foreign := ""
	m, err := s.streamClient(l).FindNewest(ctx, last+1, end, func(m stream.Message) bool {
		ours := s.isFromEpoch(m)
		if !ours && !s.isExpectedMessage(m) {
			foreign = m.Subject
		}
		return ours
	})
	place, ours := storedOffsetOf(m)
	switch {
	case err != nil:
		return err
	case !ours:
	case subject != "" && o.lastClosed != place.batch:
		return s.closeBatchByID(ctx, l, place.batch, subject) // the next attempt finds the end
	case place.offset < through:
		return s.recordLoss(place.offset, end)
	case place.offset > o.newestOffset && !strings.HasPrefix(place.batch, o.batchPrefix):
		o.startEpoch()
		through = 0
	default:
		through = place.offset
	}
	o.updateEnd(end, through)
	if foreign != "" {
		s.recordOtherWriter(foreign)
	}
	return nil
}

// isExpectedMessage says whether a message that is none of ours may be in a stream without another writer: a fence, a dead letter, or
// the marker that the server leaves when it has dropped all messages of a subject for their age.
func (s *Sink) isExpectedMessage(m stream.Message) bool {
	return strings.HasPrefix(m.Subject, s.cfg.fencePrefix()) || isDeadLetter(m) || m.Header(jetstream.MarkerReasonHeader) != ""
}

// isFromEpoch says whether a message is of a batch in this epoch.
func (s *Sink) isFromEpoch(m stream.Message) bool {
	place, ok := storedOffsetOf(m)
	return ok && place.epoch == s.streamEnd.epoch
}

// recordOtherWriter notes that somebody else writes to the stream, to this subject among others. Batches need a stream of their
// own.
func (s *Sink) recordOtherWriter(subject string) {
	if s.streamEnd.batchesPossible.Swap(false) {
		s.updateWarning("writers", fmt.Sprintf("another writer publishes to stream %q, for example to %q: changes go there by message ID now, one at a time "+
			"for each object; give the exporter a stream of its own, then restart it", s.cfg.Stream, subject))
	}
}

// reportRewind says from where on to publish again when the stream ends before what we know.
func (s *Sink) reportRewind(ctx context.Context, l *connection.Link, end uint64) error {
	m, err := s.streamClient(l).FindNewest(ctx, 1, end, s.isFromEpoch)
	if err != nil {
		return err
	}
	place, _ := storedOffsetOf(m)
	return s.recordLoss(place.offset, end)
}

// recordLoss notes that the stream ends at a sequence and holds our changes up to an offset only.
func (s *Sink) recordLoss(offset, end uint64) error {
	o := &s.streamEnd
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost = &sinks.LostError{From: offset, Reason: fmt.Sprintf("stream %q went back: it had acknowledged message %d and ends with number %d; %s",
		s.cfg.Stream, o.lastSequence, end, rewindCauses)}
	o.lastSequence, o.storedThrough, o.endKnown, o.nextBatchSize = end, offset, true, 0
	return o.lost
}
