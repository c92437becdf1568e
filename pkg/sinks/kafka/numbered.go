package kafka

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// numberedSequencer is the sequencer of lanes where no transactional ID may be used. Each lane has a producer ID of its own:
// when a broker loses track of one partition, the new epoch of that lane disturbs no other. Brokers drop the copies of this
// process. Nothing is known of what an earlier one had in flight, and nothing turns that away. Without idempotence batches
// have no numbers, and nothing drops a copy.
type numberedSequencer struct {
	partition *partitionClient
	log       *slog.Logger
	off       bool // no idempotence

	topic       protocol.TopicID        // that the lane writes to
	next        record.ProducerSequence // of the first unsettled batch; Producer is NoID until one is needed
	lastWritten time.Time               // timestamp of the last batch acknowledged in this epoch; zero if there is none
	renumbering
}

var _ sequencer = (*numberedSequencer)(nil)

func newNumberedSequencer(p *partitionClient, off bool, log *slog.Logger) *numberedSequencer {
	return &numberedSequencer{partition: p, off: off, log: log, next: record.ProducerSequence{Producer: cluster.NoID}}
}

// nextSequence implements [sequencer]. A batch without numbers has -1 in their place (KIP-98).
func (s *numberedSequencer) nextSequence() record.ProducerSequence {
	if s.off {
		return record.ProducerSequence{Producer: cluster.NoID, Epoch: -1, Sequence: -1}
	}
	return s.next
}

func (s *numberedSequencer) isKnownToBroker() bool {
	return !s.off && time.Since(s.lastWritten) <= producerRetention
}

func (s *numberedSequencer) isNumbered() bool                 { return !s.off }
func (*numberedSequencer) prepare(context.Context, int) error { return nil }
func (*numberedSequencer) creditWritten([]sinks.Message) int  { return 0 }
func (*numberedSequencer) recordSent()                        {}

// useTopic implements [sequencer]. The numbers go on: the leader of the topic that has replaced another one takes any from a
// producer that it does not know, so the lane has one batch under way until the first is acknowledged.
func (s *numberedSequencer) useTopic(id protocol.TopicID) (void bool) {
	if s.topic != id {
		s.topic, s.lastWritten = id, time.Time{}
	}
	return false
}

func (s *numberedSequencer) ensureProducerID(ctx context.Context) error {
	if s.off || s.next.Producer != cluster.NoID {
		return nil
	}
	id, epoch, err := s.partition.cluster.NewProducerID(ctx, s.partition.topic.name)
	if err != nil {
		return err
	}
	s.next = record.ProducerSequence{Producer: id, Epoch: epoch}
	return nil
}

func (s *numberedSequencer) recordWritten(f *inFlightBatch, _ bool) {
	s.next.Sequence = record.SequenceAfter(s.next.Sequence, f.records)
	s.lastWritten, s.errors = f.sentAt, 0
}

// recordAbandoned begins a new epoch when a dropped batch may be written: the numbers of that batch are not used again, and
// from the first batch of the new epoch on the broker rejects it.
func (s *numberedSequencer) recordAbandoned(inDoubt bool) {
	if inDoubt {
		s.startNextEpoch()
	}
}

// recordLost begins a new epoch: the leader knows older numbers of this one.
func (s *numberedSequencer) recordLost() { s.startNextEpoch() }

func (s *numberedSequencer) handleSequenceError(cause error, v protocol.Outcome) error {
	if s.countError() {
		return renumberingError(s.partition, cause)
	}
	warnRenumbered(s.log, s.partition, cause)
	if s.startNextEpoch(); v == protocol.Fenced {
		s.next = record.ProducerSequence{Producer: cluster.NoID}
	}
	return nil
}

// startNextEpoch begins a new epoch, which fences the batches of the old one (KIP-360). When the epochs of the producer ID
// are exhausted, ensureProducerID requests a new ID.
func (s *numberedSequencer) startNextEpoch() {
	s.lastWritten = time.Time{}
	if s.next.Producer == cluster.NoID || s.next.Epoch == math.MaxInt16 {
		s.next = record.ProducerSequence{Producer: cluster.NoID}
		return
	}
	s.next = record.ProducerSequence{Producer: s.next.Producer, Epoch: s.next.Epoch + 1}
}
