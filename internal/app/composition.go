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

	client    *apiserver.Client
	journal   *journal.Journal
	shaper    *shape.Shaper
	routes    *routing
	runners   []*runner // in the order of the configuration
	source    *source.Source
	naming    *naming  // nil where nobody is to be named
	replica   *replica // nil without a replicated state
	recovered bool     // the journal was broken and begun anew

	failed  *failure    // of a task of it, or of one that it took over
	working atomic.Bool // all of it is made; it has its turn, or will have it at once
	ended   bool        // its tasks are stopped, or being stopped; under app.changing

	journaling, watching *task

	closing sync.Once
}

// prepare makes what a configuration describes as far as that reads files and creates none: a credential that has vanished
// since the configuration was checked leaves nothing behind. Of before, if there is one, it takes over the sinks that are
// the same. It contacts nothing.
func (a *app) prepare(cfg *config.Config, before *composition) (*composition, error) {
	c := &composition{app: a, cfg: cfg, runners: make([]*runner, len(cfg.Sinks)), failed: newFailure()}
	var err error
	if c.client, err = NewClient(cfg, a.version); err != nil {
		return nil, err
	}
	if c.routes, err = newRouting(cfg); err != nil {
		return nil, err
	}
	if err := checkNaming(cfg, c.log); err != nil {
		return nil, err
	}
	nameTopics(cfg)
	for i, s := range cfg.Sinks {
		if c.runners[i] = before.runnerOf(identity(cfg, s, c.routes)); c.runners[i] != nil || s.Stdout != nil {
			continue
		}
		if c.runners[i], err = c.newRunner(s); err != nil {
			return nil, errors.Join(err, c.closeRunners(before))
		}
	}
	return c, nil
}

// runnerOf is the runner of that identity; nil where there is none, or no composition.
func (c *composition) runnerOf(id string) *runner {
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

// open makes the journal, and, unless it has to be taken over first, all that needs it.
func (c *composition) open() (err error) {
	if c.journal, err = journal.Open(c.journalOptions()); err != nil {
		return err
	}
	if c.shaper, err = newShaper(c.cfg, c.journal); err != nil {
		return err
	}
	if err := redactStored(c.cfg, c.journal, c.shaper, c.log); err != nil { // before anybody reads what the journal holds
		return err
	}
	if c.cfg.State.On() {
		c.replica, err = newReplica(c)
		return err
	}
	return c.openRest()
}

// openRest makes what reads the journal and what writes to it, as far as it has been.
func (c *composition) openRest() (err error) {
	if c.naming, err = newNaming(c.cfg, c.journal, c.client, c.log); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	if c.source, err = c.newSource(); err != nil {
		return err
	}
	c.working.Store(true)
	return nil
}

// connect makes the sinks that are still missing, and gives each that has none a pipeline.
func (c *composition) connect() (err error) {
	for i, s := range c.cfg.Sinks {
		if c.runners[i] == nil {
			if c.runners[i], err = c.newRunner(s); err != nil {
				return err
			}
		}
		if r := c.runners[i]; r.current() == nil {
			if err := c.pipe(r, s); err != nil {
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
	if c.cfg.Audit.On() {
		o.Sinks, o.Evidence = append(o.Sinks, attribution.Sink), true
	}
	if c.cfg.State.On() {
		o.Sinks = append(o.Sinks, state.Sink)
	}
	if j.Sync == "interval" {
		o.SyncInterval = 200 * time.Millisecond
	}
	return o
}

// serve stands by until it is the turn of c, works until ctx ends, a part fails or another process takes over, and stops in
// order. It returns nil, the failure, or a *sinks.DeposedError. What works in the end may be a composition that took over
// from c.
func (c *composition) serve(ctx context.Context) error {
	c.journaling = start("journal", c.journal.Run, c.failed.report)
	if c.replica != nil {
		if err := c.replica.takeOver(ctx); err != nil {
			c.journaling.stop()
			if ctx.Err() != nil {
				err = nil
			}
			return cmp.Or(c.failed.get(), err)
		}
	}
	c.begin()
	select {
	case <-ctx.Done():
	case <-c.failed.c:
	}
	a := c.app
	a.changing.Lock()
	c = a.now.Load()
	c.ended = true
	a.changing.Unlock()
	failed := c.failed.get()
	var deposed *sinks.DeposedError
	if failed != nil && !errors.As(failed, &deposed) {
		c.log.Error("stopping because a part failed", "error", failed)
	}
	stopping, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if failed != nil || errors.Is(context.Cause(ctx), errFailed) {
		cancel() // without draining; it loses nothing: what is not delivered is in the journal
	}
	c.stop(stopping)
	return failed
}

// begin runs the tasks, each after what it writes to or reads from.
func (c *composition) begin() {
	c.changing.Lock()
	defer c.changing.Unlock()
	for _, r := range c.runners {
		r.start(c.cfg.Delivery.Retry, c.failed.report)
	}
	c.replica.start(c.failed.report)
	c.naming.start(c.failed.report)
	c.watching = start("source", c.source.Run, c.failed.report)
}

// stop stops the tasks in the opposite order of begin: the source, so that nothing new comes; delivery, after it has drained
// what the journal holds, for as long as the configuration allows or until ctx ends; the state, once it covers that; the
// journal, because all write to it.
func (c *composition) stop(ctx context.Context) {
	c.watching.stop()
	c.naming.stop() // what it has not named is named after the next start
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Delivery.DrainTimeout)
	defer cancel()
	if ctx.Err() == nil && c.journal != nil {
		if err := c.journal.Flush(ctx); err != nil {
			c.log.Warn("the newest observations were not journaled and will be watched again", "error", err)
		}
	}
	late := time.AfterFunc(silentStop, c.sayWhatHoldsUpTheStop)
	defer late.Stop()
	c.stopRunners(ctx, c.runners)
	c.replica.stop(ctx)
	c.journaling.stop()
}

// silentStop is how long a stop may take before it says what it waits for.
const silentStop = time.Second

// sayWhatHoldsUpTheStop names the sinks that have not delivered yet what the journal holds.
func (c *composition) sayWhatHoldsUpTheStop() {
	if c.journal == nil {
		return
	}
	newest := c.journal.Newest()
	for _, r := range c.runners {
		if r == nil || r.current() == nil {
			continue
		}
		if s := r.status(); s.Low < newest {
			r.log.Warn("the stop waits for this sink; the same signal again does not, and loses nothing", "changes", newest-s.Low,
				"atMost", c.cfg.Delivery.DrainTimeout, "reason", cmp.Or(s.NotReady, s.Reason, "none that is known: it takes its time"))
		}
	}
}

// stopRunners lets pipelines deliver what the journal holds until ctx ends, and stops them.
func (c *composition) stopRunners(ctx context.Context, runners []*runner) {
	for _, r := range runners {
		if r != nil && r.current() != nil {
			r.drain(c.journal.Newest())
		}
	}
	for _, r := range runners {
		if r != nil {
			r.stop(ctx)
		}
	}
}

// close releases everything. Later calls do nothing.
func (c *composition) close() (err error) {
	c.closing.Do(func() {
		err = errors.Join(c.closeRunners(nil), c.replica.close())
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
		if r != nil && other.runnerOf(r.id) == nil {
			closing.Go(func() { errs[i] = r.close(ctx) })
		}
	}
	closing.Wait()
	return errors.Join(errs...)
}
