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
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// membership is the process as one of several candidates. Its counters outlive the compositions.
type membership struct {
	identity     string               // of this process among the candidates; "" without a replicated state
	election     *election.Election   // nil without an election
	yielding     *condition.Condition // of the Lease that this process holds
	noneActive   *condition.Condition // another process holds the Lease and is not active
	electionTask *task

	failovers, deposals atomic.Uint64
	lastFailoverNanos   atomic.Int64 // duration of the last failover
}

// openElection prepares the election, if one is configured. It contacts nothing.
func (m *membership) openElection(cfg *config.Config, version string, log *slog.Logger) (err error) {
	if !cfg.State.Enabled() {
		return nil
	}
	if m.identity, err = candidateIdentity(cfg.Election); err != nil || !cfg.Election.Enabled() {
		return err
	}
	client, err := NewClient(cfg, version)
	if err != nil {
		return err
	}
	m.yielding, m.noneActive = condition.New(log, "replica", condition.Problem{}), condition.New(log, "replica", condition.Problem{})
	namespace, name := cfg.Election.NamespacedName()
	m.election, err = election.New(election.Options{
		Client: client.RESTConfig(), Namespace: namespace, Name: name, Identity: m.identity, Duration: cfg.Election.Duration, Log: log,
	})
	return err
}

// candidateIdentity returns the identity of this process in the Lease. Without a configured one it includes a random word,
// so that two processes on one machine differ.
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

func (m *membership) startElection(failed func(error)) {
	m.electionTask = startTask("election", m.election.Run, failed)
}

// contextWhileActive returns a context that also ends, with a *sinks.DeposedError as its cause, when another process is seen
// to hold the Lease. release ends it in any case and waits for the goroutine that watches the Lease.
func (m *membership) contextWhileActive(ctx context.Context) (active context.Context, release func()) {
	active, cancel := context.WithCancelCause(ctx)
	if m.election == nil {
		return active, func() { cancel(nil) }
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if m.election.AwaitOtherHolder(active) == nil {
			cancel(&sinks.DeposedError{Reason: m.election.Holder() + " has the Lease"})
		}
	}()
	return active, func() {
		cancel(nil)
		<-watched
	}
}

// forgetHolder makes a process that was deposed ask for the Lease again before it acts as the holder: another process may
// have it already, and this one has not seen that.
func (m *membership) forgetHolder() {
	if m.election != nil {
		m.election.ForgetHolder()
	}
}

// handleDeposed counts and logs that another process took over, and returns nil: this process goes on standby for another
// term, or stops. Without an election the error is returned, because two exporters would depose each other forever. All
// other errors are returned.
func (m *membership) handleDeposed(log *slog.Logger, err error) error {
	deposed, found := errors.AsType[*sinks.DeposedError](err)
	if !found {
		return err
	}
	m.deposals.Add(1)
	m.forgetHolder()
	if m.election == nil {
		return fmt.Errorf("another exporter is active in place of this one, and no election is configured: "+
			"set election.lease, or run one exporter: %w", err)
	}
	log.Warn("another exporter is active in place of this one", "reason", deposed.Reason)
	return nil
}

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
		lostTurn := errors.As(err, new(*sinks.DeposedError))
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
