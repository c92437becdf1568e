package kafka

import (
	"log/slog"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

var (
	timestampsAccepted = condition.State{Name: "ready", Message: "kafka accepts our timestamps"}
	timestampsRefused  = condition.State{
		Name: "untrusted", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "kafka refuses our timestamps; records have none for the time being",
	}
)

// timestampCondition tells when brokers refuse timestamps because their clock differs too much from ours
// (message.timestamp.before.max.ms, message.timestamp.after.max.ms). It is safe for concurrent use.
type timestampCondition struct{ condition *condition.Condition }

func newTimestampCondition(log *slog.Logger) timestampCondition {
	return timestampCondition{condition.New(log, timestampsAccepted)}
}

// recordRefusal notes that a timestamp of this moment was refused.
func (c timestampCondition) recordRefusal(topic string, err error) {
	c.condition.Update(timestampsRefused, "a broker refuses the time of this moment", "set the clocks of the exporter and the brokers",
		"topic", topic, "error", err)
	c.condition.UpdateAfter(2*timestampPause, timestampsAccepted) // unless it happens again
}

func (c timestampCondition) close() { c.condition.Close() }
