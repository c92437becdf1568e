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

// maxStarts bounds how often one Publish begins a batch that the stream refuses, because it ends otherwise than expected.
// Each time more is known.
const maxStarts = 8

// ordered is what is known of a stream that changes go to in batches, one after the other: where it ends, and which of our
// changes is the newest there. The first message of each batch names the sequence that it must come behind
// (Nats-Expected-Last-Sequence). So another writer, a batch in doubt that came through after all, and a stream that went
// back are found out before anything is stored in the wrong place.
type ordered struct {
	possible atomic.Bool // the stream takes batches, and nobody else writes to it
	beside   atomic.Bool // changes have gone to the stream in the other way since the last batch
	life     string      // begins the IDs of the batches of this process

	// Of the one Publish that is running.
	batches uint64     // numbers the batches of this life
	size    int        // messages of the next batch: 0 is 1, and it grows with each that is stored as a whole
	doubt   *openBatch // the last batch, while it is not known how much of it is stored
	fenced  string     // the ID of the last batch that was fenced

	mu      sync.Mutex
	epoch   string                      // names the journal and what is selected of it: offsets of another mean nothing
	newest  uint64                      // offsets above it were never given to the process before
	save    func(context.Context) error // see sinks.Stateful; nil when nobody stores a state
	saved   bool                        // the epoch is
	known   bool                        // last is
	last    uint64                      // the sequence of the stream's last message
	through uint64                      // every change up to this offset is in the stream, or settled otherwise
	lost    *sinks.LostError            // nothing is published until Restore
}

// newName names a life or an epoch. It is in each message, and 64 random bits are as good as the 22 letters of a NUID.
func newName() string { return strconv.FormatUint(rand.Uint64(), 36) }

// place is where the stream ends, as far as known.
func (o *ordered) place() (last, through uint64, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last, o.through, o.known
}

func (o *ordered) set(last, through uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last, o.through, o.known = last, through, true
}

// begin sees to it that a batch may begin: what became of the last one is known, and where the stream ends. A new epoch is
// stored before it is used, so that the next process knows it for its own.
func (s *Sink) begin(ctx context.Context, l *connection.Link) error {
	o := &s.ordered
	o.mu.Lock()
	lost, known := o.lost, o.known
	o.mu.Unlock()
	if lost != nil {
		return lost
	}
	if err := s.settleDoubt(ctx, l); err != nil {
		return err
	}
	if !known {
		found, err := s.stream(l).Existing(ctx)
		if err == nil {
			err = s.stillOurs(ctx, l, found.State.LastSeq)
		}
		if err != nil {
			return err
		}
		o.set(found.State.LastSeq, 0)
	}
	o.mu.Lock()
	save, saved := o.save, o.saved
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
	o.saved = true
	return nil
}

// forgetEnd says that where the stream ends, and which change is there, is not known any more. What was stored meanwhile
// does not name the epoch.
func (o *ordered) forgetEnd() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.known, o.saved, o.through, o.size = false, false, 0, 0
}

