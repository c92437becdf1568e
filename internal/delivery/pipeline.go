package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// The workqueue asks our back-off when a failed lane may try again.
var _ workqueue.TypedRateLimiter[*lane] = (*ratelimit.Backoff[*lane])(nil)

// Pipeline moves changes from the journal to one sink. Make it with [New] and call [Pipeline.Run] once.
type Pipeline struct {
	sinkName string
	sink     sinks.Sink
	journal  Journal
	cfg      Config
	log      *slog.Logger

	backlog     *backlog
	backoff     *ratelimit.Backoff[*lane]
	bucket      *ratelimit.Bucket
	gate        *ratelimit.Gate
	breaker     *breaker
	laneMu      sync.Mutex                                  // held while a lane is named or replaced, until the backlog knows of it
	queue       workqueue.TypedRateLimitingInterface[*lane] // made by Run: it owns a goroutine
	health      *health
	digest      logDigest
	workers     sync.WaitGroup
	substituted atomic.Int64 // workers that have a substitute
	toSchedule  []*lane      // of the dispatcher: scheduled lanes the workqueue does not have yet

	stateful      sinks.Stateful // the sink, if it is one
	restoredState []byte         // the state it begins with
	storeRequests atomic.Uint64  // calls of store
	storeMu       sync.Mutex     // held while progress is stored
	storesCovered uint64         // so many of the calls are covered by a write; under storing

	nextSettle atomic.Pointer[time.Time] // not before then; nil at once

	abort context.CancelCauseFunc // ends Run with a cause; made by it

	drainTo    atomic.Pointer[uint64] // where the drain ends; nil while there is none
	draining   context.Context        // ends when there is one
	startDrain context.CancelFunc

	retries    atomic.Uint64
	violations atomic.Uint64
}

// New returns a pipeline that delivers what follows start in journal to sink. name is the sink's configured name and is
// part of what it logs. layout names what the sink's lane names depend on (its kind, target and naming scheme): when it
// is not start.Layout, the lane positions of start are ignored and delivery goes on from start.Low. The pipeline uses
// the sink but does not close it.
func New(name string, sink sinks.Sink, layout string, journal Journal, start event.Cursor, cfg Config,
	log *slog.Logger,
) *Pipeline {
	cfg = cfg.withDefaults()
	log = log.With("sink", name)
	stateful, _ := sink.(sinks.Stateful)
	if cfg.IsFenced {
		stateful = nil
	}
	_, canPing := sink.(sinks.Pinger)
	draining, drain := context.WithCancel(context.Background())
	return &Pipeline{
		sinkName: name,
		sink:     sink,
		journal:  journal,
		cfg:      cfg,
		log:      log,
		backlog:  newBacklog(layout, cfg.WindowBytes, start),
		backoff:  ratelimit.NewBackoff[*lane](cfg.Retry.Min, cfg.Retry.Max, rand.Float64),
		bucket:   ratelimit.NewBucket(cfg.Rate, cfg.Burst),
		gate:     ratelimit.NewGate(cfg.Retry.Min, cfg.Retry.Max, rand.Float64, nil),
		health:   newHealth(log, canPing),
		digest:   logDigest{log: log},
		breaker:  newBreaker(sink),

		stateful:      stateful,
		restoredState: start.State,
		draining:      draining,
		startDrain:    drain,
	}
}

// Run delivers until ctx ends or a drain is complete, and blocks until every Publish has returned and the cursor is
// stored. It returns nil when a drain is complete; the cause of ctx's end when that came first, after one log line that
// says what is left undelivered (it is in the journal, not lost); else an error of the journal, a *sinks.LostError: then run
// another pipeline that starts where that says; or a *sinks.DeposedError: then another process delivers.
func (p *Pipeline) Run(ctx context.Context) error {
	ctx, p.abort = context.WithCancelCause(ctx)
	defer p.abort(nil)
	p.restoreState()
	p.resumeLanes()
	p.queue = workqueue.NewTypedRateLimitingQueue[*lane](p.backoff)
	defer p.health.close()
	working, stopWorking := context.WithCancel(ctx)
	settling, stopSettling := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorking()
	defer stopSettling()

	for range p.cfg.Workers {
		p.workers.Go(func() { p.serveLanes(working) })
	}
	p.workers.Go(func() {
		if err := p.catchUpLanes(working); err != nil {
			p.abort(err)
		}
	})
	p.workers.Go(func() { p.pingSink(working) })
	var settler sync.WaitGroup
	settler.Go(func() { p.settleRegularly(settling) })

	err := p.dispatchChanges(ctx)

	// The order of stopping: no new work, then wait for what is in flight, then store how far it got.
	stopWorking()
	p.queue.ShutDown()
	p.workers.Wait()
	stopSettling()
	settler.Wait()
	settle := p.storeIfAdvanced
	if classifyError(err) == failureLost {
		settle = p.storeProgress // what the sink knows of the loss, at least
	}
	if settleErr := settle(ctx); settleErr != nil {
		err = errors.Join(err, settleErr)
	}
	p.updateHealth(time.Now())
	p.reportStop(err)
	return err
}

// reportStop says in one line how the pipeline ended.
func (p *Pipeline) reportStop(err error) {
	s := p.Stats()
	if err == nil {
		p.log.Info("drained: everything is delivered", "upTo", s.Low, "deadLetters", s.DeadLetters)
		return
	}
	if classifyError(err) == failureDeposed {
		return // whoever runs the pipeline says what follows
	}
	attrs := []any{
		"settledUpTo", s.Low, "readUpTo", s.Read, "readButUndelivered", s.Pending, "lanesBehind", s.LanesLagging,
		"deadLetters", s.DeadLetters,
	}
	if upTo := p.drainTo.Load(); upTo != nil && *upTo > s.Read {
		attrs = append(attrs, "unread", *upTo-s.Read)
	}
	p.log.Warn("stopped before everything was delivered; the rest is delivered after the next start, or by whoever takes over",
		append(attrs, "cause", err)...)
}

// Drain makes Run return once every change up to this offset, the last of the journal, is settled. Call it after the
// source has stopped, at most once, before or while Run runs. The deadline is the end of Run's context.
func (p *Pipeline) Drain(upTo uint64) {
	p.drainTo.Store(&upTo)
	p.startDrain()
}

// isReadUpToDrain reports whether all that a drain asks for was read.
func (p *Pipeline) isReadUpToDrain() bool {
	upTo := p.drainTo.Load()
	return upTo != nil && p.backlog.readPosition() >= *upTo
}

// journalError says which pipeline ended by which operation.
func (p *Pipeline) journalError(doing string, err error) error {
	return fmt.Errorf("sink %q: %s: %w", p.sinkName, doing, err)
}
