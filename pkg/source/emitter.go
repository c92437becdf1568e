package source

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// emitter turns what is read of one scope into observations, appends them, and holds the position. The methods that append
// belong to one goroutine; the atomic fields may be read by any.
type emitter struct {
	scope  selection.Scope
	append event.AppendFunc

	clock    *deltas.Clock
	tracker  atomic.Pointer[deltas.Tracker] // nil until loadState
	position atomic.Pointer[string]         // of the last append; nil if the scope has to be listed

	// Owned by the goroutine that appends.
	stored  event.StoredScope // what the store has of the scope while there is no position; otherwise the ID alone
	lostAt  string            // the position after which history was lost; "" if unknown
	preface *preface          // of the list that has begun; nil once appended

	aheadUpTo  string      // see event.StoredScope
	watermarks *watermarks // never nil
	requested  requestedSnapshots
}

// appendError distinguishes a failed append, which ends the Source, from a failure of the API server.
type appendError struct{ error }

func (e *appendError) Unwrap() error { return e.error }

// loadState gives the emitter its stored state. It is called once, before anything is emitted.
func (e *emitter) loadState(cluster string, stored event.StoredScope, known *deltas.KnownSet) {
	s := deltas.Scope{
		ID: e.scope.ID, Cluster: cluster, Resource: e.scope.Resource, Namespace: e.scope.Namespace,
		Selected: e.scope.LabelSelector != "" || e.scope.FieldSelector != "", Filtered: e.scope.ChangeFilter != "",
	}
	e.tracker.Store(deltas.NewTracker(s, known, e.scope.Filter, func() time.Time { return time.Now().UTC() }))
	e.clock.ShareWith(e.tracker.Load(), stored.Position)
	if len(e.watermarks.series) > 0 {
		e.tracker.Load().KeepSum()
	}
	e.stored, e.aheadUpTo, e.requested.pending = stored, stored.AheadUpTo, stored.PendingSnapshots()
	if stored.Position != "" {
		e.stored = event.StoredScope{ID: stored.ID}
		e.position.Store(&stored.Position)
	}
}

// currentPosition returns the position to watch from; "" if the scope has to be listed. Safe for concurrent use.
func (e *emitter) currentPosition() string {
	if p := e.position.Load(); p != nil {
		return *p
	}
	return ""
}

// appendObservation appends an observation, unless it is empty, and only then advances the position (I1). Errors are of type
// *appendError.
func (e *emitter) appendObservation(ctx context.Context, o event.Observation) error {
	empty := len(o.Changes)+len(o.Known)+len(o.RemovedKeys)+len(o.Bodies) == 0
	if empty && o.LostReason == "" && (o.Position == "" || o.Position == e.currentPosition()) {
		return nil
	}
	e.addPreface(&o)
	e.trackAhead(&o)
	if err := e.append(ctx, o); err != nil {
		return &appendError{err}
	}
	if o.LostReason != "" {
		e.stored.LostReason = o.LostReason
	}
	if o.Snapshot != "" {
		e.stored.Snapshot = o.Snapshot
	}
	if o.Position != "" {
		e.position.Store(&o.Position)
		e.stored = event.StoredScope{ID: e.scope.ID}
	}
	return nil
}

// emitEvents emits what changed with a batch of events. position is that of the last event; "" during a list. Events
// that are older than the position, as some servers send them, do not bring it back.
func (e *emitter) emitEvents(ctx context.Context, events []deltas.Event, position string) error {
	if now := e.currentPosition(); position != "" && isLaterPosition(position, now) {
		position = now
	}
	o, err := e.tracker.Load().ObserveEvents(events, position)
	return e.appendObserved(ctx, o, err)
}

// appendObserved appends an observation that may have failed, after which the snapshot in progress may be complete.
func (e *emitter) appendObserved(ctx context.Context, o event.Observation, err error) error {
	if err != nil {
		return &appendError{err}
	}
	if err := e.appendObservation(ctx, o); err != nil {
		return err
	}
	e.checkSnapshot()
	return nil
}

// emitSync emits an object again, if it is still in the version that was emitted last. pass names the resync, which reads at
// a position.
func (e *emitter) emitSync(ctx context.Context, o *deltas.Object, pass, position string) error {
	again, err := e.tracker.Load().ObserveSynced(o, pass, position)
	if err != nil {
		return &appendError{err}
	}
	return e.appendObservation(ctx, again)
}

