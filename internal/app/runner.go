package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

type runner struct {
	*configuredSink
	deadLetters *deadLetterPublisher // publishes dead letters in addition to the journal; nil for the journal alone
	journal     sinkJournal
	log         *slog.Logger
	newPipeline func(start event.Cursor) *delivery.Pipeline
	watermarks  *watermarkAges
	pause       *delivery.PauseSwitch
	paused      func() condition.Status // whether a signal has paused the sink
	unread      *condition.Condition    // the sink or lanes of it are not fenced or read back after a failover
	lost        *condition.Condition    // changes are missing at the destination
	orphaned    *condition.Condition    // rows of deleted objects remain at the destination
	renew       renewal

	// recoverLanes calls ready once the pipeline may start, and returns when all lanes are fenced and read back. An error ends
	// the pipeline.
	recoverLanes func(ctx context.Context, ready func()) error
	recordLoss   func(ctx context.Context) error // in the replicated state, before anything is sent again
	unfenced     atomic.Bool                     // the pipeline may not start yet
	losses       atomic.Uint64                   // that the destination reported
	missing      atomic.Uint64                   // changes that are lost and were not in the journal any more, at most

	mu          sync.Mutex
	pipeline    *delivery.Pipeline
	drainTarget *uint64 // offset of the drain; nil before it begins

	deliveryTask *task // nil before startDelivery
	closing      sync.Once
}

func (r *runner) startDelivery(retry config.Retry, failed func(error)) {
	r.deliveryTask = startTask("sink "+r.name, r.runPipelines, failed)
	if r.deadLetters != nil {
		r.deadLetters.startPinging(retry, failed)
	}
}

const (
	// awayInterval separates two looks at a sink that a drain waits for.
	awayInterval = 100 * time.Millisecond
	// silenceOfAway is how long a destination may acknowledge nothing during a stop, until it counts as away. A successor
	// reads back what was sent to it and not acknowledged.
	silenceOfAway = 3 * time.Second
)

// awaitDrained waits until a drain is complete or ctx ends. It also ends when the sink is paused or, with leaveAway, away,
// and returns false then.
func (r *runner) awaitDrained(ctx context.Context, leaveAway bool) (waited bool) {
	if r.deliveryTask == nil {
		return true
	}
	begun := time.Now()
	look := time.NewTicker(awayInterval)
	defer look.Stop()
	for {
		select {
		case <-r.deliveryTask.done:
			return true
		case <-ctx.Done():
			return true
		case <-look.C:
			s := r.currentPipeline().Stats()
			isPaused := !r.pause.PausedSince().IsZero() && s.Low < *r.drainTarget // which this goroutine has set
			if isPaused || leaveAway && r.isAway(s, begun) {
				return false
			}
		}
	}
}

// isAway reports whether the sink delivers nothing now: it is away as a whole, or so are all lanes that the drain waits for,
// or it has not answered for a while since the drain began.
func (r *runner) isAway(s delivery.Stats, begun time.Time) bool {
	silent := time.Since(begun) > silenceOfAway && time.Since(s.LastAck) > silenceOfAway
	return silent || r.unfenced.Load() || s.Condition.Severity >= condition.NotReady || r.currentPipeline().IsBlocked()
}

func (r *runner) stopDelivery() {
	if r.deadLetters != nil {
		r.deadLetters.stopPinging()
	}
	r.deliveryTask.stop()
}

// closeSinks closes the sink and that of its dead letters. Later calls do nothing.
func (r *runner) closeSinks(ctx context.Context) error {
	var errs []error
	r.closing.Do(func() {
		r.unread.Close()
		r.lost.Close()
		r.orphaned.Close()
		if err := r.sink.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("close sink %s: %w", r.name, err))
		}
		if p := r.deadLetters; p != nil {
			if err := p.router.Close(ctx); err != nil {
				errs = append(errs, fmt.Errorf("close sink %s for the dead letters of %s: %w", p.target.name, p.owner, err))
			}
		}
	})
	return errors.Join(errs...)
}

