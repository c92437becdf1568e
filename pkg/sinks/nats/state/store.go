package state

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

const (
	// maxTries bounds how often one segment is written when the stream ends otherwise than expected. Each time more is
	// known.
	maxTries = 8
	// stateParts is in how many parts the keys are written again, one after the other.
	stateParts = 256
	// minPart is what writing a part again counts at least, in bytes: small states are not written all the time.
	minPart = 256
)

// Options say which state, and where.
type Options struct {
	Name     string // of the stream
	Replicas int    // that the stream gets when there is none, as far as the cluster has servers
	Like     string // a stream of which it gets at least as many; "" for none
	Log      *slog.Logger

	// Reach returns a connection that stands, or says why there is none.
	Reach func(ctx context.Context) (*connection.Link, error)
	// Contents is that of [sinks.StateKeeper.OpenState]; nil for a reader.
	Contents func(part, parts int) []sinks.StateEntry
}

// Open returns the state. It contacts nothing.
func Open(o Options) *Store { return &Store{Options: o} }

// Store keeps a state in a stream of its own: a log of segments, of which the older are removed when everything has been
// written again since.
//
// There are two subjects for segments. A round writes all parts of the keys again, a few with each Write, for about as many
// bytes as are new. When it is complete, the next segment goes to the other subject and removes what that holds: all of it
// is from before the round. So what removes is a message like any other, which an older owner's server refuses.
//
// Each segment names the stream's last sequence, which nobody moves but the owner: a claim moves it. It also names the
// segment before, which is gone when the stream was purged or made anew.
type Store struct {
	Options

	read stateMark // how far Read got

	claim  sinks.Claim
	owner  stream.Owner // ours; zero before Claim
	whole  bool         // everything was read since the claim
	last   uint64       // the sequence of the stream's last message
	newest uint64       // that of the newest segment; 0 is none
	number uint64       // of the newest segment
	turn   int          // which subject it is in
	losing string       // why the state has to be emptied, until it is

	next     int  // part of the keys that is written again next
	complete bool // all parts have been, in this round
	credit   int  // bytes that may be written again
}

// stateMark is the last segment that was read.
type stateMark struct {
	created  time.Time // of the stream
	sequence uint64    // 0: none yet
	time     time.Time
	number   uint64
	broken   uint64 // where segments were missing the last time that all were read
}

func (s *Store) subject(turn int) string { return s.Name + ".log." + strconv.Itoa(turn) }

func (s *Store) ownership(c stream.Client) stream.Ownership {
	return stream.Ownership{Client: c, Subject: s.Name + ".owner", Of: fmt.Sprintf("the state %q", s.Name),
		Header: nats.Header{nats.MsgRollup: {nats.MsgRollupSubject}}}
}

func (s *Store) reach(ctx context.Context) (stream.Client, error) {
	l, err := s.Reach(ctx)
	return stream.Client{Link: l, Name: s.Name}, err
}

// Close releases nothing: the connection is the sink's.
func (s *Store) Close(context.Context) error { return nil }

// errBroken says that what was read does not continue.
var errBroken = errors.New("segments are missing")

// Read is [sinks.StateStore.Read].
func (s *Store) Read(ctx context.Context, each func(sinks.StateEntry) error) (reset bool, err error) {
	c, err := s.reach(ctx)
	if err != nil {
		return false, err
	}
	found, err := c.Info(ctx)
	if err != nil {
		return false, err
	}
	if found == nil { // nothing, as if it was empty
		found = &stream.Info{}
	}
	before := s.read
	last := found.State.LastSeq
	if before.sequence != 0 && (!found.Created.Equal(before.created) || last < before.sequence || last == before.sequence && found.State.FirstSeq > last) {
		return s.forget(), nil
	}
	s.read.created = found.Created
	if last > before.sequence {
		err = c.Read(ctx, max(1, before.sequence), last, found.Config.AllowDirect, func(m stream.Message) error {
			return s.readOne(m, before, each)
		})
	}
	switch {
	case errors.Is(err, errBroken) && before.sequence == 0 && before.broken == s.read.sequence:
		return true, fmt.Errorf("stream %q lacks segments of the state behind message %d: somebody has deleted them; `exporter state reset` begins anew", s.Name, s.read.sequence)
	case errors.Is(err, errBroken):
		return s.forget(), nil
	case err != nil:
		return false, err
	}
	s.read.broken = 0
	s.whole = s.owner.Sequence != 0 && last >= s.owner.Sequence
	return false, nil
}

