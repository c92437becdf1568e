package source

import (
	"context"
	"crypto/rand"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

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
