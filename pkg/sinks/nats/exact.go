package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// exactAttempts bounds how often one Publish sends a message after learning that the stream is not as it knew it.
	// Each time is progress; a stream that changes faster than that is the caller's back-off to wait for.
	exactAttempts = 3
	// rememberedSubjects bounds the subjects whose last sequence all lanes together remember, at some 40 bytes each. The
	// last sequence of any other is asked for.
	rememberedSubjects = 1 << 19
	// clockMargin is how far the server's clock may be behind ours. Beyond it the stream's duplicates window still tells.
	clockMargin = time.Minute
)

// ledger remembers the sequence of the last message of subjects. It belongs to one lane, and is used by one Publish at
// a time. It has two generations: when the newer one is full it becomes the older one, whose entries are forgotten
// unless they were used meanwhile.
type ledger struct {
	limit        int
	newer, older map[uint64]uint64 // by hash of the subject; two with the same hash cost a question, not an error
}

func newLedgers(lanes int) []*ledger {
	ledgers := make([]*ledger, lanes)
	for i := range ledgers {
		ledgers[i] = &ledger{limit: max(rememberedSubjects/lanes/2, 1)}
	}
	return ledgers
}

var subjectSeed = maphash.MakeSeed()

func (l *ledger) last(subject string) (sequence uint64, known bool) {
	key := maphash.String(subjectSeed, subject)
	if sequence, known = l.newer[key]; !known {
		sequence, known = l.older[key]
	}
	return sequence, known
}

func (l *ledger) note(subject string, sequence uint64) {
	key := maphash.String(subjectSeed, subject)
	if _, known := l.newer[key]; !known && len(l.newer) >= l.limit || l.newer == nil {
		l.newer, l.older = make(map[uint64]uint64), l.newer
	}
	l.newer[key] = sequence
}

// noteIfLast notes the last message of a subject if it has this ID. When there are others behind it, they are about to be
// repeated, too, and each has to be looked up.
func (l *ledger) noteIfLast(last storedMessage, id string) {
	if last.id() == id {
		l.note(last.Subject, last.Sequence)
	}
}

// exactly sends the message of a change on the condition that its subject still ends as we know it
// (Nats-Expected-Last-Subject-Sequence, ADR-22). So the stream itself refuses a copy of what it has, however late, and
// what another writer puts between our messages is seen. What we do not know, after a restart or of a quiet object, the
// server tells.
func (s *Sink) exactly(ctx context.Context, l *link, lane int, msg *nats.Msg, c *event.Change) error {
	remembered, id := s.ledgers[lane], msg.Header.Get(nats.MsgIdHdr)
	expected, known := remembered.last(msg.Subject)
	if !known && c.Type != event.Added && c.Type != event.Snapshot { // those are mostly a subject's first: just try
		last, stored, err := s.lookBack(ctx, l, lane, msg.Subject, id, c.ObservedAt)
		if err != nil {
			return err
		}
		if stored {
			remembered.noteIfLast(last, id)
			return nil
		}
		expected, known = last.Sequence, true
	}
	for range exactAttempts {
		msg.Header[nats.ExpectedLastSubjSeqHdr][0] = strconv.FormatUint(expected, 10)
		ack, err := s.attempt(ctx, l, lane, msg)
		if err == nil {
			// A copy that the stream recognised by its ID need not be the subject's last message.
			if !ack.Duplicate || known {
				remembered.note(msg.Subject, max(expected, ack.Sequence))
			}
			return nil
		}
		if !wrongLast(err) {
			return err
		}
		last, stored, err := s.lookBack(ctx, l, lane, msg.Subject, id, c.ObservedAt)
		switch {
		case err != nil:
			return err
		case !stored && known && last.Sequence > expected:
			return &sinks.UnavailableError{Reason: fmt.Sprintf("another writer publishes to %q: its last message should be number %d "+
				"and is number %d of stream %q; stop that writer, then restart this exporter", msg.Subject, expected, last.Sequence, s.cfg.Stream)}
		}
		if stored { // by an attempt whose answer was lost
			remembered.noteIfLast(last, id)
			return nil
		}
		// Not known before; or the messages we knew of are gone by age, by a purge or with the server's disk.
		expected, known = last.Sequence, true
	}
	return fmt.Errorf("stream %q changes while its last message on %q is looked up", s.cfg.Stream, msg.Subject)
}

