package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

// composition is everything that one configuration makes, and the tasks that run it. It does not change once it is the one that
// works: another configuration makes another composition, which takes over the parts that are the same.
type composition struct {
	*app
	cfg *config.Config

	client    *apiserver.Client
	journal   *journal.Journal
	shaper    *shape.Shaper
	routes    *routing
	runners   []*runner // in the order of the configuration
	source    *source.Source
	naming    *naming // nil where nobody is to be named
	recovered bool    // the journal was broken and begun anew

	journaling, watching *task

	closing sync.Once
}

// prepare makes what a configuration describes as far as that reads files and creates none: a credential that has vanished since
// the configuration was checked leaves nothing behind. Of before, if there is one, it takes over the sinks that are the same. It
// contacts nothing.
func (a *app) prepare(cfg *config.Config, before *composition) (*composition, error) {
	c := &composition{app: a, cfg: cfg, runners: make([]*runner, len(cfg.Sinks))}
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

// open makes the rest: the journal, what writes files, and what needs the journal.
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
	if c.naming, err = newNaming(c.cfg, c.journal, c.log); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	c.source, err = c.newSource()
	return err
}

// connect makes the sinks that are still missing, and gives each that has none a pipeline.
func (c *composition) connect() (err error) {
	for i, s := range c.cfg.Sinks {
		if c.runners[i] == nil {
			if c.runners[i], err = c.newRunner(s); err != nil {
				return err
			}
		}
		if r := c.runners[i]; r.pipeline == nil {
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
	if j.Sync == "interval" {
		o.Sync = journal.Interval
	}
	return o
}

// start runs the tasks, each after what it writes to or reads from.
func (c *composition) start() {
	c.journaling = start("journal", c.journal.Run, c.failure.report)
	for _, r := range c.runners {
		r.start(c.cfg.Delivery.Retry, c.failure.report)
	}
	c.naming.start(c.failure.report)
	c.watching = start("source", c.source.Run, c.failure.report)
}

// stop stops the tasks in the opposite order of start: the source, so that nothing new comes; delivery, after it has drained what
// the journal holds, for as long as the configuration allows or until ctx ends; the journal, because both write to it.
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
		if r != nil && r.pipeline != nil {
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
		err = errors.Join(c.naming.close(), c.closeRunners(nil))
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
