package state

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

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

// ensureStream creates the stream of the state if it is missing, and checks that an existing one keeps every message.
func (s *Store) ensureStream(ctx context.Context, c stream.Client) error {
	found, err := c.Info(ctx)
	if err != nil {
		return err
	}
	if found == nil {
		return s.createStream(ctx, c)
	}
	why := lossReason(found.Config)
	switch config := found.Config; {
	case !slices.ContainsFunc(config.Subjects, func(subject string) bool { return stream.Covers(subject, s.Name+".>") }):
		why = fmt.Sprintf("does not take the subjects %q; name another in state.name, or add them", s.Name+".>")
	case !config.AllowRollup:
		why = fmt.Sprintf("does not allow roll-ups, which remove older segments: nats stream edit %s --allow-rollup", s.Name)
	case config.NoAck, config.Sealed:
		why = "does not acknowledge, or is sealed"
	}
	if why == "" {
		return nil
	}
	return &sinks.UnavailableError{Code: condition.SinkMisconfigured, Reason: fmt.Sprintf("stream %q cannot keep the state: it %s", s.Name, why)}
}

// lossReason returns how a stream with these settings drops what the state needs; "" if it does not.
func lossReason(config jetstream.StreamConfig) string {
	if config.Retention == jetstream.LimitsPolicy && config.MaxAge <= 0 && config.MaxMsgsPerSubject <= 0 &&
		(config.Discard == jetstream.DiscardNew || config.MaxBytes <= 0 && config.MaxMsgs <= 0) {
		return ""
	}
	return "drops messages by age, number, size or interest, and a state must be complete: use retention limits without " +
		"max_age and max_msgs_per_subject, and discard new with a limit of size"
}

// lookAgain reads the settings of a stream in use, every minute: they may be edited. Without an answer, what was known
// counts.
func (s *Store) lookAgain(ctx context.Context, c stream.Client) {
	if time.Since(s.lookedAt) < lookInterval {
		return
	}
	s.lookedAt = time.Now()
	found, err := c.Info(ctx)
	if err != nil || found == nil {
		return
	}
	p := condition.Problem{}
	if why := lossReason(found.Config); why != "" {
		p = condition.Problem{Code: condition.StateMayLose, Cause: fmt.Sprintf("stream %q %s", s.Name, why)}
	}
	s.mayLose.Update(p)
}

// createStream creates the stream with as many replicas as the stream of the changes, or one if the cluster is too small.
func (s *Store) createStream(ctx context.Context, c stream.Client) error {
	config := jetstream.StreamConfig{
		Name: s.Name, Description: "The state of kubecdc, by which another exporter can take over", Subjects: []string{s.Name + ".>"},
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage, Replicas: s.replicaCount(ctx, c),
		MaxBytes: -1, MaxMsgs: -1, MaxConsumers: -1, MaxMsgsPerSubject: -1, MaxMsgSize: -1, AllowRollup: true, AllowDirect: true,
	}
	made, err := s.requestStream(ctx, c, config)
	if err == nil && made.Error != nil && config.Replicas > 1 && (made.Error.ErrCode == stream.CodeNoReplicas || made.Error.ErrCode == stream.CodeNoPeers) {
		s.Log.Warn("the cluster has too few servers for the replicas; the state has one replica", "stream", s.Name, "wanted", config.Replicas,
			"reason", made.Error.Description)
		config.Replicas = 1
		made, err = s.requestStream(ctx, c, config)
	}
	switch {
	case err != nil:
		return err
	case made.Error != nil:
		return &sinks.UnavailableError{Code: condition.SinkMisconfigured, Reason: fmt.Sprintf("stream %q, for the state, cannot be created", s.Name), Err: made.Error}
	}
	s.Log.Info("NATS stream created for the state", "stream", s.Name, "replicas", config.Replicas)
	return nil
}

// requestStream sends the request to create the stream, and names a missing right.
func (s *Store) requestStream(ctx context.Context, c stream.Client, config jetstream.StreamConfig) (*stream.Info, error) {
	made, err := c.Create(ctx, config)
	if errors.As(err, new(*connection.DeniedError)) {
		err = &sinks.UnavailableError{
			Code: condition.SinkUnauthorized, Err: err,
			Reason: fmt.Sprintf("stream %q, for the state, does not exist, and this user may not create it", s.Name),
			Remedy: fmt.Sprintf("create it for the subjects %q, with roll-ups and direct access allowed, or allow publishing to "+
				"$JS.API.STREAM.CREATE.%s", s.Name+".>", s.Name),
		}
	}
	return made, err
}

// replicaCount returns the number of replicas for a new stream.
func (s *Store) replicaCount(ctx context.Context, c stream.Client) int {
	if s.ReplicasOf == "" {
		return s.Replicas
	}
	c.Name = s.ReplicasOf
	found, err := c.Info(ctx)
	if err != nil || found == nil {
		return s.Replicas
	}
	return max(s.Replicas, found.Config.Replicas)
}

// errSegmentsMissing means that the segments that were read are not consecutive.
var errSegmentsMissing = errors.New("segments are missing")

