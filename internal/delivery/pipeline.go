package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// inFlightTimeout is how long a pipeline that stops waits for what it has in flight. What is in doubt after that may be sent
// twice by a later pipeline.
const inFlightTimeout = 500 * time.Millisecond

// laneIdleTimeout is how long a lane has to be idle before it is removed; removal may take twice as long.
const laneIdleTimeout = time.Minute

// Pipeline moves changes from the journal to one sink. Create it with [New] and call [Pipeline.Run] once; its other methods
// are safe for concurrent use.
type Pipeline struct {
	sink sinks.Sink
	cfg  *Config
	log  *slog.Logger

	backlog *backlog
	queue   *laneQueue
	gate    *ratelimit.Gate
	health  *health
	digest  *logDigest
	drain   *drainRequest

	resolver      *laneResolver
	dispatcher    *dispatcher
	catchUp       *catchUpReader
	workers       *workerPool
	repartitioner *repartitioner
	settler       *settler

	startState []byte // Cursor.State of the cursor that the pipeline starts from

	abort context.CancelCauseFunc // ends Run with a cause; set by Run before it starts anything
}

// New returns a pipeline that delivers to sink what follows start in journal. name is the configured name of the sink and is
// part of log lines and errors. layout names what the lane names of the sink depend on (its kind, target and naming scheme):
// if it differs from start.Layout, the lane positions of start are ignored and delivery continues after start.Low. The
// pipeline uses the sink but does not close it.
func New(name string, sink sinks.Sink, layout string, journal Journal, start event.Cursor, config Config,
	log *slog.Logger,
) *Pipeline {
	config = config.withDefaults()
	if start.Resending > 0 { // what is delivered may be older than what was lost and delivered before that
		config.AlreadyDelivered = nil
	}
	cfg, log := &config, log.With("sink", name)
	_, canPing := sink.(sinks.Pinger)
	requested, request := context.WithCancel(context.Background())
	policy := newRejectionPolicy(cfg.SuspectAfter)
	p := &Pipeline{
		sink:       sink,
		cfg:        cfg,
		log:        log,
		backlog:    newBacklog(layout, cfg.WindowBytes, start, cfg.WhyHeld),
		queue:      &laneQueue{backoff: ratelimit.NewBackoff[*lane](cfg.Retry.Min, cfg.Retry.Max, rand.Float64)},
		gate:       ratelimit.NewGate(cfg.Retry.Min, cfg.Retry.probeMax(), rand.Float64, nil),
		health:     newHealth(name, log, canPing),
		digest:     &logDigest{log: log},
		drain:      &drainRequest{requested: requested, request: request},
		resolver:   &laneResolver{sinkName: name, sink: sink, cfg: cfg},
		startState: start.State,
	}
	p.resolver.laneLister, _ = sink.(sinks.LaneLister)
	p.dispatcher = &dispatcher{
		sinkName: name, journal: journal, backlog: p.backlog, resolver: p.resolver, queue: p.queue, gate: p.gate, drain: p.drain,
		pause: cfg.Pause,
	}
	p.catchUp = &catchUpReader{
		sinkName: name, journal: journal, resolver: p.resolver, queue: p.queue,
		plan: newRereadPlan(p.backlog),
	}
	p.settler = &settler{sinkName: name, log: log, journal: journal, backlog: p.backlog, policy: policy, cfg: cfg}
	p.settler.stateful, _ = sink.(sinks.Stateful)
	p.settler.observer, _ = sink.(sinks.SettleObserver)
	p.workers = &workerPool{
		log: log, sink: sink, cfg: cfg, backlog: p.backlog, queue: p.queue,
		gate: p.gate, policy: policy, health: p.health, digest: p.digest,
		isStateful: p.settler.stateful != nil, ahead: lookAhead{journal: journal, resolver: p.resolver, backlog: p.backlog},
		store: p.settler.storeProgress, abort: p.abortWith,
	}
	p.workers.destinations, _ = sink.(sinks.MultiDestination)
	p.workers.sizes, _ = sink.(sinks.SizeAnnouncer)
	repartitions, _ := sink.(sinks.Repartitioner)
	p.repartitioner = &repartitioner{
		log: log, sink: repartitions, resolver: p.resolver, queue: p.queue, health: p.health, replacer: newLaneReplacer(p.backlog),
	}
	return p
}

