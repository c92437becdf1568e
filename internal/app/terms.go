package app

import (
	"context"
	"errors"
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
	current   atomic.Pointer[composition]
}

// handover is the request to end the term of the current composition and to start that of another one.
type handover struct {
	next *composition // prepared, not opened
	done chan error   // receives one result: nil when next is installed; capacity 1
}

func newTerms(s *shared, failure *failure) *terms {
	return &terms{shared: s, failure: failure, handovers: make(chan handover)}
}

// runTerms runs one term after the other: the next one follows when a handover is requested, or when another process has
// taken over. It returns nil when ctx ends, or the error of the failed part; everything is stopped then. stopHandovers is
// called before the last term ends, and no handover may be requested after it returned.
func (t *terms) runTerms(ctx context.Context, stopHandovers func()) error {
	for {
		term, end := context.WithCancelCause(context.WithoutCancel(ctx))
		ended := make(chan error, 1)
		go func() { ended <- t.current.Load().runTerm(term) }()
		var next handover
		var err error
		select {
		case err = <-ended:
			end(nil)
		case next = <-t.handovers:
			end(errReplaced)
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
		var deposed *sinks.DeposedError
		lostTurn := errors.As(err, &deposed)
		if err = t.membership.handleDeposed(t.log, err); err == nil {
			err = t.installNext(ctx, next.next, lostTurn)
		}
		if ctx.Err() != nil && errors.Is(err, context.Canceled) { // the stop ended the start: the rest stays in the journal
			next.sendResult(nil)
			stopHandovers()
			return nil
		}
		next.sendResult(err)
		if err != nil {
			return err
		}
	}
}

// installNext installs the composition of a handover, or if c is nil another one of the same configuration, after the
// current one has stopped. The memory is kept, unless its settings have changed or another process has taken over.
func (t *terms) installNext(ctx context.Context, c *composition, lostTurn bool) (err error) {
	before := t.current.Load()
	if c == nil {
		if c, err = newComposition(t.shared, before.cfg, "term"); err != nil {
			return exit.With(exit.Environment, err)
		}
	}
	if err = before.closeParts(); err != nil {
		t.log.Warn("a part of the previous configuration could not be closed in order", "error", err)
	}
	kept := before.memory
	if lostTurn || kept.id != memoryIdentity(c.cfg) {
		if err = kept.close(); err != nil {
			return err
		}
		kept = nil
	}
	if err = c.openParts(ctx, kept, t.failure.reportError); err != nil {
		err = errors.Join(err, c.closeParts())
		if c.memory != nil && kept == nil {
			err = errors.Join(err, c.memory.close())
		}
		return exit.With(exit.Environment, err)
	}
	t.current.Store(c)
	return nil
}

func (h handover) sendResult(err error) {
	if h.done != nil {
		h.done <- err
	}
}

// replace replaces the current composition by one of cfg, and waits until that is installed. accepted is called when cfg is
// accepted and before anything stops; an error before that means that cfg is refused.
func (t *terms) replace(ctx context.Context, cfg *config.Config, accepted func()) error {
	next, err := newComposition(t.shared, cfg, "reload")
	if err != nil {
		return err
	}
	accepted()
	h := handover{next, make(chan error, 1)}
	select {
	case t.handovers <- h:
		return <-h.done
	case <-ctx.Done():
		return errors.Join(ctx.Err(), next.closeParts())
	}
}
