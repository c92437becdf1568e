package nats

import (
	"log/slog"

	"github.com/kubecdc/kubecdc/internal/condition"
)

// Status tells whether the sink can deliver.
type Status struct {
	Ready  bool
	Reason string // why not, for people; empty when ready
}

var (
	unused       = condition.State{Name: "not connected yet: nothing was to be delivered", Severity: condition.NotReady}
	connected    = condition.State{Name: "connected", Message: "NATS connected"}
	notConnected = condition.State{
		Name: "disconnected", Severity: condition.NotReady, Level: slog.LevelWarn,
		Message: "NATS not connected; reconnecting without a limit",
	}
	accepting = condition.State{Name: "accepting", Message: "NATS accepts changes again"}
	refusing  = condition.State{
		Name: "refusing", Severity: condition.NotReady, Level: slog.LevelWarn,
		Message: "NATS does not accept changes; they are sent again until it does",
	}
)

// health joins what is known about the connection with what the stream answers. Safe for concurrent use.
type health struct {
	connection *condition.Condition
	stream     *condition.Condition

	// culprit is the waiter whose message was refused, nil for nobody's. It is used in functions that decide about a change of
	// stream, which are called one at a time.
	culprit *waiter
}

func newHealth(log *slog.Logger) *health {
	return &health{connection: condition.New(log, unused), stream: condition.New(log, accepting)}
}

func (h *health) status() Status {
	for _, c := range []*condition.Condition{h.connection, h.stream} {
		if now := c.Status(); !now.OK() {
			return Status{Reason: now.Explanation()}
		}
	}
	return Status{Ready: true}
}

// up notes that the connection stands.
func (h *health) up(server string) { h.connection.Become(connected, "", "", "server", server) }

// down notes that there is no connection and why.
func (h *health) down(reason string) { h.connection.Become(notConnected, reason, "") }

// fail notes that w got no acknowledgement. One fault is shown at a time, until the waiter that has it succeeds: with many
// lanes in the same trouble there would be no end of it.
func (h *health) fail(w *waiter, err error) {
	if !h.connection.Status().OK() {
		return
	}
	h.stream.BecomeIf(func(condition.Status) bool {
		if h.culprit != nil && h.culprit != w {
			return false
		}
		h.culprit = w
		w.faulty.Store(true)
		return true
	}, refusing, err.Error(), "")
}

// succeed notes that w got its acknowledgement. It costs nothing while w had no fault.
func (h *health) succeed(w *waiter) {
	if !w.faulty.Load() {
		return
	}
	h.stream.BecomeIf(func(condition.Status) bool {
		w.faulty.Store(false)
		h.culprit = nil
		return true
	}, accepting, "", "")
}
