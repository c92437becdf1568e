package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/state"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

// composition is everything that one configuration makes, and the tasks that run it. Once it is running it does not change:
// another configuration makes another composition, which adopts the unchanged parts.
type composition struct {
	*shared
	cfg *config.Config

	client           *apiserver.Client
	journal          *journal.Journal
	shaper           *shape.Shaper
	sinks            *sinkSet
	source           *source.Source
	attribution      *attributionRunner // nil without audit
	replica          *replica           // nil without a replicated state
	journalRecovered bool               // the journal was broken and replaced by a new one

	phase  atomic.Int32 // a phase; written by become
	failed *failure     // of a task of this composition, or of the one that it adopted

	journalTask, sourceTask *task

	closing sync.Once
}

// phase is how far a composition is in its life. Each phase follows the one before it.
type phase int32

const (
	phasePreparing phase = iota // parts are missing: nothing is open, or the journal is and the process is on standby
	phaseOpen                   // all parts are made
	phaseRunning                // its tasks run
	phaseStopping               // its tasks are stopped, or being stopped
)

// become enters a phase. Entering phaseRunning and phaseStopping requires terms.changeMu.
func (c *composition) become(p phase) { c.phase.Store(int32(p)) }

// isOpen reports whether all parts are made. It is safe for concurrent use.
func (c *composition) isOpen() bool { return phase(c.phase.Load()) >= phaseOpen }

// newComposition makes the parts of a configuration that need no journal. It reads files and creates none, so that a
// credential that has vanished since the configuration was checked leaves nothing behind, and it opens no connection.
// Unchanged sinks of before are adopted; before is nil if none may be.
func newComposition(s *shared, cfg *config.Config, before *composition) (*composition, error) {
	c := &composition{shared: s, cfg: cfg, failed: newFailure()}
	var err error
	if c.client, err = NewClient(cfg, s.version); err != nil {
		return nil, err
	}
	if err := checkAttribution(cfg, s.log); err != nil {
		return nil, err
	}
	if c.sinks, err = newSinkSet(s, cfg, before.sinkSet()); err != nil {
		return nil, err
	}
	return c, nil
}

// sinkSet returns the sinks of the composition; nil for no composition.
func (c *composition) sinkSet() *sinkSet {
	if c == nil {
		return nil
	}
	return c.sinks
}

// openParts opens the journal and makes all parts that need it. With a replicated state, the parts that depend on it are
// made after the failover.
func (c *composition) openParts() (err error) {
	if c.journal, err = journal.Open(c.journalOptions()); err != nil {
		return err
	}
	if c.shaper, err = newShaper(c.cfg, c.journal); err != nil {
		return err
	}
	if err := redactStored(c.cfg, c.journal, c.shaper, c.log); err != nil { // before anything reads the journal
		return err
	}
	if c.cfg.State.Enabled() {
		c.replica, err = newReplica(c.shared, c.cfg, c.client, c.journal)
		return err
	}
	return c.openSourceAndSinks()
}

// openSourceAndSinks makes the parts that read from the journal and write to it.
func (c *composition) openSourceAndSinks() (err error) {
	if c.attribution, err = newAttributionRunner(c.cfg, c.journal, c.client, c.log); err != nil {
		return err
	}
	if err := c.sinks.openSinks(c.feed()); err != nil {
		return err
	}
	if c.source, err = c.newSource(); err != nil {
		return err
	}
	c.become(phaseOpen)
	return nil
}

func (c *composition) feed() feed {
	return feed{journal: c.journal, attribution: c.attribution, replica: c.replica}
}

func (c *composition) journalOptions() journal.Options {
	j := c.cfg.Journal
	o := journal.Options{
		Dir: j.Dir, MaxBytes: int64(j.MaxBytes), MaxDeadLetters: int64(j.MaxDeadLetters), Reserve: int64(j.Reserve),
		KeepSettled: j.Keep, Logger: c.log,
	}
	for _, s := range c.cfg.Sinks {
		o.Sinks = append(o.Sinks, s.Name)
	}
	if c.cfg.Audit.Enabled() {
		o.Sinks, o.KeepEvidence = append(o.Sinks, attribution.Sink), true
	}
	if c.cfg.State.Enabled() {
		o.Sinks = append(o.Sinks, state.Sink)
	}
	if j.Sync == "interval" {
		o.SyncInterval = 200 * time.Millisecond
	}
	return o
}

