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

// stopElection releases the Lease, if this process holds it.
func (m *membership) stopElection() { m.electionTask.stop() }

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
	var deposed *sinks.DeposedError
	if !errors.As(err, &deposed) {
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