// Run delivers until ctx ends or a drain is complete. It returns after every Publish has returned and the cursor is stored.
// Its error is nil when a drain is complete; the cause of ctx's end if that came first, after one log line about what is
// left undelivered (it is in the journal, not lost); a *sinks.LostError, after which the caller runs another pipeline from
// the position in that; a *sinks.DeposedError if another process delivers; else an error of the journal.
func (p *Pipeline) Run(ctx context.Context) error {
	ctx, p.abort = context.WithCancelCause(ctx)
	defer p.abort(nil)
	if p.cfg.DeadLetters != nil {
		offsets, err := p.cfg.DeadLetters(p.backlog.cursor.storedLow)
		if err != nil {
			return journalError(p.resolver.sinkName, "read the dead letters", err)
		}
		p.backlog.recordDeadLetters(offsets)
	}
	p.settler.restoreState(p.startState)
	p.startState = nil
	if p.repartitioner.sink != nil {
		p.repartitioner.sink.ResumeLanes(p.backlog.laggingLanes())
	}
	p.queue.open()
	defer p.health.close()
	working, stopWorking := context.WithCancel(context.WithoutCancel(ctx))
	housekeepingCtx, stopHousekeeping := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorking()
	defer stopHousekeeping()

	p.workers.start(ctx, working)
	p.workers.running.Go(func() {
		if err := p.catchUp.run(ctx); err != nil {
			p.abort(err)
		}
	})
	p.workers.running.Go(func() { p.pingSink(ctx) })
	var housekeeping sync.WaitGroup
	housekeeping.Go(func() { p.runHousekeeping(housekeepingCtx) })

	err := p.dispatcher.run(ctx)

	// The order of stopping: no new work, then wait for what is in flight, then store how far it got.
	p.abort(err)
	p.queue.close()
	defer time.AfterFunc(inFlightTimeout, stopWorking).Stop()
	p.workers.running.Wait()
	stopWorking()
	stopHousekeeping()
	housekeeping.Wait()
	store := p.settler.storeIfAdvanced
	if classifyError(err) == failureLost {
		store = p.settler.storeProgress // the state of the sink has changed, even if the cursor has not
	}
	if storeErr := store(ctx); storeErr != nil {
		err = errors.Join(err, storeErr)
	}
	p.updateHealth(time.Now())
	p.logStop(err)
	return err
}

func (p *Pipeline) abortWith(err error) { p.abort(err) }

// runHousekeeping stores progress every SettleInterval until ctx ends, and does what else has to be done regularly. If
// progress cannot be stored, delivery goes on until the window is full of dead letters, at worst sending more again after a
// crash, and the next interval tries again.
func (p *Pipeline) runHousekeeping(ctx context.Context) {
	settle := time.NewTicker(p.cfg.SettleInterval)
	defer settle.Stop()
	idle := time.NewTicker(laneIdleTimeout)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-settle.C:
			if notBefore := p.settler.notBefore.Load(); notBefore == nil || !now.Before(*notBefore) {
				p.health.recordStore(p.settler.storeIfAdvanced(ctx))
			}
			p.updateHeldLanes()
			p.repartitioner.applyPending()
			p.updateHealth(now)
		case <-idle.C:
			p.removeIdleLanes()
		}
	}
}

// updateHeldLanes lets lanes catch up that are held no longer, and reports those that are.
func (p *Pipeline) updateHeldLanes() {
	held, released := p.backlog.updateHeld()
	for name, err := range held {
		p.health.recordFailure(name, err)
	}
	for _, name := range released {
		p.health.forgetLane(name)
	}
}

// updateHealth evaluates the condition of the sink and logs what was gathered.
func (p *Pipeline) updateHealth(now time.Time) {
	var s Stats
	p.backlog.fillStats(&s)
	p.health.updateConditions(s, p.cfg.Pause.isPaused())
	p.digest.writeIfDue(now, s.Truncated)
}

func (p *Pipeline) removeIdleLanes() {
	p.workers.policy.removeStale(time.Now())
	p.resolver.mu.Lock()
	defer p.resolver.mu.Unlock()
	var idle []sinks.Lane
	for _, l := range p.backlog.removeIdleLanes() {
		p.queue.resetBackoff(l)
		idle = append(idle, l.name)
	}
	if s, ok := p.sink.(sinks.LaneReleaser); ok && len(idle) > 0 {
		s.ReleaseLanes(idle)
	}
}