// storeBodies stores the bodies of objects that are still in the known version, and returns their number.
func (e *emitter) storeBodies(ctx context.Context, objects []*deltas.Object) (int, error) {
	o := e.tracker.Load().ObserveBodies(objects)
	return len(o.Bodies), e.appendObservation(ctx, o)
}

// loseHistory gives up the position. The next list begins with a gap after it (I5).
func (e *emitter) loseHistory(why string) {
	e.lostAt = e.currentPosition()
	e.stored = event.StoredScope{ID: e.scope.ID, LostReason: why}
	e.position.Store(nil)
	e.aheadUpTo = ""
	e.requested.endAttempt()
	e.watermarks.startEpoch()
}

// beginList starts a list that is consistent at a position. The records that precede its objects, a gap (I5) and the
// begin of a snapshot, are appended with the first observation: a list that fails before leaves none, and the next one
// begins anew.
func (e *emitter) beginList(position string) {
	t, s := e.tracker.Load(), e.stored
	l := deltas.List{Pass: s.Pass, Again: strings.HasPrefix(s.Pass, snapshotAgain), Position: position, Name: rand.Text()}
	l.Compared = strings.HasPrefix(s.Pass, filterCompared)
	if l.Pass == snapshotAgain {
		l.Pass = ""
	}
	e.preface = nil
	if s.Snapshot == "" { // otherwise the first list was interrupted, and its records are appended
		var first []*event.Change
		if s.LostReason != "" {
			gap := t.NewGap(e.lostAt, position, s.LostReason)
			if gap.Pass = l.Pass; gap.Pass == "" && !isLaterPosition(e.lostAt, position) {
				gap.Pass = rand.Text() // history between the same two positions may be lost again: the ID has to differ (I4)
			}
			first = append(first, gap)
		}
		if l.Again || t.KnownCount() == 0 && s.Pass == "" {
			s.Snapshot = rand.Text()
			first = append(first, t.NewSnapshotBegin(s.Snapshot))
		}
		e.preface = &preface{changes: first, lostReason: s.LostReason, snapshot: s.Snapshot, position: position}
	}
	if s.Snapshot != "" {
		l.Snapshot = &event.SnapshotInfo{ID: s.Snapshot}
	}
	t.StartList(l)
}

// preface is what precedes the objects of a list.
type preface struct {
	changes              []*event.Change
	lostReason, snapshot string
	position             string // of the list
}

// addPreface adds the records that precede the objects of a list to its first observation.
func (e *emitter) addPreface(o *event.Observation) {
	if e.preface == nil {
		return
	}
	first := e.tracker.Load().NewObservation(e.preface.changes...)
	o.Changes = append(first.Changes, o.Changes...)
	o.LostReason, o.Snapshot = e.preface.lostReason, e.preface.snapshot
	if o.LostReason != "" {
		e.lostAt = e.preface.position
	}
	e.preface = nil
}

// isLaterPosition reports whether to is after from; false if one of them is unknown.
func isLaterPosition(from, to string) bool {
	order, _ := resourceversion.Compare(from, to)
	return order < 0
}

// finishList emits the known objects that the list lacked as deleted (I8), and then sets the position. aheadUpTo is the
// version of later parts of the list; "" if there are none of another version.
func (e *emitter) finishList(ctx context.Context, position, aheadUpTo string) error {
	if err := e.emitMissingDeletes(ctx); err != nil {
		return err
	}
	e.aheadUpTo = aheadUpTo
	return e.appendObservation(ctx, e.tracker.Load().FinishList(position))
}

// emitMissingDeletes emits deletes for all known objects that the current list lacked.
func (e *emitter) emitMissingDeletes(ctx context.Context) error {
	for more := true; more; {
		o, again, err := e.tracker.Load().ObserveMissing()
		if err != nil {
			return &appendError{err}
		}
		if err := e.appendObservation(ctx, o); err != nil {
			return err
		}
		more = again
	}
	return nil
}

// emitAllDeletes emits deletes for all known objects. pass names the comparison with edited rules if the objects may still
// exist and only left the selection; otherwise it is empty.
func (e *emitter) emitAllDeletes(ctx context.Context, pass string) error {
	e.tracker.Load().StartList(deltas.List{Pass: pass, Name: rand.Text()})
	if err := e.emitMissingDeletes(ctx); err != nil {
		return fmt.Errorf("emit the deletes of %s: %w", e.scope.ID, err)
	}
	return nil
}

