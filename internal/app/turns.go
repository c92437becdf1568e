package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/election"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// terms is what outlives the compositions, of which one at a time has its turn.
type terms struct {
	handovers    chan handover
	identity     string             // of this process among those that compete
	election     *election.Election // nil where nobody competes
	electionTask *task

	failovers, deposals atomic.Uint64
	lastFailoverNanos   atomic.Int64 // how long the last take-over took, in nanoseconds
}

// handover asks that another composition takes the place of the one that has its turn.
type handover struct {
	next *composition // prepared, not opened
	done chan error   // receives one: next is there, or why it cannot be; capacity 1
}

// openElection makes a candidate of the process, if the configuration asks for one.
func (t *terms) openElection(cfg *config.Config, c *composition, log *slog.Logger) (err error) {
	if !cfg.State.Enabled() {
		return nil
	}
	if t.identity, err = candidateIdentity(cfg.Election); err != nil || !cfg.Election.Enabled() {
		return err
	}
	rest, err := restConfig(cfg.Cluster)
	if err != nil {
		return err
	}
	namespace, name := cfg.Election.NamespacedName()
	t.election, err = election.New(election.Options{
		Client: rest, Namespace: namespace, Name: name, Identity: t.identity, Duration: cfg.Election.Duration, Log: log,
	})
	return err
}

// candidateIdentity is what others know this process by. Without a name of its own it gets a random word, so that two processes of
// one machine are two.
func candidateIdentity(e config.Election) (string, error) {
	if name := cmp.Or(e.Identity, os.Getenv("POD_NAME")); name != "" {
		return name, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("election.identity is not set, and the host has no name: %w", err)
	}
	word, _, _ := strings.Cut(uuid.NewString(), "-")
	return host + "-" + word, nil
}

func (t *terms) startElection(failed func(error)) {
	if t.election != nil {
		t.electionTask = startTask("election", t.election.Run, failed)
	}
}

func (t *terms) stopElection() { t.electionTask.stop() }

// contextWhileActive returns a context that also ends, with a *sinks.DeposedError, when another process is seen to hold the Lease.
// release ends it in any case.
func (t *terms) contextWhileActive(ctx context.Context) (ours context.Context, release func()) {
	ours, cancel := context.WithCancelCause(ctx)
	if t.election == nil {
		return ours, func() { cancel(nil) }
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if t.election.AwaitOtherHolder(ours) == nil {
			cancel(&sinks.DeposedError{Reason: t.election.Holder() + " has the Lease"})
		}
	}()
	return ours, func() {
		cancel(nil)
		<-watched
	}
}

// errPartFailed ends a turn without draining.
var errPartFailed = errors.New("a part of the process has failed")

// runTerms runs one composition after the other: another one follows when the configuration asks for it, or when another
// process has taken over. It returns nil when ctx ends, or the error of what failed; everything is stopped then.
func (a *app) runTerms(ctx context.Context) error {
	for {
		turn, end := context.WithCancelCause(context.WithoutCancel(ctx))
		ended := make(chan error, 1)
		go func() { ended <- a.current.Load().runTerm(turn) }()
		var next handover
		var err error
		select {
		case err = <-ended:
			end(nil)
		case next = <-a.terms.handovers:
			end(nil)
			err = <-ended
		case <-a.failure.occurred:
			a.log.Error("stopping because a part failed", "error", a.failure.err)
			end(errPartFailed)
			return errors.Join(a.failure.err, <-ended)
		case <-ctx.Done():
			a.configTask.stop() // so that nothing is handed over any more
			end(nil)
			return a.handleDeposed(<-ended)
		}
		if err = a.handleDeposed(err); err != nil {
			next.sendResult(err)
			return err
		}
		if err := a.installNext(next); err != nil {
			return err
		}
	}
}

// handleDeposed takes note that another process has taken over, where this one may stand by for the next turn or is told to stop,
// and returns nil. It returns every other error.
func (a *app) handleDeposed(err error) error {
	var by *sinks.DeposedError
	if !errors.As(err, &by) {
		return err
	}
	a.terms.deposals.Add(1)
	if a.terms.election == nil {
		return fmt.Errorf("another exporter works in place of this one, and no election says who may: set election.lease, or run one exporter: %w", err)
	}
	a.log.Warn("another exporter works in place of this one", "reason", by.Reason)
	return nil
}

// installNext puts another composition in the place of the one that has stopped: the next one, or one like it.
func (a *app) installNext(next handover) (err error) {
	before := a.current.Load()
	defer func() { next.sendResult(err) }()
	if err = before.closeParts(); err != nil {
		return err
	}
	c := next.next
	if c == nil {
		if c, err = a.prepareComposition(before.cfg, nil); err != nil {
			return exit.With(exit.Environment, err)
		}
	}
	if err = c.openParts(); err != nil {
		return exit.With(exit.Environment, errors.Join(err, c.closeParts()))
	}
	a.current.Store(c)
	return nil
}

func (h handover) sendResult(err error) {
	if h.done != nil {
		h.done <- err
	}
}

// requestHandover asks for another composition in the place of the one that has its turn, and waits until it is there.
func (a *app) requestHandover(ctx context.Context, next *composition) error {
	h := handover{next, make(chan error, 1)}
	select {
	case a.terms.handovers <- h:
		return <-h.done
	case <-ctx.Done():
		return errors.Join(ctx.Err(), next.closeParts())
	}
}
