package app

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/attribution"
	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/involved"
)

// composition is everything that one configuration makes, and the tasks that run it. It does not change: another
// configuration makes another composition, which starts after this one has stopped. Only the memory passes from one to the
// next.
type composition struct {
	*shared
	*memory // set by openParts
	cfg     *config.Config
	span    string    // why it is made: the name of the span that ends when the configuration is in force
	began   time.Time // when it was made

	client      *apiserver.Client
	shaper      *shape.Shaper
	sinks       *sinkSet
	source      *source.Source
	involved    *involved.Index
	protection  *protection
	guard       *sourceGuard
	attribution *attributionRunner  // nil without audit
	holder      *attribution.Holder // nil if nothing is held back
	held        sync.Map            // results of heldFor by resource
	snapshots   *requestedSnapshots
	replays     *requestedReplays
	clock       *condition.Condition
	outdated    *condition.Condition

	open     atomic.Bool   // all parts are made
	applied  chan struct{} // closed once the configuration is in force, see recordApplied
	applying sync.Once
	failed   *failure // of a task of this composition

	sourceTask     *task
	holderTask     *task
	protectionTask *task
	snapshotTask   *task
	replayTask     *task
	orphanTasks    []*task
	closing        sync.Once
}

// newComposition makes the parts of a configuration that need no journal. It reads files and creates none, so that a
// credential that has vanished since the configuration was checked leaves nothing behind, and it opens no connection.
func newComposition(s *shared, cfg *config.Config, span string) (*composition, error) {
	c := &composition{
		shared: s, cfg: cfg, span: span, began: time.Now(), applied: make(chan struct{}), failed: newFailure(),
		clock: condition.New(s.log, "clock", condition.Problem{}), outdated: condition.New(s.log, "rules", condition.Problem{}),
	}
	var err error
	if c.client, err = NewClient(cfg, s.version); err != nil {
		return nil, err
	}
	if cfg.Audit.Webhook.Listen != "" { // its files are read, so that a changed configuration is refused before anything is stopped
		if _, err := audit.NewWebhook(cfg.Audit.Webhook, nil, nil, s.log); err != nil {
			return nil, err
		}
	}
	if c.sinks, err = newSinkSet(s, cfg); err != nil {
		return nil, err
	}
	return c, nil
}

// recordApplied records that the configuration is in force: the source has applied its rules to what the API server serves,
// or the process is on standby, where nothing else is to be done. It is safe for concurrent use.
func (c *composition) recordApplied() {
	c.applying.Do(func() {
		close(c.applied)
		c.telemetry.RecordSpan(c.span, c.began, nil, slog.String("configuration", c.cfg.Hash))
	})
}

// partsChange is the reason why a configuration is pending until all its parts are made.
const partsChange = "the parts of the previous configuration are stopped, and its own are started"

// pendingReason returns why the configuration is not in force yet. It is safe for concurrent use.
func (c *composition) pendingReason() string {
	if !c.open.Load() {
		return cmp.Or(firstCause(c.replica.failoverConditions()), partsChange)
	}
	return firstCause(c.source.Conditions())
}

// openParts makes all parts that need the journal, on the memory of the previous composition or, if kept is nil, on a new
// one. With a replicated state, the parts that depend on it are made after the failover. failed is for tasks of the memory.
func (c *composition) openParts(ctx context.Context, kept *memory, failed func(error)) (err error) {
	if c.memory = kept; kept == nil {
		if c.memory, err = openMemory(c.shared, c.cfg); err != nil {
			return err
		}
	}
	secret, err := c.journal.Secret()
	if err != nil {
		return err
	}
	if c.shaper, err = newShaper(c.cfg, secret, c.journal); err != nil {
		return err
	}
	if kept == nil {
		if err := redactStored(c.cfg, c.journal, c.shaper, c.log); err != nil { // before anything reads the journal
			return err
		}
		c.memory.start(failed)
	} else if err := c.journal.Declare(ctx, journalDeclaration(c.cfg)); err != nil { // after all that was appended before
		return err
	}
	if c.replica != nil {
		c.replica.cfg, c.replica.client = c.cfg, c.client
		return nil
	}
	return c.openSourceAndSinks(ctx)
}

