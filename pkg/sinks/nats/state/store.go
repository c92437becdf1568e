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
	// maxAppendAttempts bounds how often one segment is written when the stream ends otherwise than expected. Each time more is
	// known.
	maxAppendAttempts = 8
	// keyParts is in how many parts the keys are written again, one after the other.
	keyParts = 256
	// minPartCost is what writing a part again counts at least, in bytes: small states are not written all the time.
	minPartCost = 256
)

// Options say which state, and where.
type Options struct {
	Name       string // of the stream
	Replicas   int    // that the stream gets when there is none, as far as the cluster has servers
	ReplicasOf string // a stream of which it gets at least as many; "" for none
	Log        *slog.Logger

	// Connect returns a connection that stands, or says why there is none.
	Connect func(ctx context.Context) (*connection.Link, error)
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

	read readPosition // how far Read got

	claim          sinks.Claim
	owner          stream.Owner // ours; zero before Claim
	readComplete   bool         // everything was read since the claim
	lastSequence   uint64       // the sequence of the stream's last message
	newestSequence uint64       // that of the newest segment; 0 is none
	newestNumber   uint64       // of the newest segment
	activeLog      int          // which subject it is in
	lossReason     string       // why the state has to be emptied, until it is

	nextPart      int  // part of the keys that is written again next
	roundComplete bool // all parts have been, in this round
	rewriteCredit int  // bytes that may be written again
}

// readPosition is the last segment that was read.
type readPosition struct {
	created  time.Time // of the stream
	sequence uint64    // 0: none yet
	time     time.Time
	number   uint64
	gapAt    uint64 // where segments were missing the last time that all were read
}

func (s *Store) segmentSubject(turn int) string { return s.Name + ".log." + strconv.Itoa(turn) }

func (s *Store) ownershipRecord(c stream.Client) stream.Ownership {
	return stream.Ownership{Client: c, Subject: s.Name + ".owner", Description: fmt.Sprintf("the state %q", s.Name),
		Header: nats.Header{nats.MsgRollup: {nats.MsgRollupSubject}}}
}

func (s *Store) streamClient(ctx context.Context) (stream.Client, error) {
	l, err := s.Connect(ctx)
	return stream.Client{Link: l, Name: s.Name}, err
}

// Close releases nothing: the connection is the sink's.
func (s *Store) Close(context.Context) error { return nil }

// errSegmentsMissing says that what was read does not continue.
var errSegmentsMissing = errors.New("segments are missing")

// Read is [sinks.StateStore.Read].
func (s *Store) Read(ctx context.Context, each func(sinks.StateEntry) error) (reset bool, err error) {
	c, err := s.streamClient(ctx)
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
		return s.resetRead(), nil
	}
	s.read.created = found.Created
	if last > before.sequence {
		err = c.ReadRange(ctx, max(1, before.sequence), last, found.Config.AllowDirect, func(m stream.Message) error {
			return s.readMessage(m, before, each)
		})
	}
	switch {
	case errors.Is(err, errSegmentsMissing) && before.sequence == 0 && before.gapAt == s.read.sequence:
		return true, fmt.Errorf("stream %q lacks segments of the state behind message %d: somebody has deleted them; `exporter state reset` begins anew", s.Name, s.read.sequence)
	case errors.Is(err, errSegmentsMissing):
		return s.resetRead(), nil
	case err != nil:
		return false, err
	}
	s.read.gapAt = 0
	s.readComplete = s.owner.Sequence != 0 && last >= s.owner.Sequence
	return false, nil
}

// resetRead lets the next Read begin anew.
func (s *Store) resetRead() (reset bool) {
	s.read, s.readComplete = readPosition{gapAt: s.read.sequence}, false
	return true
}

// readMessage reads one message, of which the first is where the last Read ended.
func (s *Store) readMessage(m stream.Message, before readPosition, each func(sinks.StateEntry) error) error {
	if m.Sequence == before.sequence && m.Time.Equal(before.time) {
		return nil
	}
	name := parseSegmentName(m.Header(headerState))
	switch {
	case m.Sequence <= s.read.sequence:
		return errSegmentsMissing // another one, in a stream that was restored
	case name.number == 0:
		return nil
	case s.read.sequence != 0 && name.number != s.read.number+1:
		return errSegmentsMissing
	}
	if err := decodeSegment(m.Data, each); err != nil {
		return fmt.Errorf("message %d of stream %q: %w", m.Sequence, s.Name, err)
	}
	s.read.sequence, s.read.time, s.read.number = m.Sequence, m.Time, name.number
	return nil
}