// runPipelines runs the pipeline. Whenever the destination reports a loss, it runs another one that begins before the loss.
func (r *runner) runPipelines(ctx context.Context) error {
	var recovering sync.WaitGroup
	defer recovering.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ready := make(chan struct{})
	recovering.Go(func() {
		if err := r.recoverLanes(ctx, func() { close(ready) }); err != nil {
			cancel(err)
		}
	})
	r.unfenced.Store(true)
	select {
	case <-ready:
		r.unfenced.Store(false)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for {
		err := r.currentPipeline().Run(ctx)
		var lost *sinks.LostError
		if !errors.As(err, &lost) || ctx.Err() != nil {
			return err
		}
		start, err := r.rewindCursor(ctx, lost)
		if err != nil {
			return err
		}
		r.replacePipeline(r.newPipeline(start))
	}
}

// rewindCursor stores and returns a cursor from which every change that may be lost is published again. The cursor moves
// back, so I2 is kept: it does not pass a change that the sink has lost. What is no longer in the journal is counted.
func (r *runner) rewindCursor(ctx context.Context, lost *sinks.LostError) (event.Cursor, error) {
	cursor, _, err := r.journal.Cursor(r.name)
	if err != nil {
		return event.Cursor{}, err
	}
	back, missing := delivery.Rewind(lost, cursor, r.journal.Oldest()-1, r.journal.Newest(), r.sink)
	r.log.Warn("the destination lost changes that it had accepted; those that the journal keeps are sent again",
		"reason", lost.Reason, "after", back.Low, "upTo", max(cursor.Low, cursor.High), "lanes", len(lost.Lanes))
	r.recordMissing(missing, lost.Reason)
	if missing > 0 && lost.Renew {
		if err := r.renew(ctx, r.name, lost.Reason); err != nil {
			return event.Cursor{}, fmt.Errorf("renew after a loss: %w", err)
		}
	}
	if err := r.journal.Settle(ctx, back, nil); err != nil {
		return event.Cursor{}, fmt.Errorf("rewind to offset %d: %w", back.Low, err)
	}
	return back, r.recordLoss(ctx)
}

// recordMissing counts changes that a destination has lost and that cannot be sent again.
func (r *runner) recordMissing(changes uint64, reason string) {
	if changes == 0 {
		return
	}
	all := r.missing.Add(changes)
	r.lost.Update(condition.Problem{Code: condition.SinkLost, Cause: fmt.Sprintf("up to %d changes are missing: %s", all, reason)})
}

func (r *runner) currentPipeline() *delivery.Pipeline {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pipeline
}

// replacePipeline replaces a pipeline that has ended. A drain that has begun applies to the new one.
func (r *runner) replacePipeline(p *delivery.Pipeline) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pipeline = p
	r.losses.Add(1)
	if r.drainTarget != nil {
		p.Drain(*r.drainTarget)
	}
}

// drainUpTo makes a running pipeline end when everything up to an offset is settled. Only the first call has an effect.
func (r *runner) drainUpTo(upTo uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.deliveryTask != nil && r.drainTarget == nil {
		r.drainTarget = &upTo
		r.pipeline.Drain(upTo)
	}
}

type sinkJournal struct {
	*journal.Journal
	sink string
}

var _ delivery.Journal = sinkJournal{}

func (s sinkJournal) Settle(ctx context.Context, c event.Cursor, dead []event.DeadLetter) error {
	return s.Journal.Settle(ctx, s.sink, c, dead)
}

// reloader watches the configuration file and applies its changes.
type reloader struct {
	log        *slog.Logger
	current    func() *composition
	apply      func(ctx context.Context, cfg *config.Config, accepted func()) error
	refusal    func(began time.Time, err error) // records a refused configuration
	condition  *condition.Condition
	hangup     chan os.Signal         // requests a reload; nil for never
	activeHash atomic.Pointer[string] // of the configuration that was in force last
	pending    bool                   // the current composition is not in force yet; owned by run
	applied    atomic.Uint64
	refused    atomic.Uint64
}

const (
	maxRefusalBytes = 600         // bounds the reason that is shown
	pendingInterval = time.Second // between two looks at what a pending configuration waits for
)

// run applies changes of the configuration file until ctx ends.
func (r *reloader) run(ctx context.Context) error {
	file := r.current().cfg.File
	if file == "" { // of flags
		<-ctx.Done()
		return nil
	}
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	defer watching.Wait() // ctx has ended
	watching.Go(func() {
		config.Watch(ctx, file, func() { ratelimit.Wake(changed) })
	})
	tick := time.NewTicker(pendingInterval)
	defer tick.Stop()
	for {
		var applied <-chan struct{}
		if r.pending {
			applied = r.current().applied
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			r.reloadFile(ctx, file, false)
		case <-r.hangup:
			r.reloadFile(ctx, file, true)
		case <-applied:
			r.recordApplied()
		case <-tick.C:
		}
		r.condition.UpdateIf(func(now condition.Status) bool { return r.pending && isPending(now) }, configPending(r.current().pendingReason()))
	}
}

// reloadFile reads the file and applies it. With force it does so even if the file has not changed, because the files that
// it refers to, such as passwords, may have.
func (r *reloader) reloadFile(ctx context.Context, file string, force bool) {
	began := time.Now()
	cfg, err := config.Load(file)
	if err == nil && (force || cfg.Hash != r.current().cfg.Hash) {
		err = r.apply(ctx, cfg, func() {
			r.pending = true
			r.condition.Update(configPending(partsChange), "configuration", cfg.Hash)
		})
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		r.refused.Add(1)
		r.refusal(began, err)
		r.condition.Update(condition.Problem{Code: condition.ConfigRefused, Cause: refusalText(err)})
	case !r.pending:
		r.condition.Clear()
	default:
		r.condition.Update(configPending(r.current().pendingReason()))
	}
}

func (r *reloader) recordApplied() {
	cfg := r.current().cfg
	before := r.activeHash.Swap(&cfg.Hash)
	r.pending = false
	r.applied.Add(1)
	r.log.Info("changed configuration applied", "configuration", cfg.Hash, "before", *before)
	r.condition.UpdateIf(isPending, condition.Problem{})
}

func configPending(reason string) condition.Problem {
	return condition.Problem{Code: condition.ConfigPending, Cause: reason}
}

func isPending(now condition.Status) bool { return now.Code == condition.ConfigPending }

func refusalText(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if len(text) > maxRefusalBytes {
		text = strings.ToValidUTF8(text[:maxRefusalBytes], "") + "…"
	}
	return text
}
