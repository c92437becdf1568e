package nats

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// StoredReader reads the stream of a sink back. It has a connection of its own and makes no consumer: it reads by the direct
// access of the stream, where that is allowed, and otherwise message by message.
type StoredReader struct {
	cfg       Config
	connector connector
}

var _ sinks.StoredReader = (*StoredReader)(nil)

// OpenStoredReader returns a reader of the stream, or bucket, in cfg. It opens no connection. The caller closes it.
func OpenStoredReader(cfg Config) (*StoredReader, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.SetDefaults()
	cfg.Subject, cfg.Stream = cfg.SubjectTemplate(), cfg.StreamName()
	return &StoredReader{cfg: cfg, connector: connector{cfg: cfg}}, nil
}

// Targets implements [sinks.StoredReader].
func (r *StoredReader) Targets(context.Context, ...string) ([]string, error) {
	return []string{r.cfg.Stream}, nil
}

// StoredLanes implements [sinks.StoredReader]. A stream is one lane, whatever the target is; so is a bucket, in which newer
// records always replace older ones.
func (r *StoredReader) StoredLanes(ctx context.Context, _ string) ([]sinks.StoredLane, error) {
	found, _, err := r.findStream(ctx)
	if err != nil {
		return nil, err
	}
	c := found.Config
	replaces := c.MaxMsgsPerSubject > 0
	limited := c.MaxAge > 0 || c.Discard == jetstream.DiscardOld && (c.MaxMsgs > 0 || c.MaxBytes > 0)
	return []sinks.StoredLane{{
		Target: r.cfg.Stream, Count: 1, First: int64(found.State.FirstSeq), End: int64(found.State.LastSeq) + 1,
		Replaces: replaces, Truncated: found.State.FirstSeq > 1 && (!replaces || limited),
	}}, nil
}

func (r *StoredReader) findStream(ctx context.Context) (*stream.Info, *connection.Link, error) {
	l, err := r.connector.connectedLink(ctx)
	if err != nil {
		return nil, nil, err
	}
	found, err := r.cfg.streamClient(l).RequireInfo(ctx)
	return found, l, err
}