func (c *composition) openSourceAndSinks(ctx context.Context) (err error) {
	if err := c.signals.followRenames(ctx, c.cfg.Sinks); err != nil {
		return err
	}
	c.holder = newHolder(c.journal)
	if c.attribution, err = newAttributionRunner(c.cfg, c.journal, c.holder, c.client, c.log); err != nil {
		return err
	}
	if err := c.sinks.openSinks(feed{journal: c.journal, replica: c.replica, signals: c.signals, renew: c.renewSink}); err != nil {
		return err
	}
	c.protection = newProtection(c.cfg, c.client, c.log)
	c.guard = newSourceGuard(c.cfg, c.protection, c.signals)
	if err = recordForgottenPast(ctx, c.cfg, c.journal, c.log); err != nil {
		return err
	}
	if c.source, err = c.newSource(); err != nil {
		return err
	}
	c.replays = newRequestedReplays(c.signals, c.cfg.Sinks)
	c.snapshots = newRequestedSnapshots(c.signals, c.source, c.cfg.Sinks, c.replays)
	c.open.Store(true)
	return nil
}

// The causes of the end of a term that ends without a drain.
var (
	errReplaced   = errors.New("another configuration replaces this one")
	errPartFailed = errors.New("a part of the process has failed")
)

// runTerm starts the tasks, runs them until ctx ends, a part fails or another process takes over, and stops them in order.
// It returns nil, the failure, or a *sinks.DeposedError.
func (c *composition) runTerm(ctx context.Context) error {
	if err := c.awaitActive(ctx); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // what fails because the term ends is no failure
		}
		return err
	}
	c.startTasks()
	select {
	case <-ctx.Done():
	case <-c.failed.occurred:
	}
	failed := c.failed.firstError()
	if failed != nil && !errors.As(failed, new(*sinks.DeposedError)) {
		c.log.Error("stopping because a part failed", "error", failed)
	}
	if failed == nil && errors.Is(context.Cause(ctx), context.Canceled) {
		c.drain()
	}
	c.stopTasks()
	return failed
}

// awaitActive stays on standby, with a replicated state, until this process is active. It returns nil when all parts are
// made, or the cause of the end of ctx, or a permanent error.
func (c *composition) awaitActive(ctx context.Context) error {
	if c.replica == nil {
		return nil
	}
	if e := c.membership.election; e != nil && !e.IsHolder() { // another process is active, as far as this one knows
		c.recordApplied()
	}
	kept := c.replica.keepsTurn()
	if err := c.replica.runStandby(ctx, c.sinks.fencedByName()); err != nil {
		return err
	}
	if !kept {
		c.signals.registry.Forget()
	}
	if err := c.signals.load(); err != nil {
		return err
	}
	return c.openSourceAndSinks(ctx)
}

func (c *composition) renewSink(ctx context.Context, sink, reason string) error {
	defer c.source.EmitRequested()
	return c.journal.RenewSink(ctx, sink, "the destination has lost what it had: "+reason)
}

