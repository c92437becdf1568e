package topic

import (
	"context"
	"fmt"

	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/follow"
)

// partition takes signals from one partition. One goroutine uses it.
type partition struct {
	*Topic
	id       int32
	place    string // of its position in the book
	follower *follow.Partition
	read     []follow.Record // records that are not taken yet
}

// newPartition returns a reader of a partition. One that was added is read from its start. A topic that was recreated is
// read from its end, as one that is read for the first time: it may have requests of another time.
func newPartition(t *Topic, id int32) *partition {
	p := &partition{Topic: t, id: id, place: signals.Place(t.Topic, id)}
	p.follower = follow.New(follow.Options{
		Cluster: t.cluster, Partition: cluster.Partition{Topic: t.Topic, Index: id}, Role: "topic of signals", FromStart: true, SkipRecreated: true,
		Load: func() (string, error) { return t.Book.Position(p.place), nil },
		Each: func(r follow.Record) error {
			p.read = append(p.read, r)
			return nil
		},
		Store: p.takeRecords,
		RecordLoss: func(_ context.Context, l follow.Loss) error {
			t.Logger.Warn("signals are lost: their sender finds them nowhere in the list", "reason", l.Reason, "recreated", l.Recreated)
			return nil
		},
	})
	return p
}

func (p *partition) readAvailable(ctx context.Context, lead cluster.Lead) error {
	p.read = nil
	return p.follower.ReadAvailable(ctx, lead)
}

// untakenError means that what was read cannot be stored, and has to be read again.
type untakenError struct{ error }

func (e *untakenError) Unwrap() error { return e.error }

// takeRecords takes the records that were read, one after the other, and stores the position after them.
func (p *partition) takeRecords(ctx context.Context, at follow.Position) error {
	for _, r := range p.read {
		if err := p.takeRecord(ctx, r); err != nil {
			return &untakenError{fmt.Errorf("a signal at offset %d cannot be stored yet: %w", r.Offset, err)}
		}
	}
	p.read = nil
	if p.next() == at.Next { // what identifies the partition can be found out again
		p.Book.Update(func(b *signals.Book) { b.SetPosition(p.place, at.String()) })
		return nil
	}
	if err := p.storePosition(ctx, at.String()); err != nil {
		return &untakenError{fmt.Errorf("the position cannot be stored: %w", err)}
	}
	return nil
}

// next is the stored offset of the next record; -1 if there is none.
func (p *partition) next() int64 {
	if stored, known := follow.ParsePosition(p.Book.Position(p.place)); known {
		return stored.Next
	}
	return -1
}

func (p *partition) storePosition(ctx context.Context, position string) error {
	return p.Book.Commit(ctx, "", func(b *signals.Book) { b.SetPosition(p.place, position) })
}

// takeRecord has the signal of a record executed. It returns an error if the record has to be read again.
func (p *partition) takeRecord(ctx context.Context, r follow.Record) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	record := signals.Record{Topic: p.Topic.Topic, Partition: p.id, Offset: r.Offset}
	s, err := p.Handler.Submit(ctx, record.Request(r.Value, r.Time))
	switch {
	case p.next() <= r.Offset && err != nil:
		return err
	case p.next() <= r.Offset: // a signal with its ID was taken before
		return p.storePosition(ctx, record.After())
	case s.State == signals.Refused:
		p.Logger.Warn("a signal in a topic is refused", "topic", record.Topic, "partition", record.Partition, "offset", record.Offset,
			"signal", s.ID, "reason", s.Result)
	}
	return nil // whatever the answer is, the list has it
}
