package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

const (
	// maxSequenceErrors is how often in a row a lane renumbers before the error goes to the caller's back-off.
	maxSequenceErrors = 2
	// producerRetention is how old the newest record of a producer may be for the broker to certainly know its numbers. By
	// default a broker forgets them after a day (producer.id.expiration.ms).
	producerRetention = time.Hour
)

// sequencer decides under which producer ID, epoch and sequence numbers a lane writes (KIP-98), and which of its messages
// the partition already holds. A lane has a fencedSequencer, or a numberedSequencer where no transactional ID may
// be used. Not safe for concurrent use.
type sequencer interface {
	// useTopic is called before prepare with the ID of the topic. void: it has replaced another one of its name, and the
	// unsettled batches, which are numbered for that one, are dropped. Their messages are not written.
	useTopic(id protocol.TopicID) (void bool)
	// prepare is called before batches are encoded. It finds out what the partition holds of earlier attempts with an unknown
	// outcome. inFlight is the number of unsettled batches.
	prepare(ctx context.Context, inFlight int) error
	// creditWritten returns how many messages at the head of batch prepare has found in the partition.
	creditWritten(batch []sinks.Message) int
	// ensureProducerID makes nextSequence valid.
	ensureProducerID(ctx context.Context) error
	// nextSequence is the sequence of the first unsettled batch.
	nextSequence() record.ProducerSequence
	// isNumbered reports whether the broker drops copies.
	isNumbered() bool
	// isKnownToBroker reports whether the broker certainly knows our last sequence number. Kafka accepts any number from a
	// producer that it does not know: of several batches it would accept the second one after refusing the first.
	isKnownToBroker() bool
	// recordSent records that a batch is sent and may be written.
	recordSent()
	// recordWritten records that the first batch is written. inDoubt: batches behind it are unsettled.
	recordWritten(f *inFlightBatch, inDoubt bool)
	// recordAbandoned records that all unsettled batches were dropped. inDoubt: some of them may be written.
	recordAbandoned(inDoubt bool)
	// recordLost records that the partition went back, and that what it has lost is published again. All unsettled batches were
	// dropped before.
	recordLost()
	// handleSequenceError decides what follows after a broker refused the numbers of a batch. nil: the lane drops its
	// batches, which are encoded again under the numbers of nextSequence after another prepare.
	handleSequenceError(cause error, v protocol.Outcome) error
}

// renumbering counts the times in a row that a broker refused the numbers of a lane.
type renumbering struct{ errors int }

// countError counts one more and reports whether that is too many; then it starts over.
func (r *renumbering) countError() (tooMany bool) {
	if r.errors++; r.errors <= maxSequenceErrors {
		return false
	}
	r.errors = 0
	return true
}

func renumberingError(p *partitionClient, cause error) error {
	return fmt.Errorf("%s: %w, also after renumbering", p, cause)
}

func warnRenumbered(log *slog.Logger, p *partitionClient, cause error) {
	log.Warn("kafka does not know the sequence of this producer; records in doubt are sent again, and the topic may hold duplicates",
		"topic", p.topic.name, "partition", p.index, "error", cause)
}