// Claim is [sinks.StateStore.Claim].
func (s *Store) Claim(ctx context.Context, claim sinks.Claim) error {
	c, err := s.streamClient(ctx)
	if err != nil {
		return err
	}
	if err := s.ensureStream(ctx, c); err != nil {
		return err
	}
	s.claim, s.owner, s.lossReason = claim, stream.Owner{}, ""
	return s.claimStream(ctx, c, stream.Owner{})
}

// claimStream claims the state, and learns where it ends.
func (s *Store) claimStream(ctx context.Context, c stream.Client, mine stream.Owner) error {
	owner, err := s.ownershipRecord(c).Claim(ctx, s.claim, mine)
	if err != nil {
		return err
	}
	turn, end, err := s.newestSegment(ctx, c)
	if err != nil {
		return err
	}
	s.owner, s.lastSequence, s.readComplete = owner, owner.Sequence, false
	s.activeLog, s.newestSequence, s.newestNumber = turn, end.Sequence, parseSegmentName(end.Header(headerState)).number
	s.nextPart, s.roundComplete, s.rewriteCredit = 0, false, 0
	return nil
}

// newestSegment is the newest segment; the zero value where there is none.
func (s *Store) newestSegment(ctx context.Context, c stream.Client) (turn int, newest stream.Message, err error) {
	for i := range 2 {
		m, err := c.Get(ctx, stream.GetRequest{LastOf: s.segmentSubject(i)})
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
	c, err := s.streamClient(ctx)
	if err != nil {
		return err
	}
	if s.lossReason != "" {
		return s.recoverLost(ctx, c, s.lossReason)
	}
	w := segmentWriter{store: s, ctx: ctx, client: c, limit: min(maxSegment, int(c.Link.Conn().MaxPayload())-segmentMargin)}
	if s.roundComplete {
		s.nextPart = 0
	}
	w.addEntries(entries)
	s.rewriteCredit += w.added
	for s.readComplete && s.Contents != nil && s.rewriteCredit > 0 && s.nextPart < keyParts {
		w.added = 0
		w.addEntries(s.Contents(s.nextPart, keyParts))
		s.rewriteCredit -= max(minPartCost, w.added)
		s.nextPart++
	}
	w.writeSegment()
	if w.err != nil {
		s.nextPart = 0 // the round begins anew
		return w.err
	}
	s.roundComplete = s.roundComplete || s.nextPart == keyParts
	return nil
}

// segmentWriter collects entries and writes them as segments. After an error it does nothing.
type segmentWriter struct {
	store  *Store
	ctx    context.Context
	client stream.Client
	limit  int // of the entries of a segment, in bytes
	buffer []byte
	added  int // added
	err    error
}

func (w *segmentWriter) addEntries(entries []sinks.StateEntry) {
	for _, e := range entries {
		if len(w.buffer) > 0 && len(w.buffer)+entrySize(e) > w.limit {
			w.writeSegment()
		}
		if w.err != nil {
			return
		}
		before := len(w.buffer)
		w.buffer = appendEntry(w.buffer, e)
		w.added += len(w.buffer) - before
	}
}

func (w *segmentWriter) writeSegment() {
	if w.err == nil && len(w.buffer) > 0 {
		w.err = w.store.appendSegment(w.ctx, w.client, encodeSegment(w.buffer))
		w.buffer = w.buffer[:0]
	}
}

// appendSegment puts a segment behind the newest. When an earlier one whose answer was lost is found to be there, it counts.
func (s *Store) appendSegment(ctx context.Context, c stream.Client, data []byte) error {
	for range maxAppendAttempts {
		turn, m := s.activeLog, s.segmentMessage(data)
		if s.roundComplete {
			turn = 1 - turn
			m.Header[nats.MsgRollup] = []string{nats.MsgRollupSubject}
		}
		m.Subject = s.segmentSubject(turn)
		sequence, err := c.Publish(ctx, m)
		if err == nil {
			s.recordSegment(turn, sequence)
			return nil
		}
		if !stream.ConditionFailed(err) && !errors.Is(err, nats.ErrNoResponders) {
			return err
		}
		if err := s.resolveConflict(ctx, c, err); err != nil {
			return err
		}
	}
	return fmt.Errorf("stream %q ends otherwise whenever a segment of the state is written; does anybody else publish to it?", s.Name)
}

// segmentMessage is a message with the conditions under which it may be stored.
func (s *Store) segmentMessage(data []byte) *nats.Msg {
	header := nats.Header{
		headerState:             {segmentName{s.owner.Claim, s.newestNumber + 1}.String()},
		nats.ExpectedLastSeqHdr: {strconv.FormatUint(s.lastSequence, 10)},
	}
	if s.newestSequence != 0 {
		header[nats.ExpectedLastSubjSeqHdr] = []string{strconv.FormatUint(s.newestSequence, 10)}
		header[stream.HeaderExpectedSubject] = []string{s.segmentSubject(s.activeLog)}
	}
	return &nats.Msg{Header: header, Data: data}
}

// recordSegment notes a new segment.
func (s *Store) recordSegment(turn int, sequence uint64) {
	if turn != s.activeLog {
		s.roundComplete = false
	}
	s.activeLog, s.lastSequence, s.newestSequence = turn, sequence, sequence
	s.newestNumber++
}

// resolveConflict finds out why a segment was refused; nil says that it is worth another try.
func (s *Store) resolveConflict(ctx context.Context, c stream.Client, refused error) error {
	found, err := c.Info(ctx)
	if err != nil {
		return err
	}
	if found == nil {
		return s.recoverLost(ctx, c, "it was deleted")
	}
	if errors.Is(refused, nats.ErrNoResponders) {
		return refused
	}
	o := s.ownershipRecord(c)
	owner, err := o.Current(ctx)
	if err != nil {
		return err
	}
	turn, end, err := s.newestSegment(ctx, c)
	if err != nil {
		return err
	}
	name := parseSegmentName(end.Header(headerState))
	switch {
	case o.IsNewer(owner, s.owner):
		return o.DeposedError(owner, refused)
	case owner.Claim != s.owner.Claim:
		return s.recoverLost(ctx, c, "it was purged, made anew, or restored from a backup")
	case name.claim == s.owner.Claim && name.number == s.newestNumber+1: // one whose answer was lost
		s.recordSegment(turn, end.Sequence)
		s.nextPart = 0
	case end.Sequence != s.newestSequence:
		return s.recoverLost(ctx, c, fmt.Sprintf("it had acknowledged message %d, and it is not there: the stream was purged or restored from a backup, or its "+
			"server lost power before it synced its disk", s.newestSequence))
	case found.State.LastSeq < s.lastSequence:
		return s.recoverLost(ctx, c, fmt.Sprintf("it had acknowledged message %d and ends with %d", s.lastSequence, found.State.LastSeq))
	}
	s.lastSequence = max(s.lastSequence, found.State.LastSeq)
	return ctx.Err()
}

// recoverLost claims the state once more, and empties it: what is left of it may lack what was removed. After an error
// the next Write goes on here.
func (s *Store) recoverLost(ctx context.Context, c stream.Client, why string) error {
	s.lossReason = why
	if err := s.ensureStream(ctx, c); err != nil {
		return err
	}
	whole, number := s.readComplete, s.newestNumber
	if err := s.claimStream(ctx, c, s.owner); err != nil {
		return err
	}
	s.readComplete = whole // the caller has it all
	// Who has read what was lost, even one more than was acknowledged, must not go on behind it.
	s.newestNumber = max(s.newestNumber, number) + 2
	for range 2 {
		s.roundComplete = true
		if err := s.appendSegment(ctx, c, encodeSegment(nil)); err != nil {
			return err
		}
	}
	s.lossReason = ""
	return &sinks.StateLostError{Reason: fmt.Sprintf("stream %q: %s", s.Name, why)}
}
