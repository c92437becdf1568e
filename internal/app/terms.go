package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// terms runs one composition after the other; each has one term, in which it opens, delivers and stops.
type terms struct {
	*shared
	failure   *failure // of a task that belongs to no composition
	handovers chan handover

	changeMu sync.Mutex // held while a composition starts its tasks, begins to stop, or is replaced in place
	current  atomic.Pointer[composition]
}

// handover is the request to end the term of the current composition and to start that of another one.
type handover struct {
	next *composition // prepared, not opened
	done chan error   // receives one result: nil when next is installed; capacity 1
}

func newTerms(s *shared, failure *failure) *terms {
	return &terms{shared: s, failure: failure, handovers: make(chan handover)}
}

// errPartFailed is the cause of a term that ends without draining.
var errPartFailed = errors.New("a part of the process has failed")

// runTerms runs one term after the other: the next one follows when a handover is requested, or when another process has
// taken over. It returns nil when ctx ends, or the error of the failed part; everything is stopped then. stopHandovers is
// called before the last term ends, and no handover may be requested after it returned.
func (t *terms) runTerms(ctx context.Context, stopHandovers func()) error {
	for {
		term, end := context.WithCancelCause(context.WithoutCancel(ctx))
		ended := make(chan error, 1)
		go func() { ended <- t.runTerm(term) }()
		var next handover
		var err error
		select {
		case err = <-ended:
			end(nil)
		case next = <-t.handovers:
			end(nil)
			err = <-ended
		case <-t.failure.occurred:
			t.log.Error("stopping because a part failed", "error", t.failure.err)
			end(errPartFailed)
			return errors.Join(t.failure.err, <-ended)
		case <-ctx.Done():
			stopHandovers()
			end(nil)
			return t.membership.handleDeposed(t.log, <-ended)
		}
		if err = t.membership.handleDeposed(t.log, err); err != nil {
			next.sendResult(err)
			return err
		}
		if err := t.installNext(next); err != nil {
			return err
		}
	}
}

// runTerm runs the current composition until ctx ends, a part fails or another process takes over, and stops it in order. It
// returns nil, the failure, or a *sinks.DeposedError. A composition that has adopted the parts of the current one meanwhile
// is stopped in its place.
func (t *terms) runTerm(ctx context.Context) error {
	c := t.current.Load()
	if err := c.awaitActive(ctx); err != nil {
		if ctx.Err() != nil {
			err = nil
		}
		return cmp.Or(c.failed.firstError(), err)
	}
	t.changeMu.Lock()
	c.startTasks()
	t.changeMu.Unlock()
	select {
	case <-ctx.Done():
	case <-c.failed.occurred:
	}
	t.changeMu.Lock()
	c = t.current.Load()
	c.become(phaseStopping)
	t.changeMu.Unlock()
	failed := c.failed.firstError()
	var deposed *sinks.DeposedError
	if failed != nil && !errors.As(failed, &deposed) {
		t.log.Error("stopping because a part failed", "error", failed)
	}
	stopping, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if failed != nil || errors.Is(context.Cause(ctx), errPartFailed) {
		cancel() // skip the drain; undelivered changes are in the journal
	}
	c.stopTasks(stopping)
	return failed
}

// installNext installs the composition of a handover, or another one of the same configuration, after the current one has
// stopped.
func (t *terms) installNext(next handover) (err error) {
	before := t.current.Load()
	defer func() { next.sendResult(err) }()
	if err = before.closeParts(); err != nil {
		return err
	}
	c := next.next
	if c == nil {
		if c, err = newComposition(t.shared, before.cfg, nil); err != nil {
			return exit.With(exit.Environment, err)
		}
	}
	if err = c.openParts(); err != nil {
		return exit.With(exit.Environment, errors.Join(err, c.closeParts()))
	}
	t.current.Store(c)
	return nil
}

func (h handover) sendResult(err error) {
	if h.done != nil {
		h.done <- err
	}
}

// replace replaces the current composition by one of cfg: in place where possible, else by a handover. accepted is called
// when cfg is accepted and before anything stops; an error before that means that cfg is refused. A failure of a replacement
// in place is also reported as the failure of the process.
func (t *terms) replace(ctx context.Context, cfg *config.Config, accepted func()) error {
	t.changeMu.Lock()
	before := t.current.Load()
	adopted, reason := before, before.restartReason(cfg)
	if reason != "" {
		adopted = nil
	}
	next, err := newComposition(t.shared, cfg, adopted)
	if err != nil {
		t.changeMu.Unlock()
		return err
	}
	accepted()
	if reason != "" {
		t.log.Info("configuration changed; restarting the pipeline from stored positions", "reason", reason)
		t.changeMu.Unlock()
		return t.requestHandover(ctx, next)
	}
	defer t.changeMu.Unlock()
	if err = next.adoptFrom(ctx, before, t.current.Store); err != nil && ctx.Err() == nil {
		t.failure.reportError(exit.With(exit.Environment, fmt.Errorf("apply the changed configuration: %w", err)))
	}
	return err
}

// requestHandover requests a handover to next and waits until next is installed.
func (t *terms) requestHandover(ctx context.Context, next *composition) error {
	h := handover{next, make(chan error, 1)}
	select {
	case t.handovers <- h:
		return <-h.done
	case <-ctx.Done():
		return errors.Join(ctx.Err(), next.closeParts())
	}
}