// forget lets the next Read begin anew.
func (s *Store) forget() (reset bool) {
	s.read, s.whole = stateMark{broken: s.read.sequence}, false
	return true
}

// readOne reads one message, of which the first is where the last Read ended.
func (s *Store) readOne(m stream.Message, before stateMark, each func(sinks.StateEntry) error) error {
	if m.Sequence == before.sequence && m.Time.Equal(before.time) {
		return nil
	}
	name := readSegmentName(m.Header(headerState))
	switch {
	case m.Sequence <= s.read.sequence:
		return errBroken // another one, in a stream that was restored
	case name.number == 0:
		return nil
	case s.read.sequence != 0 && name.number != s.read.number+1:
		return errBroken
	}
	if err := readSegment(m.Data, each); err != nil {
		return fmt.Errorf("message %d of stream %q: %w", m.Sequence, s.Name, err)
	}
	s.read.sequence, s.read.time, s.read.number = m.Sequence, m.Time, name.number
	return nil
}

// Claim is [sinks.StateStore.Claim].
func (s *Store) Claim(ctx context.Context, claim sinks.Claim) error {
	c, err := s.reach(ctx)
	if err != nil {
		return err
	}
	if err := s.prepare(ctx, c); err != nil {
		return err
	}
	s.claim, s.owner, s.losing = claim, stream.Owner{}, ""
	return s.take(ctx, c, stream.Owner{})
}

// take claims the state, and learns where it ends.
func (s *Store) take(ctx context.Context, c stream.Client, mine stream.Owner) error {
	owner, err := s.ownership(c).Take(ctx, s.claim, mine)
	if err != nil {
		return err
	}
	turn, end, err := s.end(ctx, c)
	if err != nil {
		return err
	}
	s.owner, s.last, s.whole = owner, owner.Sequence, false
	s.turn, s.newest, s.number = turn, end.Sequence, readSegmentName(end.Header(headerState)).number
	s.next, s.complete, s.credit = 0, false, 0
	return nil
}

// end is the newest segment; the zero value where there is none.
func (s *Store) end(ctx context.Context, c stream.Client) (turn int, newest stream.Message, err error) {
	for i := range 2 {
		m, err := c.Get(ctx, stream.GetRequest{LastOf: s.subject(i)})
		if err != nil {
			return 0, stream.Message{}, err
		}
		if m.Sequence > newest.Sequence {
			turn, newest = i, m
		}
	}
	return turn, newest, nil
}

// Write is [sinks.StateStore.Write].
func (s *Store) Write(ctx context.Context, entries []sinks.StateEntry) error {
	if s.owner.Sequence == 0 {
		return fmt.Errorf("the state %q is not claimed", s.Name)
	}
	c, err := s.reach(ctx)
	if err != nil {
		return err
	}
	if s.losing != "" {
		return s.lost(ctx, c, s.losing)
	}
	w := segmentWriter{store: s, ctx: ctx, client: c, limit: min(maxSegment, int(c.Link.Conn().MaxPayload())-segmentMargin)}
	if s.complete {
		s.next = 0
	}
	w.add(entries)
	s.credit += w.bytes
	for s.whole && s.Contents != nil && s.credit > 0 && s.next < stateParts {
		w.bytes = 0
		w.add(s.Contents(s.next, stateParts))
		s.credit -= max(minPart, w.bytes)
		s.next++
	}
	w.flush()
	if w.err != nil {
		s.next = 0 // the round begins anew
		return w.err
	}
	s.complete = s.complete || s.next == stateParts
	return nil
}

// segmentWriter collects entries and writes them as segments. After an error it does nothing.
type segmentWriter struct {
	store  *Store
	ctx    context.Context
	client stream.Client
	limit  int // of the entries of a segment, in bytes
	buffer []byte
	bytes  int // added
	err    error
}

func (w *segmentWriter) add(entries []sinks.StateEntry) {
	for _, e := range entries {
		if len(w.buffer) > 0 && len(w.buffer)+entrySize(e) > w.limit {
			w.flush()
		}
		if w.err != nil {
			return
		}
		before := len(w.buffer)
		w.buffer = appendEntry(w.buffer, e)
		w.bytes += len(w.buffer) - before
	}
}