// startTasks starts the tasks, each after the tasks that it depends on: delivery, the writer of the state, attribution, and
// the source last.
func (c *composition) startTasks() {
	for _, r := range c.sinks.runners {
		r.startDelivery(c.cfg.Delivery.Retry, c.failed.reportError)
	}
	if r := c.replica; r != nil {
		r.setRole(admin.RoleActive)
		r.writerTask = startTask("state", r.runWriter, c.failed.reportError)
	}
	if c.holder != nil {
		c.holderTask = startTask("authors", c.holder.Run, c.failed.reportError)
	}
	c.attribution.startTasks(c.failed.reportError)
	c.protectionTask = startTask("protection", c.protection.run, c.failed.reportError)
	c.sourceTask = startTask("source", func(ctx context.Context) error {
		defer c.involved.Start(ctx)()
		c.snapshots.beginTerm(ctx)
		return c.source.Run(ctx)
	}, c.failed.reportError)
	c.snapshotTask = startTask("requested snapshots", c.snapshots.run, c.failed.reportError)
	c.replayTask = startTask("requested replays", c.replays.run, c.failed.reportError)
	for i, s := range c.cfg.Sinks {
		if removesOrphans(s) {
			o := &orphanRemover{s, c.sinks.routes.routeFor(s.Name), c.journal, c.sinks.runners[i].log, c.sinks.runners[i].orphaned}
			c.orphanTasks = append(c.orphanTasks, startTask("orphans", o.run, c.failed.reportError))
		}
	}
}

// drain stops what appends changes, so that no new ones arrive, and lets the sinks deliver what the journal holds and the
// state cover that, for at most delivery.drainTimeout. With an election the next exporter delivers what is left, so it does
// not wait for sinks that are away: until this process has released the Lease, the other sinks get nothing.
func (c *composition) drain() {
	c.sourceTask.stop()
	c.stopOrphans()
	c.replayTask.stop()
	c.attribution.stopTasks() // remaining changes are attributed after the next start
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Delivery.DrainTimeout)
	defer cancel()
	if err := c.journal.Flush(ctx); err != nil {
		c.log.Warn("the newest observations were not journaled and will be watched again", "error", err)
	}
	late := time.AfterFunc(stopWarningDelay, func() { c.sinks.logBlocking(c.journal.Newest()) })
	defer late.Stop()
	left := c.sinks.drain(ctx, c.journal.Newest, c.membership.election != nil)
	if len(left) > 0 {
		c.log.Warn("sinks are away or paused; the next exporter delivers what they miss", "sinks", left)
		return
	}
	if c.membership.election != nil { // the bus of the state may be away, too
		var cancelFlush context.CancelFunc
		ctx, cancelFlush = context.WithTimeout(ctx, silenceOfAway)
		defer cancelFlush()
	}
	c.replica.flushState(ctx)
}

// stopTasks stops the tasks in the opposite order of startTasks. Undelivered changes stay in the journal.
func (c *composition) stopTasks() {
	c.stopOrphans()
	c.replayTask.stop()
	c.snapshotTask.stop()
	c.sourceTask.stop()
	c.protectionTask.stop()
	c.attribution.stopTasks()
	c.holderTask.stop()
	c.sinks.stopAll()
	if c.replica != nil {
		c.replica.writerTask.stop()
	}
}

func (c *composition) stopOrphans() {
	for _, t := range c.orphanTasks {
		t.stop()
	}
}

// closeParts releases everything but the memory. Later calls do nothing.
func (c *composition) closeParts() (err error) {
	c.closing.Do(func() {
		err = c.sinks.close()
		c.client.Close()
	})
	return err
}

