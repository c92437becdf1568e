package state

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

const (
	// maxAppendAttempts bounds the attempts to write one segment when the stream does not end as expected. Each refusal reveals
	// more of the stream's end.
	maxAppendAttempts = 8
	// lookInterval is the time between two looks at the settings of the stream.
	lookInterval = time.Minute
)

// Options configure a store.
type Options struct {
	Name       string // of the stream
	Replicas   int    // of a new stream; 1 if the cluster has too few servers
	ReplicasOf string // a stream of which it gets at least as many; "" for none
	Log        *slog.Logger

	// Connect returns an established connection, or the reason why there is none.
	Connect func(ctx context.Context) (*connection.Link, error)
}

// Open returns a store. It contacts nothing.
func Open(o Options) *Store {
	return &Store{Options: o, mayLose: condition.New(o.Log, "replica", condition.Problem{})}
}

// Store keeps a state in a stream of its own: a log of segments, one for each Append. One goroutine uses it.
//
// There are two subjects for segments. The segment that begins a round goes to the other subject, with a roll-up that
// removes the segments there, which are all older than the round before. The removal is part of a message, so the server
// refuses it from an older owner.
//
// Each segment has two conditions: the stream's last sequence, which only the owner and a claim move, and the previous
// segment, which is missing after a purge and in a recreated stream.
type Store struct {
	Options

	reader   segmentReader
	mayLose  *condition.Condition // safe for concurrent use
	lookedAt time.Time            // when the settings of the stream were last read

	claim          sinks.Claim
	owner          stream.Owner // of this process; zero before Claim
	lastSequence   uint64       // of the stream's last message
	newestSequence uint64       // of the newest segment; 0 if there is none
	newestNumber   uint64       // of the newest segment
	activeLog      int          // 0 or 1: the subject of the newest segment
	segmentLimit   int          // of the entries of a segment, in bytes
	lossReason     string       // why the state must be emptied; "" once that is done
}

func (s *Store) segmentSubject(log int) string { return s.Name + ".log." + strconv.Itoa(log) }

func (s *Store) ownershipRecord(c stream.Client) stream.Ownership {
	return stream.Ownership{Client: c, Subject: s.Name + ".owner", Description: fmt.Sprintf("the state %q", s.Name),
		Header: nats.Header{nats.MsgRollup: {nats.MsgRollupSubject}}}
}

func (s *Store) streamClient(ctx context.Context) (stream.Client, error) {
	l, err := s.Connect(ctx)
	return stream.Client{Link: l, Name: s.Name}, err
}

// Condition implements [sinks.StateStore].
func (s *Store) Condition() condition.Status { return s.mayLose.Status() }

// Close implements [sinks.StateStore]. It releases no connection, because that belongs to the sink.
func (s *Store) Close(context.Context) error {
	s.mayLose.Close()
	return nil
}

// Read implements [sinks.StateStore].
func (s *Store) Read(ctx context.Context, each func(sinks.StateEntry) error) (reset bool, err error) {
	c, err := s.streamClient(ctx)
	if err != nil {
		return false, err
	}
	found, err := c.Info(ctx)
	if err != nil {
		return false, err
	}
	if found == nil { // a missing stream is an empty state
		found = &stream.Info{}
	}
	return s.reader.readNew(ctx, c, found, each)
}

// Claim implements [sinks.StateStore].
func (s *Store) Claim(ctx context.Context, claim sinks.Claim) error {
	c, err := s.streamClient(ctx)
	if err != nil {
		return err
	}
	if err := s.ensureStream(ctx, c); err != nil {
		return err
	}
	s.claim, s.owner, s.lossReason = claim, stream.Owner{}, ""
	s.mayLose.Clear()
	s.segmentLimit = min(maxSegment, int(c.Link.Conn().MaxPayload())-segmentMargin)
	return s.claimStream(ctx, c, stream.Owner{})
}

// claimStream writes the owner record and reads the end of the log.
func (s *Store) claimStream(ctx context.Context, c stream.Client, mine stream.Owner) error {
	owner, err := s.ownershipRecord(c).Claim(ctx, s.claim, mine)
	if err != nil {
		return err
	}
	log, end, err := s.newestSegment(ctx, c)
	if err != nil {
		return err
	}
	s.owner, s.lastSequence = owner, owner.Sequence
	s.activeLog, s.newestSequence, s.newestNumber = log, end.Sequence, parseSegmentName(end.Header(headerState)).number
	return nil
}

