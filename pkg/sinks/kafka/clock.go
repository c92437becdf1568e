package kafka

import (
	"log/slog"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

var (
	trusted   = condition.State{Name: "ready", Message: "kafka accepts our timestamps"}
	untrusted = condition.State{
		Name: "untrusted", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "kafka refuses our timestamps; records have none for the time being",
	}
)

// clock tells when brokers refuse timestamps because their clock differs too much from ours
// (message.timestamp.before.max.ms, message.timestamp.after.max.ms). It is safe for concurrent use.
type clock struct{ condition *condition.Condition }

func newClock(log *slog.Logger) clock { return clock{condition.New(log, trusted)} }

// refused notes that a timestamp of this moment was refused.
func (c clock) refused(topic string, err error) {
	c.condition.Become(untrusted, "a broker refuses the time of this moment", "set the clocks of the exporter and the brokers",
		"topic", topic, "error", err)
	c.condition.BecomeAfter(2*untimedFor, trusted) // unless it happens again
}

func (c clock) close() { c.condition.Close() }