func (c *composition) newSource() (*source.Source, error) {
	lost, err := c.journal.ResetReason() // why the journal lacks known objects and positions, for gap records that are still to be emitted
	if recovery, pending := c.journal.PendingRecovery(); pending {
		lost, err = "the journal was broken and replaced by a new one ("+recovery.Reason+")", nil
	}
	if err != nil {
		return nil, err
	}
	stored, err := c.journal.Cluster()
	if err != nil {
		return nil, err
	}
	rules := config.SelectionRules(c.cfg.Resources)
	c.involved = involved.New(involved.Config{
		Client: c.client, Rules: rules, Redact: c.shaper.RedactMetadata, BeginRequest: c.guard.BeginRequest,
	})
	s := source.Config{
		Client:          c.client,
		Cluster:         c.cfg.Cluster.Name,
		Rules:           rules,
		Load:            c.shaper.WrapLoad(c.journal.LoadResource),
		StoredResources: c.journal.Resources,
		SetScopes:       c.journal.SetScopes,
		Append:          c.appendObservation,
		Shape: func(rule int, to event.AppendFunc) event.AppendFunc {
			return c.involved.WrapAppend(rule, c.shaper.WrapAppend(rule, to))
		},
		Guard:            c.guard,
		DropResource:     c.journal.DropResource,
		LostReason:       lost,
		BodiesFilled:     c.journal.RecordBodiesFilled,
		Flush:            c.journal.Flush,
		GapsRecorded:     c.journal.RecordGapsEmitted,
		StoredClusterUID: stored,
		RecordCluster:    c.journal.SetCluster,
		Applied:          c.recordApplied,
		Listed: func(scope string, began time.Time, objects int) {
			c.telemetry.RecordSpan("list", began, nil, slog.String("scope", scope), slog.Int("objects", objects))
		},
		Watermarks:     watermarkSeries(c.cfg.Sinks),
		PaceSnapshot:   func(ctx context.Context, sink string) error { return awaitLead(ctx, c.journal, sink) },
		AwaitDelivered: c.awaitDelivered,
		Log:            c.log,
	}
	if c.replica != nil {
		s.Discovery = c.replica.discovered
	}
	if c.cfg.Cluster.OnReplaced == config.Fresh {
		s.ResetCluster = c.journal.ResetForCluster
	}
	return source.New(s)
}

const (
	// maxSnapshotLead is how many changes the journal may hold for a sink before more of its snapshot is appended: a sink that
	// is away does not fill the journal with what exists anyway.
	maxSnapshotLead = 10_000
	// snapshotPause is the time between two looks at how far the sink is.
	snapshotPause = 20 * time.Millisecond
)

// awaitLead waits until a sink has received nearly everything that the journal holds. Lanes that fail are not waited for.
func awaitLead(ctx context.Context, j *journal.Journal, sink string) error {
	return awaitCursor(ctx, j, sink, func(cursor event.Cursor) bool {
		return cursor.HighestOffset()+maxSnapshotLead >= j.Newest()
	})
}

// awaitDelivered waits until a sink has received everything that the journal holds now.
func (c *composition) awaitDelivered(ctx context.Context, sink string) error {
	newest := c.journal.Newest()
	return awaitCursor(ctx, c.journal, sink, func(cursor event.Cursor) bool { return cursor.Low >= newest })
}

// awaitCursor waits until the stored cursor of a sink has arrived somewhere.
func awaitCursor(ctx context.Context, j *journal.Journal, sink string, hasArrived func(event.Cursor) bool) error {
	for {
		if cursor, _, err := j.Cursor(sink); err != nil || hasArrived(cursor) {
			return err
		}
		if err := ratelimit.Sleep(ctx, snapshotPause); err != nil {
			return err
		}
	}
}

// appendObservation journals an observation. It also publishes the facts of its changes to viewers of the admin server,
// except snapshots, syncs and watermarks, which are no news.
func (c *composition) appendObservation(ctx context.Context, o event.Observation) error {
	held := c.heldFor(o.Resource)
	for _, change := range o.Changes {
		if change.Held = held; change.Type == event.Snapshot || change.Type == event.Sync || change.Type == event.Watermark ||
			change.Snapshot != nil && change.OnlySink != "" {
			continue
		}
		c.admin.ObserveChange(
			func(b []byte) []byte { return format.AppendFacts(b, change) },
			func(b []byte) []byte {
				short := *change
				short.Changed, short.Omitted = nil, nil
				return format.AppendFacts(b, &short)
			},
		)
	}
	return c.journal.Append(ctx, o)
}

// heldFor returns what the records of a resource carry if routes hold them back; nil if none does.
func (c *composition) heldFor(r event.Resource) *event.HeldInfo {
	if !c.cfg.AwaitsAuthors() {
		return nil
	}
	held, known := c.held.Load(r)
	if !known {
		held, _ = c.held.LoadOrStore(r, c.cfg.HeldFor(r))
	}
	return held.(*event.HeldInfo)
}