// awaitActive starts the journal and, with a replicated state, stays on standby until this process is active. It returns nil
// when all parts are made, or the cause of the end of ctx, or a permanent error; the journal is stopped then.
func (c *composition) awaitActive(ctx context.Context) error {
	c.journalTask = startTask("journal", c.journal.Run, c.failed.reportError)
	if c.replica == nil {
		return nil
	}
	err := c.replica.runStandby(ctx, c.failed, c.sinks.fencedByName())
	if err == nil {
		err = c.openSourceAndSinks()
	}
	if err != nil {
		c.journalTask.stop()
	}
	return err
}

// startTasks starts the tasks, each after the tasks that it depends on: delivery, the writer of the state, attribution, and
// the source last. Requires terms.changeMu.
func (c *composition) startTasks() {
	c.sinks.startAll(c.failed.reportError)
	c.replica.startWriting(c.failed.reportError)
	c.attribution.startTasks(c.failed.reportError)
	c.sourceTask = startTask("source", c.source.Run, c.failed.reportError)
	c.become(phaseRunning)
}

// stopTasks stops the tasks in the opposite order of startTasks: the source, so that no new changes arrive; delivery, after
// it has drained the journal, for at most delivery.drainTimeout or until ctx ends; the state, once it covers the delivered
// changes; the journal last, because every other part writes to it.
func (c *composition) stopTasks(ctx context.Context) {
	c.sourceTask.stop()
	c.attribution.stopTasks() // remaining changes are attributed after the next start
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Delivery.DrainTimeout)
	defer cancel()
	if ctx.Err() == nil {
		if err := c.journal.Flush(ctx); err != nil {
			c.log.Warn("the newest observations were not journaled and will be watched again", "error", err)
		}
	}
	late := time.AfterFunc(stopWarningDelay, func() { c.sinks.logBlocking(c.journal.Newest()) })
	defer late.Stop()
	c.sinks.drainAndStop(ctx, c.sinks.runners, c.journal.Newest())
	c.replica.stopWriting(ctx)
	c.journalTask.stop()
}

// closeParts releases everything. Later calls do nothing.
func (c *composition) closeParts() (err error) {
	c.closing.Do(func() {
		err = errors.Join(c.sinks.closeExcept(nil), c.replica.closeState())
		if c.journal != nil {
			if failed := c.journal.Close(); failed != nil {
				err = errors.Join(err, fmt.Errorf("close journal: %w", failed))
			}
		}
		c.client.Close()
	})
	return err
}

// newSource makes the source, which reads from the API server and writes to the journal.
func (c *composition) newSource() (*source.Source, error) {
	lost, err := c.journalLossReason()
	if err != nil {
		return nil, err
	}
	stored, err := c.journal.Cluster()
	if err != nil {
		return nil, err
	}
	s := source.Config{
		Client:           c.client,
		Cluster:          c.cfg.Cluster.Name,
		Rules:            SelectionRules(c.cfg),
		Discovery:        c.replica.discoveredResources(),
		Load:             c.shaper.WrapLoad(c.journal.LoadResource),
		StoredResources:  c.journal.Resources,
		SetScopes:        c.journal.SetScopes,
		Append:           c.appendObservation,
		Shape:            c.shaper.WrapAppend,
		DropResource:     c.journal.DropResource,
		LostReason:       lost,
		BodiesFilled:     c.journal.RecordBodiesFilled,
		Flush:            c.journal.Flush,
		GapsRecorded:     c.journal.RecordGapsEmitted,
		StoredClusterUID: stored,
		RecordCluster:    c.journal.SetCluster,
		Log:              c.log,
	}
	if c.cfg.Cluster.OnReplaced == config.Fresh {
		s.ResetCluster = c.journal.ResetForCluster
	}
	return source.New(s)
}

// journalLossReason returns why the journal lacks known objects and positions, for gap records that are still to be emitted;
// "" if it is complete.
func (c *composition) journalLossReason() (string, error) {
	if recovery, pending := c.journal.PendingRecovery(); pending {
		c.journalRecovered = true
		return "the journal was broken and replaced by a new one (" + recovery.Reason + ")", nil
	}
	return c.journal.ResetReason()
}

// appendObservation journals an observation. It also publishes the facts of its changes to viewers of the admin server,
// except snapshots and syncs, which are no news.
func (c *composition) appendObservation(ctx context.Context, o event.Observation) error {
	for _, change := range o.Changes {
		if change.Type == event.Snapshot || change.Type == event.Sync {
			continue
		}
		c.admin.ObserveChange(
			func(b []byte) []byte { return format.AppendFacts(b, change) },
			func(b []byte) []byte { return format.AppendFacts(b, withoutLongFields(change)) },
		)
	}
	return c.journal.Append(ctx, o)
}

// withoutLongFields returns a copy of a change without the fields that may be long.
func withoutLongFields(c *event.Change) *event.Change {
	short := *c
	short.Changed, short.Omitted = nil, nil
	return &short
}