// WatermarkSeries is how often each scope emits a watermark, and for which sinks.
type WatermarkSeries struct {
	Every time.Duration
	Sinks []string // names of sinks
}

// watermarks are the series of watermarks of one scope. It belongs to the goroutine that appends.
type watermarks struct {
	selection string // see [selection.Scope.Fingerprint]
	series    []*series
	timer     *time.Timer // fires when the next watermark is due; nil if there is no series
	wanted    atomic.Bool // all are due, also at the position of the last ones
}

// series is one series of watermarks.
type series struct {
	WatermarkSeries
	epoch    string
	sequence uint64 // of the last watermark
	position string // of the last watermark; "" if there is none in this epoch
	due      time.Time
}

func newWatermarks(of selection.Scope, all []WatermarkSeries) *watermarks {
	w := &watermarks{selection: of.Fingerprint()}
	for _, s := range all {
		w.series = append(w.series, &series{WatermarkSeries: s})
	}
	w.startEpoch()
	if len(all) > 0 {
		w.timer = time.NewTimer(0)
	}
	return w
}

// startEpoch begins a new epoch in every series: positions may be lower than before, or of another selection, which the name
// of the epoch ends with.
func (w *watermarks) startEpoch() {
	for _, s := range w.series {
		s.epoch, s.sequence, s.position = rand.Text()+event.EpochSeparator+w.selection, 0, ""
	}
}

// dueChannel returns the channel on which a watermark falls due; nil if there is no series.
func (w *watermarks) dueChannel() <-chan time.Time {
	if w.timer == nil {
		return nil
	}
	return w.timer.C
}

// takeDue returns the watermarks that are due at a position, and sets the timer for those that follow. A series that had a
// watermark at this position needs no other one. Sinks that are incomplete get none.
func (w *watermarks) takeDue(position string, now time.Time, isIncomplete func(sink string) bool) (due []event.WatermarkInfo) {
	next, wanted := time.Time{}, position != "" && w.wanted.Swap(false)
	for _, s := range w.series {
		if wanted {
			s.due, s.position = now, ""
		}
		if !now.Before(s.due) {
			s.due = now.Add(s.Every)
			complete := slices.DeleteFunc(slices.Clone(s.Sinks), isIncomplete)
			if position != "" && position != s.position && len(complete) > 0 {
				s.position = position
				s.sequence++
				due = append(due, event.WatermarkInfo{Epoch: s.epoch, Sequence: s.sequence, Sinks: complete})
			}
		}
		if next.IsZero() || s.due.Before(next) {
			next = s.due
		}
	}
	if w.timer.Reset(next.Sub(now)); position != "" && w.wanted.Load() { // since
		w.timer.Reset(0)
	}
	return due
}

// request lets all series have a watermark now. It is safe for concurrent use.
func (w *watermarks) request() {
	if w.timer != nil {
		w.wanted.Store(true)
		w.timer.Reset(0)
	}
}

// emitWatermarks emits the watermarks that are due. Everything up to the position was appended before, because one goroutine
// appends all of a scope, in order. While known objects may be newer than the position, they are no state of the cluster:
// then there is none. A new sink that still gets a snapshot does not have everything up to the position.
func (e *emitter) emitWatermarks(ctx context.Context, now time.Time) error {
	position := e.currentPosition()
	if e.aheadUpTo != "" {
		position = ""
	}
	for _, info := range e.watermarks.takeDue(position, now, e.requested.isIncomplete) {
		t := e.tracker.Load()
		if err := e.appendObservation(ctx, t.NewObservation(t.NewWatermark(position, info))); err != nil {
			return err
		}
	}
	return nil
}

// trackAhead sets up to which version known objects may be newer than the position of an observation.
func (e *emitter) trackAhead(o *event.Observation) {
	if o.Position == "" || e.aheadUpTo == "" {
		return
	}
	if order, ordered := resourceversion.Compare(o.Position, e.aheadUpTo); ordered && order >= 0 {
		e.aheadUpTo = ""
	}
	o.AheadUpTo = e.aheadUpTo
}