// wrongLast says whether the stream refused a message because its subject does not end as expected.
func wrongLast(err error) bool {
	var refused *apiError
	return errors.As(err, &refused) && refused.ErrCode == codeWrongLastSequence
}

// storedMessage is a message as the stream holds it ($JS.API.STREAM.MSG.GET, ADR-1). The zero value is none.
type storedMessage struct {
	Subject  string    `json:"subject"`
	Sequence uint64    `json:"seq"`
	Header   []byte    `json:"hdrs"`
	Time     time.Time `json:"time"` // when it was stored, by the server's clock
}

// id returns the change ID, or nothing when the message has none.
func (m storedMessage) id() string {
	header, err := nats.DecodeHeadersMsg(m.Header)
	if err != nil {
		return ""
	}
	return header.Get(nats.MsgIdHdr)
}

// lookBack returns the last message of a subject and says whether the subject has the ID, there or before. A message cannot
// have been stored before its change was observed, so that only newer ones are looked at: none, unless a crash makes us
// repeat what was acknowledged.
func (s *Sink) lookBack(ctx context.Context, l *link, lane int, subject, id string, observed time.Time) (last storedMessage, stored bool, err error) {
	last, err = s.stored(ctx, l, lane, subject, getMessage{Last: subject})
	if err != nil || last.id() == id {
		return last, err == nil, err
	}
	since := observed.Add(-clockMargin)
	if last.Time.Before(since) {
		return last, false, nil
	}
	for next := (getMessage{Next: subject, Since: &since}); ; {
		m, err := s.stored(ctx, l, lane, subject, next)
		switch {
		case err != nil || m.Sequence == 0 || m.Sequence >= last.Sequence:
			return last, false, err
		case m.id() == id:
			return last, true, nil
		}
		next = getMessage{Next: subject, Sequence: m.Sequence + 1}
	}
}

// getMessage asks for the last message of a subject, or for its next one from a sequence or a time on (nats-server 2.11;
// older ones begin at the first).
type getMessage struct {
	Last     string     `json:"last_by_subj,omitempty"`
	Next     string     `json:"next_by_subj,omitempty"`
	Sequence uint64     `json:"seq,omitempty"`
	Since    *time.Time `json:"start_time,omitempty"`
}

// stored asks the stream's leader for a message.
func (s *Sink) stored(ctx context.Context, l *link, lane int, subject string, get getMessage) (storedMessage, error) {
	request, err := json.Marshal(get)
	if err != nil {
		return storedMessage{}, fmt.Errorf("encode a question about %q: %w", subject, err)
	}
	a, err := s.send(ctx, l, lane, &nats.Msg{Subject: "$JS.API.STREAM.MSG.GET." + s.cfg.Stream, Data: request})
	if err != nil {
		return storedMessage{}, err
	}
	if a.noResponder {
		return storedMessage{}, &sinks.UnavailableError{After: awayPause, Reason: fmt.Sprintf("stream %q does not answer, or does not exist", s.cfg.Stream), Err: nats.ErrNoResponders}
	}
	var answer struct {
		Error   *apiError     `json:"error"`
		Message storedMessage `json:"message"`
	}
	if err := json.Unmarshal(a.data, &answer); err != nil {
		return storedMessage{}, fmt.Errorf("JetStream's answer about the messages on %q: %w", subject, err)
	}
	if answer.Error != nil && answer.Error.ErrCode != codeNoMessage {
		return storedMessage{}, classify(s.cfg.Stream, subject, answer.Error)
	}
	return answer.Message, nil
}
