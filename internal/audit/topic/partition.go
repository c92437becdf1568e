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

	started   bool // at is known
	position  position
	skipBelow int64      // records before this offset are passed over
	readPart  audit.Part // what was read of an answer
}

// displayName is for people.
func (p *partition) displayName() string { return "partition " + strconv.Itoa(p.id) }

// readAvailable reads what has come.
func (p *partition) readAvailable(ctx context.Context) error {
	s := &cluster.Span{Partition: cluster.Partition{Topic: p.topic, Index: int32(p.id)}}
	var err error
	if s.Lead, err = p.layout.Load().Lead(s.Index); err != nil {
		return err
	}
	if p.started {
		end, err := cluster.NewReader(p.cluster).HighWatermark(ctx, s.Lead, s.Partition)
		if err != nil || end == p.position.next {
			return err
		}
	}
	if err := cluster.NewReader(p.cluster).QueryExtents(ctx, s.Lead.Broker, []*cluster.Span{s}); err != nil {
		return err
	}
	if err := p.resolveStart(ctx, s); err != nil {
		return err
	}
	if reason := p.describeMissing(s); reason != "" {
		return p.restartAt(ctx, s.First, reason)
	}
	return p.readSpan(ctx, s)
}

// resolveStart finds out where to go on. It is stored, so that after a restart what came meanwhile is not taken for what was there
// before.
func (p *partition) resolveStart(ctx context.Context, s *cluster.Span) error {
	if p.started {
		return nil
	}
	stored, err := p.StoredPosition(p.positionKey(p.id))
	if err != nil {
		return err
	}
	var known bool
	if p.position, known = parsePosition(stored); !known {
		p.position = position{next: s.First, since: time.Now()}
		if !p.added { // what was written before anybody asked for names is not gone through
			p.position.next = s.End
		}
		if err := p.storeRead(ctx); err != nil {
			return err
		}
	}
	p.started = true
	return nil
}

// describeMissing says which records are gone that were not read; "" if none are.
func (p *partition) describeMissing(s *cluster.Span) string {
	where := p.displayName() + " of the audit topic " + p.topic
	switch at := p.position.next; {
	case at > s.End:
		return fmt.Sprintf("%s was read to offset %d and ends at %d: it was made anew, or has lost records", where, at, s.End)
	case at < s.First:
		return fmt.Sprintf("%s lost %d records before they were read", where, s.First-at)
	}
	return ""
}

// restartAt says what is lost, and goes on with the oldest record that there is.
func (p *partition) restartAt(ctx context.Context, first int64, reason string) error {
	if err := p.StoreLoss(ctx, p.position.since, reason); err != nil {
		return err
	}
	p.position = position{next: first, since: p.position.since}
	return p.storeRead(ctx)
}

// readSpan takes what is left of a span. What was read last before is looked at once more: if it is another batch now, the topic
// was made anew, whatever its offsets are.
func (p *partition) readSpan(ctx context.Context, s *cluster.Span) error {
	s.Next, s.Last, s.VerifyLast = p.position.next, p.position.last, p.position.hasBatch()
	if !s.VerifyLast && s.Next > s.First {
		s.Next-- // to know it again; it is not taken
	}
	p.readPart, p.skipBelow = audit.Part{}, p.position.next
	s.Each = p.scanRecord
	s.AfterFetch = func() error {
		p.position.next, p.position.last = max(s.Next, p.skipBelow), s.Last
		return p.storeRead(ctx)
	}
	err := cluster.NewReader(p.cluster).FetchSpans(ctx, s.Lead.Broker, []*cluster.Span{s})
	var said *cluster.CallbackError
	switch {
	case errors.As(err, &said):
		return said.Err
	case errors.Is(err, cluster.ErrRecreated):
		return p.restartAt(ctx, s.First, p.displayName()+" of the audit topic "+p.topic+" does not hold what was read of it: it was made anew")
	case errors.Is(err, kafka.OffsetOutOfRange):
		return nil // records were removed meanwhile; it is asked again which
	}
	return err
}

// scanRecord takes the events of a record.
func (p *partition) scanRecord(r *kproto.Record) error {
	if r.Offset < p.skipBelow {
		return nil
	}
	value, err := protocol.ReadBytes(r.Value)
	if err != nil || len(value) == 0 {
		return err
	}
	if p.readPart.Events, err = audit.Append(p.readPart.Events, value); err != nil {
		p.readPart.Malformed++
	}
	return nil
}

// storeRead hands over what was read, with the position behind it. It is not known which API server each event is from, so they
// have no origin: no clocks are compared.
func (p *partition) storeRead(ctx context.Context) error {
	p.readPart.Since = p.position.since
	p.position.since = p.readPart.NewestEvent()
	p.readPart.Place, p.readPart.Position = p.positionKey(p.id), p.position.String()
	err := p.StorePart(ctx, p.readPart)
	p.readPart = audit.Part{}
	return err
}

// position is a place in a partition: the offset of the next record, and what was read before it, by which the partition is
// known again.
type position struct {
	next  int64
	last  protocol.BatchID // zero where nothing was read
	since time.Time        // when the newest event before it had been answered, or when it was begun
}

func (p position) hasBatch() bool { return p.last != protocol.BatchID{} }

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