// newestSegment returns the newest segment, the zero value if there is none, and its log.
func (s *Store) newestSegment(ctx context.Context, c stream.Client) (log int, newest stream.Message, err error) {
	for i := range 2 {
		m, err := c.Get(ctx, stream.GetRequest{LastOf: s.segmentSubject(i)})
		if err != nil {
			return 0, stream.Message{}, err
		}
		if m.Sequence > newest.Sequence {
			log, newest = i, m
		}
	}
	return log, newest, nil
}

// Compacts implements [sinks.StateStore].
func (s *Store) Compacts() bool { return false }

// Append implements [sinks.StateStore].
func (s *Store) Append(ctx context.Context, entries []sinks.StateEntry, begins bool) error {
	err := s.appendEntries(ctx, entries, begins)
	if errors.As(err, new(*sinks.DeposedError)) {
		s.mayLose.Clear() // the next owner looks
	}
	return err
}

func (s *Store) appendEntries(ctx context.Context, entries []sinks.StateEntry, begins bool) error {
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
	s.lookAgain(ctx, c)
	return s.appendSegment(ctx, c, encodeSegment(sinks.AppendEntries(nil, entries)), begins)
}

// AtomicBytes implements [sinks.StateStore]: one segment.
func (s *Store) AtomicBytes() int { return s.segmentLimit }

// appendSegment writes a segment after the newest one. If an attempt was stored and its answer lost, the next attempt finds
// that segment and writes this one again after it.
func (s *Store) appendSegment(ctx context.Context, c stream.Client, data []byte, begins bool) error {
	former := s.activeLog
	for range maxAppendAttempts {
		log, m := s.activeLog, s.segmentMessage(data)
		if begins && log == former { // no attempt has begun it
			log = 1 - log
			m.Header[nats.MsgRollup] = []string{nats.MsgRollupSubject}
		}
		m.Subject = s.segmentSubject(log)
		sequence, err := c.Publish(ctx, m)
		if err == nil {
			s.recordSegment(log, sequence)
			return nil
		}
		if !stream.ConditionFailed(err) && !errors.Is(err, nats.ErrNoResponders) {
			return err
		}
		if err := s.resolveConflict(ctx, c, err); err != nil {
			return err
		}
	}
	return fmt.Errorf("stream %q has another end whenever a segment of the state is written; is there another writer?", s.Name)
}

// segmentMessage returns the message of a segment with the conditions under which the stream stores it.
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

// recordSegment records a stored segment as the newest one.
func (s *Store) recordSegment(log int, sequence uint64) {
	s.activeLog, s.lastSequence, s.newestSequence = log, sequence, sequence
	s.newestNumber++
}

// resolveConflict finds out why a segment was refused; nil means that another attempt may succeed.
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
	log, end, err := s.newestSegment(ctx, c)
	if err != nil {
		return err
	}
	name := parseSegmentName(end.Header(headerState))
	switch {
	case o.IsNewer(owner, s.owner):
		return o.DeposedError(owner, refused)
	case owner.Claim != s.owner.Claim:
		return s.recoverLost(ctx, c, "it was purged, recreated, or restored from a backup")
	case name.claim == s.owner.Claim && name.number == s.newestNumber+1: // stored by an earlier attempt
		s.recordSegment(log, end.Sequence)
	case end.Sequence != s.newestSequence:
		return s.recoverLost(ctx, c, fmt.Sprintf("acknowledged message %d is missing: the stream was purged or restored from a "+
			"backup, or its server lost power before a disk sync", s.newestSequence))
	case found.State.LastSeq < s.lastSequence:
		return s.recoverLost(ctx, c, fmt.Sprintf("message %d was acknowledged, and the stream ends with %d", s.lastSequence, found.State.LastSeq))
	}
	s.lastSequence = max(s.lastSequence, found.State.LastSeq)
	return ctx.Err()
}

// recoverLost claims the state again and empties it, because the remaining segments may contain keys that were removed.
// After an error the next Append continues here. Its result is a [sinks.StateLostError]: the caller appends the whole state.
func (s *Store) recoverLost(ctx context.Context, c stream.Client, why string) error {
	s.lossReason = why
	if err := s.ensureStream(ctx, c); err != nil {
		return err
	}
	number := s.newestNumber
	if err := s.claimStream(ctx, c, s.owner); err != nil {
		return err
	}
	// A reader of the lost segments, including one that was not acknowledged, must not take the next segment for the
	// continuation of those.
	s.newestNumber = max(s.newestNumber, number) + 2
	for range 2 {
		if err := s.appendSegment(ctx, c, encodeSegment(nil), true); err != nil {
			return err
		}
	}
	s.lossReason = ""
	return &sinks.StateLostError{Reason: fmt.Sprintf("stream %q: %s", s.Name, why)}
}