// ReadStored implements [sinks.StoredReader].
func (r *StoredReader) ReadStored(ctx context.Context, spans []sinks.StoredSpan, each func(sinks.StoredRecord) error) error {
	found, l, err := r.findStream(ctx)
	if err != nil {
		return err
	}
	for i, s := range spans {
		if s.From >= s.To {
			continue
		}
		err := r.cfg.streamClient(l).ReadRange(ctx, uint64(s.From), uint64(s.To-1), found.Config.AllowDirect, func(m stream.Message) error {
			if strings.HasPrefix(m.Subject, r.cfg.fencePrefix()) {
				return nil
			}
			return each(sinks.StoredRecord{
				Lane: i, Position: int64(m.Sequence), Key: objectKey(r.cfg.Subject, m.Subject), Value: m.Data, Header: factHeader(m),
				RemovesUnnamed: m.Header(headerOperation) != "" && m.Header(headerID) == "",
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Close implements [sinks.StoredReader].
func (r *StoredReader) Close(ctx context.Context) error { return r.connector.closeLink(ctx) }

// streamEnd is the known end of a stream that takes ordered batches: its last sequence, and the newest change of this
// exporter in it. The first message of each batch names that sequence (Nats-Expected-Last-Sequence), so the server refuses a
// batch after another writer, after a batch in doubt that was stored, and in a stream that went back, before it stores
// anything out of order. // I3
//
// It is safe for concurrent use.
type streamEnd struct {
	wroteByID atomic.Bool // changes were sent by message ID since the last batch

	// seen is the stream when it had what is known here, next what a later look-up found, until that is compared; nil: none.
	seen, next atomic.Pointer[stream.Info]

	mu            sync.Mutex
	epoch         string                      // names the journal and the selection of changes, the scope of offsets
	newestOffset  uint64                      // the previous process was given no offset above it
	saveState     func(context.Context) error // see [sinks.Stateful]; nil if no state is stored
	epochSaved    bool                        // the stored state has the epoch
	endKnown      bool                        // lastSequence is valid
	lastSequence  uint64                      // of the stream's last message
	storedThrough uint64                      // every change up to this offset is in the stream, or is not for it

	// A term begins in a stream that ended with found, where everything up to covered was acknowledged. What follows begin, up
	// to own, was published from this journal, at last in the epoch ownEpoch.
	found, covered, begin, own uint64
	ownEpoch                   string
	uncompared                 bool // found and covered

	lost error // a *sinks.LostError after a loss until RestoreState or Fence; no batch is sent meanwhile
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
	return e.lost
}

// recordLoss records that the stream ends at a sequence, and lacks what was acknowledged behind the message left.
func (e *streamEnd) recordLoss(name string, left stream.Message, end uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	stored, _ := storedOffsetOf(left)
	if stored.epoch != e.epoch && stored.epoch != e.ownEpoch {
		stored.offset = 0 // in another journal
	}
	others := e.covered - min(e.covered, left.Sequence)
	others -= min(others, e.own-min(e.own, max(e.begin, left.Sequence)))
	acked := max(e.lastSequence, e.covered)
	e.lost = &sinks.LostError{From: stored.offset, Messages: acked - min(acked, left.Sequence), Gone: others, Reason: fmt.Sprintf(
		"stream %q went back: message %d was acknowledged, and the stream ends with number %d; %s", name, acked, end, rewindCauses)}
	e.covered, e.begin, e.uncompared = min(e.covered, left.Sequence), min(e.begin, left.Sequence), false
	e.lastSequence, e.storedThrough, e.endKnown = end, stored.offset, true
	return e.lost
}

// startTerm begins a new epoch in a stream as it was found before the fence, with which it ends.
func (e *streamEnd) startTerm(found *stream.Info, end uint64) {
	last := found.State.LastSeq
	e.wroteByID.Store(false)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.epoch, e.newestOffset, e.saveState, e.epochSaved = randomName(), 0, nil, true
	e.endKnown, e.lastSequence, e.storedThrough, e.lost = true, end, 0, nil
	e.found, e.covered, e.begin, e.own, e.ownEpoch, e.uncompared = last, 0, last, 0, "", true
	e.seen.Store(found)
	e.next.Store(nil)
}

// recordCovered records that everything up to a sequence was acknowledged, as the replicated state says, in this stream or
// in a former one of its name, of which nothing is left.
func (e *streamEnd) recordCovered(sequence uint64, former bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.covered = max(e.covered, sequence); former && sequence > 0 {
		e.found = 0
	}
}

// recordSighting records how the stream was found, for [batchPublisher.compareStream].
func (e *streamEnd) recordSighting(found *stream.Info) {
	if !e.seen.CompareAndSwap(nil, found) {
		e.next.Store(found)
	}
}

// wentBack reports whether the stream lacked what was acknowledged when this term began, and no loss is recorded yet.
func (e *streamEnd) wentBack() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.uncompared && e.found < e.covered
}

// lifeName names a stream, and not another one of its name; "" if it was not looked up.
func lifeName(found *stream.Info) string {
	if found == nil {
		return ""
	}
	return found.Config.Name + "." + strconv.FormatInt(found.Created.UnixNano(), 36)
}

// restoreTerm adds to a term what an earlier process on this journal knew. It reports whether it did.
func (e *streamEnd) restoreTerm(stored storedState) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.uncompared && stored.epoch != "" && stored.values[0] > 0 {
		e.ownEpoch, e.begin, e.own = stored.epoch, stored.values[0]-1, stored.values[1]
		e.covered = max(e.covered, e.own)
	}
	return e.uncompared
}

// compareTerm returns where the stream ended when the term began, and ends, and whether that was before what was
// acknowledged, until that is recorded as a loss.
func (e *streamEnd) compareTerm() (found, end uint64, earlier bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.uncompared && e.found >= e.covered {
		if e.uncompared, e.covered = false, e.found; e.found > e.own {
			e.begin, e.own = e.found, 0 // it may be of others
		}
	}
	return e.found, e.lastSequence, e.uncompared
}

// applyRestore clears a loss and sets the arguments of RestoreState. It reports whether this process has already published:
// then its own knowledge is newer than any stored state.
func (e *streamEnd) applyRestore(newest uint64, save func(context.Context) error) (published bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost, e.saveState = nil, save
	e.seen.Store(nil) // it is seen as it is now
	e.next.Store(nil)
	if published = e.endKnown; !published {
		e.newestOffset = newest
	}
	return published
}

func (e *streamEnd) loadState(epoch string, values []uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.epoch, e.epochSaved, e.endKnown, e.lastSequence, e.storedThrough = epoch, true, values[0] > 0, values[1], values[2]
}

// stateValues returns the epoch and the values to store; no epoch while changes are sent by message ID.
func (e *streamEnd) stateValues() (epoch string, values []uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.epoch == "" || e.wroteByID.Load() {
		return "", nil
	}
	begin := uint64(0)
	if e.endKnown {
		begin = e.begin + 1
	}
	return e.epoch, []uint64{begin, e.lastSequence, e.storedThrough}
}

// readTails reads lanes back from the stream in one pass, from the sequence first to the end of the stream when the term
// began. It calls emitted for each message of the deployment, once for each lane that the message may belong to.
func readTails(ctx context.Context, cfg Config, l *connection.Link, t *term, lanes []laneTail, first uint64, direct bool,
	emitted func(sinks.Lane, sinks.Emitted) error) error {
	return cfg.streamClient(l).ReadRange(ctx, first, t.endSequence, direct, func(m stream.Message) error {
		e, ours := format.ReadEmitted(m.Data, factHeader(m))
		if !ours || !t.hasPublished(m) || strings.HasPrefix(m.Subject, cfg.fencePrefix()) {
			return nil
		}
		hash := objectHash(e)
		for _, lane := range lanes {
			if !lane.mayContain(m.Sequence, hash, e.Type) {
				continue
			}
			if err := emitted(lane.lane, sinks.Emitted{EmittedRecord: e, Position: sinks.LanePosition(m.Sequence)}); err != nil {
				return err
			}
		}
		return nil
	})
}

// factHeader returns the lookup of headers for [format.ReadEmitted].
func factHeader(m stream.Message) func(name string) string {
	return func(name string) string {
		if header := factHeaders[name]; header != "" {
			return m.Header(header)
		}
		return ""
	}
}

var factHeaders = map[string]string{
	format.HeaderChange: headerChange, format.HeaderID: headerID, format.HeaderType: headerType,
	format.HeaderCluster: headerCluster, format.HeaderKey: headerKey, format.HeaderSnapshot: headerSnapshot,
}

// laneTail is a lane to read back. Its name has the number of lanes at the time it was recorded, which may differ from now.
type laneTail struct {
	lane      sinks.Lane
	index, of uint64 // holds the objects with a hash of index modulo of; the single lane is 0 of 1
	from      uint64 // first sequence to read
}

// mayContain reports whether a message of an object belongs to the lane. A control record does not contain its namespace, so
// it may belong to any lane.
func (t laneTail) mayContain(sequence, hash uint64, kind event.Type) bool {
	return sequence >= t.from && (kind.IsControl() || hash%t.of == t.index)
}

// planTails returns the lanes that can be read from a stream that ends at a sequence, and the first sequence to read.
func planTails(lanes map[sinks.Lane]sinks.Tail, end uint64) (all []laneTail, first uint64) {
	first = math.MaxUint64
	for lane, tail := range lanes {
		name, _ := sinks.SplitRecordedLane(lane)
		index, of, known := parseLane(name)
		if !known {
			continue
		}
		from := uint64(max(tail.From, 1))
		if from > end+1 { // the stream went back
			from = 1
		}
		all, first = append(all, laneTail{lane, index, of, from}), min(first, from)
	}
	return all, first
}

func parseLane(lane sinks.Lane) (index, of uint64, known bool) {
	if lane == singleLane {
		return 0, 1, true
	}
	left, right, _ := strings.Cut(string(lane), "/")
	index, err1 := strconv.ParseUint(left, 10, 32)
	of, err2 := strconv.ParseUint(right, 10, 32)
	return index, of, err1 == nil && err2 == nil && index < of
}

// objectHash returns [sinks.KeyHash] of the object of a message.
func objectHash(e event.EmittedRecord) uint64 {
	cluster, _, _ := strings.Cut(e.ID, "/")
	c := event.Change{Type: e.Type, Cluster: cluster, Resource: e.Resource, Name: e.Key}
	if namespace, name, namespaced := strings.Cut(e.Key, "/"); namespaced {
		c.Namespace, c.Name = namespace, name
	}
	return sinks.KeyHash(&c)
}
