package app

import (
	"cmp"
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
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

// composition is everything that one configuration makes, and the tasks that run it. It does not change once it is the one
// that works: another configuration makes another composition, which takes over the parts that are the same.
type composition struct {
	*app
	cfg *config.Config

	client           *apiserver.Client
	journal          *journal.Journal
	shaper           *shape.Shaper
	routes           *routing
	runners          []*runner // in the order of the configuration
	source           *source.Source
	attribution      *attributionRunner // nil where nobody is to be named
	replica          *replica           // nil without a replicated state
	journalRecovered bool               // the journal was broken and begun anew

	failed *failure    // of a task of it, or of one that it took over
	opened atomic.Bool // all of it is made; it has its turn, or will have it at once
	ended  bool        // its tasks are stopped, or being stopped; under app.changing

	journalTask, sourceTask *task

	closing sync.Once
}

// prepareComposition makes what a configuration describes as far as that reads files and creates none: a credential that has vanished
// since the configuration was checked leaves nothing behind. Of before, if there is one, it takes over the sinks that are
// the same. It contacts nothing.
func (a *app) prepareComposition(cfg *config.Config, before *composition) (*composition, error) {
	c := &composition{app: a, cfg: cfg, runners: make([]*runner, len(cfg.Sinks)), failed: newFailure()}
	var err error
	if c.client, err = NewClient(cfg, a.version); err != nil {
		return nil, err
	}
	if c.routes, err = newRouting(cfg); err != nil {
		return nil, err
	}
	if err := checkAttribution(cfg, c.log); err != nil {
		return nil, err
	}
	setRoutedTopics(cfg)
	for i, s := range cfg.Sinks {
		if c.runners[i] = before.runnerByID(runnerIdentity(cfg, s, c.routes)); c.runners[i] != nil || s.Stdout != nil {
			continue
		}
		if c.runners[i], err = c.newRunner(s); err != nil {
			return nil, errors.Join(err, c.closeRunners(before))
		}
	}
	return c, nil
}

// runnerByID is the runner of that identity; nil where there is none, or no composition.
func (c *composition) runnerByID(id string) *runner {
	if c == nil {
		return nil
	}
	for _, r := range c.runners {
		if r != nil && r.id == id {
			return r
		}
	}
	return nil
}

// openParts makes the journal, and, unless it has to be taken over first, all that needs it.
func (c *composition) openParts() (err error) {
	if c.journal, err = journal.Open(c.journalOptions()); err != nil {
		return err
	}
	if c.shaper, err = newShaper(c.cfg, c.journal); err != nil {
		return err
	}
	if err := redactStored(c.cfg, c.journal, c.shaper, c.log); err != nil { // before anybody reads what the journal holds
		return err
	}
	if c.cfg.State.Enabled() {
		c.replica, err = newReplica(c)
		return err
	}
	return c.openSourceAndSinks()
}

// openSourceAndSinks makes what reads the journal and what writes to it, as far as it has been.
func (c *composition) openSourceAndSinks() (err error) {
	if c.attribution, err = newAttributionRunner(c.cfg, c.journal, c.client, c.log); err != nil {
		return err
	}
	if err := c.openSinks(); err != nil {
		return err
	}
	if c.source, err = c.newSource(); err != nil {
		return err
	}
	c.opened.Store(true)
	return nil
}

// openSinks makes the sinks that are still missing, and gives each that has none a pipeline.
func (c *composition) openSinks() (err error) {
	for i, s := range c.cfg.Sinks {
		if c.runners[i] == nil {
			if c.runners[i], err = c.newRunner(s); err != nil {
				return err
			}
		}
		if r := c.runners[i]; r.currentPipeline() == nil {
			if err := c.attachPipeline(r, s); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *composition) journalOptions() journal.Options {
	j := c.cfg.Journal
	o := journal.Options{Dir: j.Dir, MaxBytes: int64(j.MaxBytes), MaxDeadLetters: int64(j.MaxDeadLetters), Reserve: int64(j.Reserve), KeepSettled: j.Keep, Logger: c.log}
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

// runTerm stands by until it is the turn of c, works until ctx ends, a part fails or another process takes over, and stops in
// order. It returns nil, the failure, or a *sinks.DeposedError. What works in the end may be a composition that took over
// from c.
func (c *composition) runTerm(ctx context.Context) error {
	c.journalTask = startTask("journal", c.journal.Run, c.failed.reportError)
	if c.replica != nil {
		if err := c.replica.runStandby(ctx); err != nil {
			c.journalTask.stop()
			if ctx.Err() != nil {
				err = nil
			}
			return cmp.Or(c.failed.firstError(), err)
		}
	}
	c.startTasks()
	select {
	case <-ctx.Done():
	case <-c.failed.occurred:
	}
	a := c.app
	a.changeMu.Lock()
	c = a.current.Load()
	c.ended = true
	a.changeMu.Unlock()
	failed := c.failed.firstError()
	var deposed *sinks.DeposedError
	if failed != nil && !errors.As(failed, &deposed) {
		c.log.Error("stopping because a part failed", "error", failed)
	}
	stopping, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if failed != nil || errors.Is(context.Cause(ctx), errPartFailed) {
		cancel() // without draining; it loses nothing: what is not delivered is in the journal
	}
	c.stopTasks(stopping)
	return failed
}

// startTasks runs the tasks, each after what it writes to or reads from.
func (c *composition) startTasks() {
	c.changeMu.Lock()
	defer c.changeMu.Unlock()
	for _, r := range c.runners {
		r.startDelivery(c.cfg.Delivery.Retry, c.failed.reportError)
	}
	c.replica.startWriting(c.failed.reportError)
	c.attribution.startTasks(c.failed.reportError)
	c.sourceTask = startTask("source", c.source.Run, c.failed.reportError)
}

// stopTasks stops the tasks in the opposite order of begin: the source, so that nothing new comes; delivery, after it has drained
// what the journal holds, for as long as the configuration allows or until ctx ends; the state, once it covers that; the
// journal, because all write to it.
func (c *composition) stopTasks(ctx context.Context) {
	c.sourceTask.stop()
	c.attribution.stopTasks() // what it has not named is named after the next start
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Delivery.DrainTimeout)
	defer cancel()
	if ctx.Err() == nil && c.journal != nil {
		if err := c.journal.Flush(ctx); err != nil {
			c.log.Warn("the newest observations were not journaled and will be watched again", "error", err)
		}
	}
	late := time.AfterFunc(stopWarningDelay, c.logBlockingSinks)
	defer late.Stop()
	c.stopRunners(ctx, c.runners)
	c.replica.stopWriting(ctx)
	c.journalTask.stop()
}

// stopWarningDelay is how long a stop may take before it says what it waits for.
const stopWarningDelay = time.Second

// logBlockingSinks names the sinks that have not delivered yet what the journal holds.
func (c *composition) logBlockingSinks() {
	if c.journal == nil {
		return
	}
	newest := c.journal.Newest()
	for _, r := range c.runners {
		if r == nil || r.currentPipeline() == nil {
			continue
		}
		if s := r.sinkStatus(); s.Low < newest {
			r.log.Warn("the stop waits for this sink; the same signal again does not, and loses nothing", "changes", newest-s.Low,
				"atMost", c.cfg.Delivery.DrainTimeout, "reason", cmp.Or(s.NotReady, s.Reason, "none that is known: it takes its time"))
		}
	}
}

// stopRunners lets pipelines deliver what the journal holds until ctx ends, and stops them.
func (c *composition) stopRunners(ctx context.Context, runners []*runner) {
	for _, r := range runners {
		if r != nil && r.currentPipeline() != nil {
			r.drainUpTo(c.journal.Newest())
		}
	}
	for _, r := range runners {
		if r != nil {
			r.stopDelivery(ctx)
		}
	}
}

// closeParts releases everything. Later calls do nothing.
func (c *composition) closeParts() (err error) {
	c.closing.Do(func() {
		err = errors.Join(c.closeRunners(nil), c.replica.closeState())
		if c.journal != nil {
			if failed := c.journal.Close(); failed != nil {
				err = errors.Join(err, fmt.Errorf("close journal: %w", failed))
			}
		}
		c.client.Close()
	})
	return err
}

// closeRunners closes the sinks that other, if it is not nil, does not have.
func (c *composition) closeRunners(other *composition) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	errs := make([]error, len(c.runners))
	var closing sync.WaitGroup // together, so that a slow destination takes no other's time
	for i, r := range c.runners {
		if r != nil && other.runnerByID(r.id) == nil {
			closing.Go(func() { errs[i] = r.closeSinks(ctx) })
		}
	}
	closing.Wait()
	return errors.Join(errs...)
}