// pingSink pings the destination while nothing is acknowledged, so that readiness of an idle exporter is current.
func (p *Pipeline) pingSink(ctx context.Context) {
	pinger, ok := p.sink.(sinks.Pinger)
	if !ok {
		return
	}
	isIdle := func() bool { return p.backlog.isQuietSince(time.Now().Add(-pingInterval)) }
	ping := func(ctx context.Context) error {
		p.health.recordPingStart(time.Now())
		err := pinger.Ping(ctx)
		if classifyError(err) == failureLost {
			p.abort(err)
		}
		return err
	}
	PingRegularly(ctx, ping, p.cfg.Retry, isIdle, p.health.recordPing)
}

func (p *Pipeline) logStop(err error) {
	s := p.Stats()
	if err == nil {
		p.log.Info("drained: everything is delivered", "upTo", s.Low, "deadLetters", s.DeadLetters)
		return
	}
	if classifyError(err) == failureDeposed {
		return // the caller of Run logs what follows
	}
	attrs := []any{
		"settledUpTo", s.Low, "readUpTo", s.Read, "readButUndelivered", s.Pending, "lanesBehind", s.LanesLagging,
		"deadLetters", s.DeadLetters,
	}
	if upTo := p.drain.upTo.Load(); upTo != nil && *upTo > s.Read {
		attrs = append(attrs, "unread", *upTo-s.Read)
	}
	level := slog.LevelInfo
	if p.drain.upTo.Load() != nil {
		level = slog.LevelWarn
	}
	p.log.Log(context.Background(), level, "stopped before everything was delivered; the rest stays in the journal", append(attrs, "cause", err)...)
}

// Drain makes Run return when every change up to this offset, the last one of the journal, is settled. Call it at most once,
// after the source has stopped, before or during Run. The deadline is the end of Run's context.
func (p *Pipeline) Drain(upTo uint64) {
	p.drain.upTo.Store(&upTo)
	p.drain.request()
}

// IsBlocked reports whether a drain has read everything that it has to deliver, and what is not settled is in lanes that
// fail or are held.
func (p *Pipeline) IsBlocked() bool {
	return p.drain.isReachedAt(p.backlog.readPosition()) && p.backlog.isBlocked()
}

// Stats returns the current state. It may be called at any time, also before and after Run, and looks at every lane with
// unsettled changes.
func (p *Pipeline) Stats() Stats {
	s := Stats{Retries: p.workers.retries.Load(), ContractViolations: p.workers.violations.Load(), GateClosed: p.gate.Status().State != ratelimit.Open}
	p.backlog.fillStats(&s)
	p.backlog.fillLanes(&s, time.Now())
	p.health.fillStats(&s)
	return s
}

func journalError(sinkName, operation string, err error) error {
	return fmt.Errorf("sink %q: %s: %w", sinkName, operation, err)
}

// Journal is what a pipeline needs of the journal.
type Journal interface {
	// Read returns the records that follow an offset: at least one, ascending, without a hole. It blocks until there is one
	// or ctx ends. Changes may alias one buffer; the pipeline does not modify them. An error ends the pipeline. Several
	// goroutines call it concurrently: the dispatcher, the catch-up reader, and workers that look ahead.
	Read(ctx context.Context, after uint64) ([]event.Record, error)

	// Settle stores the cursor and the dead letters in one atomic write, which is durable when it returns nil (I2). After an
	// error it is open whether they are stored, and a later call has both again: dead letters are identified by their Offset.
	// Calls are not concurrent.
	Settle(ctx context.Context, c event.Cursor, dead []event.DeadLetter) error
}

