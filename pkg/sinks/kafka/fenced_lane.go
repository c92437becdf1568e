package kafka

import (
	"context"
	"fmt"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// enter makes a lane of a sink that was fenced ready for its next batch.
func (l *lane) enter(ctx context.Context, f *fence) error {
	if err := f.check(ctx); err != nil {
		return err
	}
	if l.written == nil {
		if err := l.begin(ctx, f); err != nil {
			return err
		}
	}
	if len(l.inFlight) == 0 && l.written.doubt {
		return l.resolve(ctx, f)
	}
	return nil
}

func (l *lane) place() cluster.Partition {
	return cluster.Partition{Topic: l.topic.name, Index: l.partition}
}

// begin notes the lane, unless it is known, and goes on with the numbers that the partition has from this process.
func (l *lane) begin(ctx context.Context, f *fence) error {
	w := f.part(l.place())
	end := int64(0)
	if w != nil {
		end = w.behind.Load()
	} else if err := l.askLeader(ctx, func(by cluster.Lead) (err error) {
		end, err = l.sink.cluster.EndOf(ctx, by, l.place())
		return err
	}); err != nil {
		return fmt.Errorf("%s: asking for its end: %w", l, err)
	}
	if err := f.makeKnown(ctx, laneAt{l.name, sinks.Place(end)}); err != nil {
		return fmt.Errorf("%s: %w", l, err)
	}
	if w == nil {
		w = f.begin(l.place(), end)
	}
	l.written, l.next = w, w.next
	return nil
}

// resolve finds out what of a lane is there, after brokers or network left that open: what may be on its way is turned away,
// and then the partition is read.
func (l *lane) resolve(ctx context.Context, f *fence) error {
	own, err := f.fencing.Ask(ctx, l.place())
	if err != nil {
		return fmt.Errorf("%s: %w", l, err)
	}
	held := map[string]bool{}
	from := map[sinks.Lane]sinks.Place{l.name: sinks.Place(l.written.behind.Load())}
	err = l.sink.Tail(ctx, from, func(_ sinks.Lane, e sinks.Emitted) error {
		held[e.ID] = true
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", l, err)
	}
	l.held = held
	l.next, l.newest = record.ProducerSequence{Producer: own.Producer, Epoch: own.Epoch}, time.Time{}
	l.written.next, l.written.doubt = l.next, false
	return nil
}

// fencedAside returns an epoch that no message ever has, for what is no message. Before the lane goes on, that is turned
// away if it is late.
func (l *lane) fencedAside(ctx context.Context, f *fence) (record.ProducerSequence, error) {
	if err := l.enter(ctx, f); err != nil {
		return record.ProducerSequence{}, err
	}
	own, err := f.fencing.Ask(ctx, l.place())
	l.written.doubt = true
	return record.ProducerSequence{Producer: own.Producer, Epoch: own.Epoch}, err
}

// creditHeld counts the messages at the head of batch that the partition was found to have.
func (l *lane) creditHeld(batch []sinks.Message) int {
	n := 0
	for n < len(batch) && l.held[batch[n].Change.ID()] {
		n++
	}
	if n < len(batch) {
		l.held = nil
	}
	return n
}

// confirm books what was acknowledged of a lane of a sink that was fenced. base is the offset of the batch's first record;
// below zero where the broker does not say.
func (l *lane) confirm(f *inFlightBatch) {
	w := l.written
	if f.base >= 0 {
		w.behind.Store(f.base + int64(f.records))
	}
	w.next, w.doubt = l.next, len(l.inFlight) > 0
}

// disagree decides what comes after a broker refused the numbers of a lane of a sink that was fenced.
func (l *lane) disagree(f *fence, cause error, v protocol.Outcome) error {
	if v == protocol.Fenced {
		return f.depose(cause)
	}
	if l.renumberings++; l.renumberings > maxRenumberings {
		l.renumberings = 0
		return fmt.Errorf("%s: %w, also when numbered anew", l, cause)
	}
	l.sink.log.Warn("kafka lost track of our sequence; the partition is read for what it has",
		"topic", l.topic.name, "partition", l.partition, "error", cause)
	l.drop()
	return nil
}
