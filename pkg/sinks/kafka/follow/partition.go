package follow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// Record is one record of a partition.
type Record struct {
	Offset int64
	Time   time.Time
	Value  []byte // belongs to the caller
}

// Position is the offset of the next record, and the batch before it, which identifies the partition.
type Position struct {
	Next int64
	last protocol.BatchID // zero if it is not known
}

// String returns the stored form.
func (p Position) String() string { return fmt.Sprintf("%d %d %d", p.Next, p.last.Base, p.last.CRC) }

// ParsePosition parses the stored form, also with more text behind it. Older ones only have the offset.
func ParsePosition(text string) (p Position, ok bool) {
	n, _ := fmt.Sscanf(text, "%d %d %d", &p.Next, &p.last.Base, &p.last.CRC)
	return p, n >= 1
}

// Options are what a partition needs. All but FromStart are required.
type Options struct {
	Cluster   *cluster.Cluster
	Partition cluster.Partition
	// Name of the topic's role, such as "audit topic", for messages.
	Role string
	// Load returns the stored position; "" if there is none. It is called at the start and after an error of Store.
	Load func() (string, error)
	// Each receives every record from the position on.
	Each func(Record) error
	// Store stores the position after the records that Each has got since the last call. An error ends the read.
	Store func(ctx context.Context, p Position) error
	// RecordLoss is called with the reason of a loss, before the position after it is stored.
	RecordLoss func(ctx context.Context, reason string) error
	// FromStart reads a partition without a stored position from its oldest record on. Without it, what was written before is
	// skipped.
	FromStart bool
}

// Partition reads one partition. One goroutine uses it.
type Partition struct {
	Options
	started  bool // position is known
	position Position
}

// New returns a partition that starts at its stored position.
func New(o Options) *Partition { return &Partition{Options: o} }

// Name is the name of the partition in messages.
func Name(id int32) string { return "partition " + strconv.Itoa(int(id)) }

// ReadAvailable reads everything up to the end of the partition, whose leader is lead.
func (p *Partition) ReadAvailable(ctx context.Context, lead cluster.Lead) error {
	s := &cluster.Span{Partition: p.Partition, Lead: lead}
	if p.started {
		end, err := cluster.NewReader(p.Cluster).HighWatermark(ctx, s.Lead, s.Partition)
		if err != nil || end == p.position.Next {
			return err
		}
	}
	if err := cluster.NewReader(p.Cluster).QueryExtents(ctx, s.Lead.Broker, []*cluster.Span{s}); err != nil {
		return err
	}
	if err := p.resolveStart(ctx, s); err != nil {
		return err
	}
	if loss := p.findLoss(s); loss != "" {
		return p.restart(ctx, s, loss)
	}
	return p.readSpan(ctx, s)
}

// resolveStart determines where to continue. A new position is stored at once, so that a restart does not skip what is
// written from now on.
func (p *Partition) resolveStart(ctx context.Context, s *cluster.Span) error {
	if p.started {
		return nil
	}
	stored, err := p.Load()
	if err != nil {
		return err
	}
	position, known := ParsePosition(stored)
	if !known {
		position = Position{Next: s.First}
		if !p.FromStart {
			position = Position{Next: s.End}
		}
		if err := p.Store(ctx, position); err != nil {
			return err
		}
	}
	p.position, p.started = position, true
	return nil
}

// findLoss describes which unread records are gone; "" if there are none.
func (p *Partition) findLoss(s *cluster.Span) string {
	switch at := p.position.Next; {
	case at > s.End:
		return fmt.Sprintf("%s was read to offset %d and ends at %d: it was recreated, or has lost records", p.where(), at, s.End)
	case at < s.First:
		return fmt.Sprintf("%s lost %d records before they were read", p.where(), s.First-at)
	}
	return ""
}

func (p *Partition) where() string {
	return Name(p.Partition.Index) + " of the " + p.Role + " " + p.Partition.Topic
}

// restart records a loss, and continues with what there is.
func (p *Partition) restart(ctx context.Context, s *cluster.Span, loss string) error {
	if err := p.RecordLoss(ctx, loss); err != nil {
		return err
	}
	next := Position{Next: s.First}
	if err := p.Store(ctx, next); err != nil {
		return err
	}
	p.position = next
	return nil
}

// readSpan reads the rest of a span. The batch that was read last is fetched again: if another batch is in its place, the
// topic was recreated, whatever its offsets are.
func (p *Partition) readSpan(ctx context.Context, s *cluster.Span) error {
	s.Next, s.Last, s.VerifyLast = p.position.Next, p.position.last, p.position.last != protocol.BatchID{}
	if !s.VerifyLast && s.Next > s.First {
		s.Next-- // its batch identifies the partition; the record itself is skipped
	}
	unread := p.position.Next
	s.Each = func(r *protocol.Record) error {
		if r.Offset < unread {
			return nil
		}
		return p.Each(Record{r.Offset, r.Time, bytes.Clone(r.Value)})
	}
	s.AfterFetch = func() error {
		p.position = Position{max(s.Next, unread), s.Last}
		return p.Store(ctx, p.position)
	}
	err := cluster.NewReader(p.Cluster).FetchSpans(ctx, s.Lead.Broker, []*cluster.Span{s})
	var caller *cluster.CallbackError
	switch {
	case errors.As(err, &caller):
		p.started = false
		return caller.Err
	case errors.Is(err, cluster.ErrRecreated):
		return p.restart(ctx, s, p.where()+" does not hold what was read of it: it was recreated")
	case errors.Is(err, kafka.OffsetOutOfRange):
		return nil // records were removed in between; the next call finds the new extent
	}
	return err
}