// segmentReader reads the segments of a state in order, and detects that some are missing or were replaced. Its fields
// identify the last segment that it has passed on. One goroutine uses it.
type segmentReader struct {
	created  time.Time // of the stream
	sequence uint64    // 0: none yet
	time     time.Time
	number   uint64
	gapAt    uint64 // the sequence before missing segments, when the whole state was read the last time
}

// readNew calls each for the entries of all segments since the last call, up to the end of the stream in found. After reset
// nothing that was read counts any more, and the next call starts from the first segment.
func (r *segmentReader) readNew(ctx context.Context, c stream.Client, found *stream.Info, each func(sinks.StateEntry) error) (reset bool,
	err error) {
	before := *r
	last := found.State.LastSeq
	if before.wasReplaced(found) {
		return r.restart(), nil
	}
	r.created = found.Created
	if last > before.sequence {
		err = c.ReadRange(ctx, max(1, before.sequence), last, found.Config.AllowDirect, func(m stream.Message) error {
			return r.readMessage(c.Name, m, before, each)
		})
	}
	switch {
	case errors.Is(err, errSegmentsMissing) && before.sequence == 0 && before.gapAt == r.sequence:
		return true, fmt.Errorf("stream %q lacks segments of the state after message %d: they were deleted; `exporter state "+
			"reset` starts again", c.Name, r.sequence)
	case errors.Is(err, errSegmentsMissing):
		return r.restart(), nil
	case err != nil:
		return false, err
	}
	r.gapAt = 0
	return false, nil
}

// wasReplaced reports whether the stream was recreated, purged or went back since the last segment was read.
func (r *segmentReader) wasReplaced(found *stream.Info) bool {
	last := found.State.LastSeq
	return r.sequence != 0 && (!found.Created.Equal(r.created) || last < r.sequence || last == r.sequence && found.State.FirstSeq > last)
}

// restart makes the next readNew start from the first segment.
func (r *segmentReader) restart() (reset bool) {
	*r = segmentReader{gapAt: r.sequence}
	return true
}

// readMessage passes on the entries of one message. The first message is the last one of the call before, if that is still
// in the stream.
func (r *segmentReader) readMessage(name string, m stream.Message, before segmentReader, each func(sinks.StateEntry) error) error {
	if m.Sequence == before.sequence && m.Time.Equal(before.time) {
		return nil
	}
	segment := parseSegmentName(m.Header(headerState))
	switch {
	case m.Sequence <= r.sequence:
		return errSegmentsMissing // another message with this sequence, in a restored stream
	case segment.number == 0:
		return nil
	case r.sequence != 0 && segment.number != r.number+1:
		return errSegmentsMissing
	}
	if err := decodeSegment(m.Data, each); err != nil {
		return fmt.Errorf("message %d of stream %q: %w", m.Sequence, name, err)
	}
	r.sequence, r.time, r.number = m.Sequence, m.Time, segment.number
	return nil
}

// A segment is a message with entries in the order of writing; internal/state/FORMAT.md specifies it. Its payload is a
// byte for the encoding, and what [sinks.AppendEntries] has made of the entries.
const (
	headerState     = "Kubecdc-State" // CLAIM NUMBER: the claim of the writer, and the number of the segment
	encodingPlain   = 0
	encodingS2      = 1
	minCompressSize = 512      // bytes
	maxDecompressed = 64 << 20 // of one segment, in bytes
	segmentMargin   = 4 << 10  // for headers and subject
	maxSegment      = 512 << 10
)

var errSegment = errors.New("not a segment of a state; it may be one of a later version of this program")

// encodeSegment returns the payload of a segment, compressed if that saves a tenth or more.
func encodeSegment(entries []byte) []byte {
	if len(entries) >= minCompressSize {
		packed := s2.Encode(make([]byte, s2.MaxEncodedLen(len(entries))), entries)
		if len(packed) < len(entries)/10*9 {
			return append([]byte{encodingS2}, packed...)
		}
	}
	return append([]byte{encodingPlain}, entries...)
}

// decodeSegment calls each for the entries of a segment. They refer to the memory of data, or of its decompressed form.
func decodeSegment(data []byte, each func(sinks.StateEntry) error) error {
	if len(data) == 0 || data[0] > encodingS2 {
		return errSegment
	}
	entries := data[1:]
	if data[0] == encodingS2 {
		if n, err := s2.DecodedLen(entries); err != nil || n > maxDecompressed {
			return errSegment
		}
		var err error
		if entries, err = s2.Decode(nil, entries); err != nil {
			return fmt.Errorf("%w: %w", errSegment, err)
		}
	}
	return sinks.DecodeEntries(entries, each)
}

// segmentName is the value of the header Kubecdc-State.
type segmentName struct {
	claim  string
	number uint64 // increases by one from segment to segment; 0: the message is no segment
}

func (n segmentName) String() string { return n.claim + " " + strconv.FormatUint(n.number, 10) }

func parseSegmentName(header string) segmentName {
	claim, digits, _ := strings.Cut(header, " ")
	number, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return segmentName{}
	}
	return segmentName{claim, number}
}