func (w *segmentWriter) flush() {
	if w.err == nil && len(w.buffer) > 0 {
		w.err = w.store.append(w.ctx, w.client, packSegment(w.buffer))
		w.buffer = w.buffer[:0]
	}
}

// append puts a segment behind the newest. When an earlier one whose answer was lost is found to be there, it counts.
func (s *Store) append(ctx context.Context, c stream.Client, data []byte) error {
	for range maxTries {
		turn, m := s.turn, s.segment(data)
		if s.complete {
			turn = 1 - turn
			m.Header[nats.MsgRollup] = []string{nats.MsgRollupSubject}
		}
		m.Subject = s.subject(turn)
		sequence, err := c.Publish(ctx, m)
		if err == nil {
			s.stored(turn, sequence)
			return nil
		}
		if !stream.Moved(err) && !errors.Is(err, nats.ErrNoResponders) {
			return err
		}
		if err := s.moved(ctx, c, err); err != nil {
			return err
		}
	}
	return fmt.Errorf("stream %q ends otherwise whenever a segment of the state is written; does anybody else publish to it?", s.Name)
}

// segment is a message with the conditions under which it may be stored.
func (s *Store) segment(data []byte) *nats.Msg {
	header := nats.Header{
		headerState:             {segmentName{s.owner.Claim, s.number + 1}.String()},
		nats.ExpectedLastSeqHdr: {strconv.FormatUint(s.last, 10)},
	}
	if s.newest != 0 {
		header[nats.ExpectedLastSubjSeqHdr] = []string{strconv.FormatUint(s.newest, 10)}
		header[stream.ExpectedSubject] = []string{s.subject(s.turn)}
	}
	return &nats.Msg{Header: header, Data: data}
}

// stored notes a new segment.
func (s *Store) stored(turn int, sequence uint64) {
	if turn != s.turn {
		s.complete = false
	}
	s.turn, s.last, s.newest = turn, sequence, sequence
	s.number++
}

// moved finds out why a segment was refused; nil says that it is worth another try.
func (s *Store) moved(ctx context.Context, c stream.Client, refused error) error {
	found, err := c.Info(ctx)
	if err != nil {
		return err
	}
	if found == nil {
		return s.lost(ctx, c, "it was deleted")
	}
	if errors.Is(refused, nats.ErrNoResponders) {
		return refused
	}
	o := s.ownership(c)
	owner, err := o.Current(ctx)
	if err != nil {
		return err
	}
	turn, end, err := s.end(ctx, c)
	if err != nil {
		return err
	}
	name := readSegmentName(end.Header(headerState))
	switch {
	case o.Newer(owner, s.owner):
		return o.Deposed(owner, refused)
	case owner.Claim != s.owner.Claim:
		return s.lost(ctx, c, "it was purged, made anew, or restored from a backup")
	case name.claim == s.owner.Claim && name.number == s.number+1: // one whose answer was lost
		s.stored(turn, end.Sequence)
		s.next = 0
	case end.Sequence != s.newest:
		return s.lost(ctx, c, fmt.Sprintf("it had acknowledged message %d, and it is not there: the stream was purged or restored from a backup, or its "+
			"server lost power before it synced its disk", s.newest))
	case found.State.LastSeq < s.last:
		return s.lost(ctx, c, fmt.Sprintf("it had acknowledged message %d and ends with %d", s.last, found.State.LastSeq))
	}
	s.last = max(s.last, found.State.LastSeq)
	return ctx.Err()
}

// lost claims the state once more, and empties it: what is left of it may lack what was removed. After an error
// the next Write goes on here.
func (s *Store) lost(ctx context.Context, c stream.Client, why string) error {
	s.losing = why
	if err := s.prepare(ctx, c); err != nil {
		return err
	}
	whole, number := s.whole, s.number
	if err := s.take(ctx, c, s.owner); err != nil {
		return err
	}
	s.whole = whole // the caller has it all
	// Who has read what was lost, even one more than was acknowledged, must not go on behind it.
	s.number = max(s.number, number) + 2
	for range 2 {
		s.complete = true
		if err := s.append(ctx, c, packSegment(nil)); err != nil {
			return err
		}
	}
	s.losing = ""
	return &sinks.StateLostError{Reason: fmt.Sprintf("stream %q: %s", s.Name, why)}
}
