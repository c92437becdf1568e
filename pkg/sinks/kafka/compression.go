package kafka

import (
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// codecsByPreference are tried in this order where the configuration names none. Brokers of other makes lack zstd, and some
// know gzip alone.
var codecsByPreference = []string{defaultCompression, "lz4", "gzip", "none"}

// compressionChoice is how the batches of a sink may be compressed: by the codec that was configured, or by the first of
// several that a topic accepts. It is safe for concurrent use.
type compressionChoice struct {
	codecs    []string
	condition *condition.Condition // some topic accepts only a later codec than the first
	reported  atomic.Bool
}

func newCompressionChoice(configured string, log *slog.Logger) *compressionChoice {
	c := &compressionChoice{codecs: codecsByPreference, condition: condition.New(log, "", condition.Problem{})}
	if configured != "" {
		c.codecs = []string{configured}
	}
	return c
}

// codec returns the codec of an index, as a topic has it.
func (c *compressionChoice) codec(index int32) record.Codec { return record.Codecs[c.codecs[index]] }

// recordRefusal makes the batches of a topic use the codec behind the one that was refused. An error means that there is
// none.
func (c *compressionChoice) recordRefusal(t *topic, refused int32, cause error) error {
	if int(refused) < len(c.codecs)-1 {
		t.codec.CompareAndSwap(refused, refused+1) // otherwise another lane has found it out
		return nil
	}
	p := condition.Problem{
		Code: condition.SinkMisconfigured, Cause: fmt.Sprintf("topic %q refuses batches with the compression %s", t.name, c.codecs[refused]),
		Remedy: "remove kafka.compression, so that the sink finds one that is accepted, or set it to gzip or none",
	}
	if len(c.codecs) > 1 {
		p.Cause = fmt.Sprintf("topic %q refuses batches, compressed or not", t.name)
		p.Remedy = "raise message.format.version of the topic to 0.11 or newer; a broker without producer IDs needs kafka.idempotence: false"
	}
	return p.Wrap(cause)
}

// recordAccepted reports, once, that a topic has accepted only a later codec than the first.
func (c *compressionChoice) recordAccepted(t *topic, accepted int32) {
	if accepted > 0 && c.reported.CompareAndSwap(false, true) {
		c.condition.Update(condition.Problem{
			Code: condition.SinkCompressionRefused, Cause: fmt.Sprintf("topic %q accepts %s, and refuses %s", t.name, c.codecs[accepted], c.codecs[0]),
			Remedy: "set kafka.compression: " + c.codecs[accepted],
		})
	}
}