// leaveBatches learns what batches have put into a stream that takes none any more: their messages have no IDs that the
// stream could drop a repetition by.
func (s *Sink) leaveBatches(ctx context.Context, l *connection.Link) error {
	o := &s.ordered
	for range maxStarts {
		last, _, known := o.place()
		if !known || o.beside.Load() || o.possible.Load() {
			return nil
		}
		if err := s.settleDoubt(ctx, l); err != nil {
			return err
		}
		found, err := s.stream(l).Existing(ctx)
		switch {
		case err != nil:
			return err
		case found.State.LastSeq == last:
			return nil
		case found.State.LastSeq < last: // it went back: by ID everything is sent again that the stream has not
			o.forgetEnd()
		default:
			err = s.readEnd(ctx, l, found.State.LastSeq, "")
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("stream %q grows whenever it is looked at; is there another writer?", s.cfg.Stream)
}

// renew begins another epoch, when the journal is an older copy of the one whose changes the stream holds.
func (o *ordered) renew() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.epoch, o.saved, o.through = newName(), false, 0
}

// stored notes how far a batch got.
func (o *ordered) stored(b *openBatch, st batchState) {
	if st.acked == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.through = max(o.through, b.offsets[st.acked-1])
	o.last = max(o.last, b.base+st.acked, st.sequence)
}

// inOrder publishes messages as batches of the server, each committed before the next one begins.
func (s *Sink) inOrder(ctx context.Context, l *connection.Link, messages []sinks.Message) (int, error) {
	o := &s.ordered
	if o.beside.Swap(false) {
		o.forgetEnd()
	}
	done, starts := 0, 0
	for {
		if err := s.begin(ctx, l); err != nil {
			return done, err
		}
		before := done
		if done = s.settled(messages, done); done == len(messages) {
			return done, nil
		}
		if starts++; done > before {
			starts = 0
		}
		if starts > maxStarts {
			return done, fmt.Errorf("stream %q ends otherwise whenever a batch begins; is there another writer?", s.cfg.Stream)
		}
		err := s.oneBatch(ctx, l, messages[done:])
		if err != nil || !o.possible.Load() {
			return s.settled(messages, done), err
		}
	}
}

// settled returns how many messages, of which the first are, are in the stream or have no place there.
func (s *Sink) settled(messages []sinks.Message, done int) int {
	_, through, _ := s.ordered.place()
	for done < len(messages) && (messages[done].Offset <= through || s.omits(messages[done].Change)) {
		done++
	}
	return done
}

// readEnd reads what has come to the stream's end since we knew it, and takes note of the newest change of ours. A batch
// that it finds may still be growing, when it is one of the process before: it is ended first, by a message to a subject
// that the stream takes. It may keep messages under other subjects than they were sent to. "" says that it takes no batches
// any more, and has ended all.
func (s *Sink) readEnd(ctx context.Context, l *connection.Link, end uint64, subject string) error {
	o := &s.ordered
	last, through, _ := o.place()
	foreign := ""
	m, err := s.stream(l).Newest(ctx, last+1, end, func(m stream.Message) bool {
		ours := s.ours(m)
		if !ours && !s.expected(m) {
			foreign = m.Subject
		}
		return ours
	})
	place, ours := placeOf(m)
	switch {
	case err != nil:
		return err
	case !ours:
	case subject != "" && o.fenced != place.batch:
		return s.fenceBatch(ctx, l, place.batch, subject) // the next attempt finds the end
	case place.offset < through:
		return s.loss(place.offset, end)
	case place.offset > o.newest && !strings.HasPrefix(place.batch, o.life):
		o.renew()
		through = 0
	default:
		through = place.offset
	}
	o.set(end, through)
	if foreign != "" {
		s.noteWriter(foreign)
	}
	return nil
}

// expected says whether a message that is none of ours may be in a stream without another writer: a fence, a dead letter, or
// the marker that the server leaves when it has dropped all messages of a subject for their age.
func (s *Sink) expected(m stream.Message) bool {
	return strings.HasPrefix(m.Subject, s.cfg.fencePrefix()) || isDeadLetter(m) || m.Header(jetstream.MarkerReasonHeader) != ""
}

// ours says whether a message is of a batch in this epoch.
func (s *Sink) ours(m stream.Message) bool {
	place, ok := placeOf(m)
	return ok && place.epoch == s.ordered.epoch
}

// noteWriter notes that somebody else writes to the stream, to this subject among others. Batches need a stream of their
// own.
func (s *Sink) noteWriter(subject string) {
	if s.ordered.possible.Swap(false) {
		s.caution("writers", fmt.Sprintf("another writer publishes to stream %q, for example to %q: changes go there by message ID now, one at a time "+
			"for each object; give the exporter a stream of its own, then restart it", s.cfg.Stream, subject))
	}
}

// rewind says from where on to publish again when the stream ends before what we know.
func (s *Sink) rewind(ctx context.Context, l *connection.Link, end uint64) error {
	m, err := s.stream(l).Newest(ctx, 1, end, s.ours)
	if err != nil {
		return err
	}
	place, _ := placeOf(m)
	return s.loss(place.offset, end)
}

// loss notes that the stream ends at a sequence and holds our changes up to an offset only.
func (s *Sink) loss(offset, end uint64) error {
	o := &s.ordered
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost = &sinks.LostError{From: offset, Reason: fmt.Sprintf("stream %q went back: it had acknowledged message %d and ends with number %d; %s",
		s.cfg.Stream, o.last, end, whyRewound)}
	o.last, o.through, o.known, o.size = end, offset, true, 0
	return o.lost
}
