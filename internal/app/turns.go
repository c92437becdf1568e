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

// turns is what outlives the compositions, of which one at a time has its turn.
type turns struct {
	handovers chan handover
	identity  string             // of this process among those that compete
	election  *election.Election // nil where nobody competes
	competing *task

	takeOvers, fenced atomic.Uint64
	took              atomic.Int64 // how long the last take-over took, in nanoseconds
}

// handover asks that another composition takes the place of the one that has its turn.
type handover struct {
	next *composition // prepared, not opened
	done chan error   // receives one: next is there, or why it cannot be; capacity 1
}

// open makes a candidate of the process, if the configuration asks for one.
func (t *turns) open(cfg *config.Config, c *composition, log *slog.Logger) (err error) {
	if !cfg.State.On() {
		return nil
	}
	if t.identity, err = identityOf(cfg.Election); err != nil || !cfg.Election.On() {
		return err
	}
	rest, err := restConfig(cfg.Cluster)
	if err != nil {
		return err
	}
	namespace, name := cfg.Election.Place()
	t.election, err = election.New(election.Options{
		Client: rest, Namespace: namespace, Name: name, Identity: t.identity, Duration: cfg.Election.Duration, Log: log,
	})
	return err
}

// identityOf is what others know this process by. Without a name of its own it gets a random word, so that two processes of
// one machine are two.
func identityOf(e config.Election) (string, error) {
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

func (t *turns) start(failed func(error)) {
	if t.election != nil {
		t.competing = start("election", t.election.Run, failed)
	}
}

func (t *turns) stop() { t.competing.stop() }

// whileOurs returns a context that also ends, with a *sinks.DeposedError, when another process is seen to hold the Lease.
// release ends it in any case.
func (t *turns) whileOurs(ctx context.Context) (ours context.Context, release func()) {
	ours, cancel := context.WithCancelCause(ctx)
	if t.election == nil {
		return ours, func() { cancel(nil) }
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if t.election.AwaitOther(ours) == nil {
			cancel(&sinks.DeposedError{Reason: t.election.Holder() + " has the Lease"})
		}
	}()
	return ours, func() {
		cancel(nil)
		<-watched
	}
}

// errFailed ends a turn without draining.
var errFailed = errors.New("a part of the process has failed")

// takeTurns runs one composition after the other: another one follows when the configuration asks for it, or when another
// process has taken over. It returns nil when ctx ends, or the error of what failed; everything is stopped then.
func (a *app) takeTurns(ctx context.Context) error {
	for {
		turn, end := context.WithCancelCause(context.WithoutCancel(ctx))
		ended := make(chan error, 1)
		go func() { ended <- a.now.Load().serve(turn) }()
		var next handover
		var err error
		select {
		case err = <-ended:
			end(nil)
		case next = <-a.turns.handovers:
			end(nil)
			err = <-ended
		case <-a.failure.c:
			a.log.Error("stopping because a part failed", "error", a.failure.err)
			end(errFailed)
			return errors.Join(a.failure.err, <-ended)
		case <-ctx.Done():
			a.configuring.stop() // so that nothing is handed over any more
			end(nil)
			return a.deposed(<-ended)
		}
		if err = a.deposed(err); err != nil {
			next.answer(err)
			return err
		}
		if err := a.succeed(next); err != nil {
			return err
		}
	}
}

// deposed takes note that another process has taken over, where this one may stand by for the next turn or is told to stop,
// and returns nil. It returns every other error.
func (a *app) deposed(err error) error {
	var by *sinks.DeposedError
	if !errors.As(err, &by) {
		return err
	}
	a.turns.fenced.Add(1)
	if a.turns.election == nil {
		return fmt.Errorf("another exporter works in place of this one, and no election says who may: set election.lease, or run one exporter: %w", err)
	}
	a.log.Warn("another exporter works in place of this one", "reason", by.Reason)
	return nil
}

// succeed puts another composition in the place of the one that has stopped: the next one, or one like it.
func (a *app) succeed(next handover) (err error) {
	before := a.now.Load()
	defer func() { next.answer(err) }()
	if err = before.close(); err != nil {
		return err
	}
	c := next.next
	if c == nil {
		if c, err = a.prepare(before.cfg, nil); err != nil {
			return exit.With(exit.Environment, err)
		}
	}
	if err = c.open(); err != nil {
		return exit.With(exit.Environment, errors.Join(err, c.close()))
	}
	a.now.Store(c)
	return nil
}

func (h handover) answer(err error) {
	if h.done != nil {
		h.done <- err
	}
}

// handOver asks for another composition in the place of the one that has its turn, and waits until it is there.
func (a *app) handOver(ctx context.Context, next *composition) error {
	h := handover{next, make(chan error, 1)}
	select {
	case a.turns.handovers <- h:
		return <-h.done
	case <-ctx.Done():
		return errors.Join(ctx.Err(), next.close())
	}
}
