package topic

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
	kproto "github.com/segmentio/kafka-go/protocol"

	"github.com/kubecdc/kubecdc/internal/audit"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// partition is one that is read.
type partition struct {
	*Topic
	id    int
	added bool // it appeared while the topic was read: nothing of it is from before anybody asked for names

	begun bool // at is known
	at    position
	from  int64      // records before this offset are passed over
	part  audit.Part // what was read of an answer
}

// name is for people.
func (p *partition) name() string { return "partition " + strconv.Itoa(p.id) }

// poll reads what has come.
func (p *partition) poll(ctx context.Context) error {
	s := &cluster.Span{Partition: cluster.Partition{Topic: p.topic, Index: int32(p.id)}}
	var err error
	if s.Lead, err = p.layout.Load().Lead(s.Index); err != nil {
		return err
	}
	if p.begun {
		end, err := p.cluster.EndOf(ctx, s.Lead, s.Partition)
		if err != nil || end == p.at.next {
			return err
		}
	}
	if err := p.cluster.Extents(ctx, s.Lead.Broker, []*cluster.Span{s}); err != nil {
		return err
	}
	if err := p.begin(ctx, s); err != nil {
		return err
	}
	if reason := p.missing(s); reason != "" {
		return p.restart(ctx, s.First, reason)
	}
	return p.read(ctx, s)
}

// begin finds out where to go on. It is stored, so that after a restart what came meanwhile is not taken for what was there
// before.
func (p *partition) begin(ctx context.Context, s *cluster.Span) error {
	if p.begun {
		return nil
	}
	stored, err := p.Place(p.place(p.id))
	if err != nil {
		return err
	}
	var known bool
	if p.at, known = parsePosition(stored); !known {
		p.at = position{next: s.First, since: time.Now()}
		if !p.added { // what was written before anybody asked for names is not gone through
			p.at.next = s.End
		}
		if err := p.store(ctx); err != nil {
			return err
		}
	}
	p.begun = true
	return nil
}

// missing says which records are gone that were not read; "" if none are.
func (p *partition) missing(s *cluster.Span) string {
	where := p.name() + " of the audit topic " + p.topic
	switch at := p.at.next; {
	case at > s.End:
		return fmt.Sprintf("%s was read to offset %d and ends at %d: it was made anew, or has lost records", where, at, s.End)
	case at < s.First:
		return fmt.Sprintf("%s lost %d records before they were read", where, s.First-at)
	}
	return ""
}

// restart says what is lost, and goes on with the oldest record that there is.
func (p *partition) restart(ctx context.Context, first int64, reason string) error {
	if err := p.Lose(ctx, p.at.since, reason); err != nil {
		return err
	}
	p.at = position{next: first, since: p.at.since}
	return p.store(ctx)
}

// read takes what is left of a span. What was read last before is looked at once more: if it is another batch now, the topic
// was made anew, whatever its offsets are.
func (p *partition) read(ctx context.Context, s *cluster.Span) error {
	s.Next, s.Last, s.Identified = p.at.next, p.at.last, p.at.identified()
	if !s.Identified && s.Next > s.First {
		s.Next-- // to know it again; it is not taken
	}
	p.part, p.from = audit.Part{}, p.at.next
	s.Each = p.scan
	s.Taken = func() error {
		p.at.next, p.at.last = max(s.Next, p.from), s.Last
		return p.store(ctx)
	}
	err := p.cluster.Fill(ctx, s.Lead.Broker, []*cluster.Span{s})
	var said *cluster.CallerError
	switch {
	case errors.As(err, &said):
		return said.Err
	case errors.Is(err, cluster.ErrMadeAnew):
		return p.restart(ctx, s.First, p.name()+" of the audit topic "+p.topic+" does not hold what was read of it: it was made anew")
	case errors.Is(err, kafka.OffsetOutOfRange):
		return nil // records were removed meanwhile; it is asked again which
	}
	return err
}

// scan takes the events of a record.
func (p *partition) scan(r *kproto.Record) error {
	if r.Offset < p.from {
		return nil
	}
	value, err := protocol.Bytes(r.Value)
	if err != nil || len(value) == 0 {
		return err
	}
	if p.part.Events, err = audit.Append(p.part.Events, value); err != nil {
		p.part.Malformed++
	}
	return nil
}

// store hands over what was read, with the position behind it. It is not known which API server each event is from, so they
// have no origin: no clocks are compared.
func (p *partition) store(ctx context.Context) error {
	p.part.Since = p.at.since
	p.at.since = p.part.Newest()
	p.part.Place, p.part.Position = p.place(p.id), p.at.String()
	err := p.Store(ctx, p.part)
	p.part = audit.Part{}
	return err
}

// position is a place in a partition: the offset of the next record, and what was read before it, by which the partition is
// known again.
type position struct {
	next  int64
	last  protocol.BatchID // zero where nothing was read
	since time.Time        // when the newest event before it had been answered, or when it was begun
}

func (p position) identified() bool { return p.last != protocol.BatchID{} }

// String is the form that is stored.
func (p position) String() string {
	return fmt.Sprintf("%d %d %d %d", p.next, p.last.Base, p.last.CRC, p.since.UnixMilli())
}

// parsePosition reads what String has written; before it had more than an offset, too.
func parsePosition(text string) (p position, ok bool) {
	var ms int64
	n, _ := fmt.Sscanf(text, "%d %d %d %d", &p.next, &p.last.Base, &p.last.CRC, &ms)
	if ms > 0 {
		p.since = time.UnixMilli(ms)
	}
	return p, n >= 1
}