// Config bounds one pipeline. The zero value of a field stands for its default. Its functions are called concurrently.
type Config struct {
	Retry RetryConfig

	// FormerName is the name that the sink had before; "" for none. Records for that name alone are for this sink.
	FormerName string

	// DeadLetters returns the offsets of the sink's dead letters behind an offset, ahead of the cursor: these changes are not
	// published. Run calls it once. nil: there are none.
	DeadLetters func(after uint64) ([]uint64, error)

	// SuspectAfter: a destination that has accepted nothing for so long, or nothing yet, and has rejected 20 changes, or any
	// other one that has rejected 100 in a row, is suspected to reject everything; no further changes become dead letters until
	// it accepts one. Default 10 minutes; negative: every rejection is believed.
	SuspectAfter time.Duration

	// WindowBytes bounds the changes that are read but not settled, by event.Change.Size. A larger single change passes alone.
	// The changes are copies, which keep no journal frame alive. By default 16 MiB, and 16 KiB more for each lane, up to
	// 64 MiB.
	WindowBytes int64

	// Workers bounds concurrent Publish calls, and so how many lanes are in flight. Default 8: a Publish waits for the
	// network most of its time.
	Workers int

	// BatchBytes and BatchMessages bound one Publish; a larger single change is a batch of its own. Defaults 960 KiB, which
	// with the envelopes of the changes mostly fits one request of a megabyte, and 1000. Sinks that have several requests in
	// flight in one Publish ask for more, see [sinks.Batched].
	BatchBytes    int64
	BatchMessages int

	// Route returns whether a change is for this sink, and its topic; nil sends all changes to the sink's own topic. It must
	// be a pure function of the change and of what the pipeline's layout names.
	Route func(*event.Change) Route

	// AlreadyDelivered reports whether an earlier process delivered a change through this lane; such a change is settled when
	// it is read. Like Route it must be a pure function. nil: none was. While a loss is sent again, also by a pipeline of an
	// earlier process, it is not asked.
	AlreadyDelivered func(sinks.Lane, *event.Change) bool

	// WhyHeld returns why nothing may be published to a lane yet; nil if it may be, which does not change any more. The changes
	// of a held lane stay in the journal, and AlreadyDelivered is asked about them when it is held no longer. nil: none is.
	WhyHeld func(sinks.Lane) error

	// Pause holds back every Publish while it is on. It is shared by all pipelines of the sink. nil: it is never on.
	Pause *PauseSwitch

	// Truncate returns a copy of a change that the sink rejected as too large, with less in it and the same ID; false if
	// nothing is left to remove. It must be a pure function. nil: every change that is too large becomes a dead letter.
	Truncate func(*event.Change) (*event.Change, bool)

	// PublishDeadLetter publishes a dead letter before it is stored. A *sinks.RejectedError means that it is only stored, with
	// that error as part of the reason; after any other error the lane waits and tries again. It is called again for the same
	// change after a crash. nil: dead letters are only stored.
	PublishDeadLetter func(ctx context.Context, c *event.Change, reason string) error

	// ObservePublish is called with the duration of each Publish. May be nil.
	ObservePublish func(time.Duration)

	// OnAcknowledged is called for each change as soon as the destination has acknowledged it. It must not block and not keep
	// the change. May be nil.
	OnAcknowledged func(*event.Change)

	// SettleInterval is how often progress is stored, and so how much is sent again after a crash. Default 200 ms.
	SettleInterval time.Duration

	// NewestOffset is the newest offset of the journal before this process appended to it. RoutingFingerprint changes with
	// everything that decides which changes reach which lane in which order: routes, the format, the sink's topic and address,
	// and how this version of the program applies them. Both are for a [sinks.Stateful]: its stored state counts only
	// under the same RoutingFingerprint.
	NewestOffset       uint64
	RoutingFingerprint string
}

// Route is the destination of one change.
type Route struct {
	Skip  bool            // not for this sink
	Topic *sinks.Template // nil: the sink's own; otherwise the sink must be a sinks.Router
	// Partial is set for a watermark if the sink does not get all changes of its scope: it loses its digest.
	Partial bool
}

// RetryConfig bounds the waits after failures, of a lane and of the whole sink: they grow from Min to Max, with jitter.
// Retries never end. Defaults 100 ms and 30 s.
type RetryConfig struct {
	Min, Max time.Duration
}

// probeMax returns the longest wait between two attempts at a destination that is away as a whole.
func (c RetryConfig) probeMax() time.Duration { return max(c.Min, min(c.Max, maxProbeDelay)) }

func (c Config) withDefaults() Config {
	c.Retry.Min = cmp.Or(c.Retry.Min, 100*time.Millisecond)
	c.Retry.Max = cmp.Or(c.Retry.Max, max(30*time.Second, c.Retry.Min))
	c.SuspectAfter = cmp.Or(c.SuspectAfter, 10*time.Minute)
	c.Workers = cmp.Or(c.Workers, 8)
	c.BatchBytes = cmp.Or(c.BatchBytes, 15<<16)
	c.BatchMessages = cmp.Or(c.BatchMessages, 1000)
	c.SettleInterval = cmp.Or(c.SettleInterval, 200*time.Millisecond)
	c.Pause = cmp.Or(c.Pause, NewPauseSwitch())
	return c
}
