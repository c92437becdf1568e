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

// partition reads one partition. One goroutine uses it.
type partition struct {
	*Topic
	id    int
	added bool // it was added while the topic was read, so it is read from its start

	started   bool // position is known
	position  position
	skipBelow int64      // records before this offset are skipped
	readPart  audit.Part // what was read since the last store
}

// displayName is the name of the partition in messages.
func (p *partition) displayName() string { return "partition " + strconv.Itoa(p.id) }

// readAvailable reads everything up to the end of the partition.
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

// resolveStart determines where to continue. A new position is stored at once, so that a restart does not skip what is
// written from now on.
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
		if !p.added { // skip what was written before the first start
			p.position.next = s.End
		}
		if err := p.storeRead(ctx); err != nil {
			return err
		}
	}
	p.started = true
	return nil
}

// describeMissing describes unread records that are gone; "" if there are none.
func (p *partition) describeMissing(s *cluster.Span) string {
	where := p.displayName() + " of the audit topic " + p.topic
	switch at := p.position.next; {
	case at > s.End:
		return fmt.Sprintf("%s was read to offset %d and ends at %d: it was recreated, or has lost records", where, at, s.End)
	case at < s.First:
		return fmt.Sprintf("%s lost %d records before they were read", where, s.First-at)
	}
	return ""
}

// restartAt records a loss and continues at the oldest record.
func (p *partition) restartAt(ctx context.Context, first int64, reason string) error {
	if err := p.StoreLoss(ctx, p.position.since, reason); err != nil {
		return err
	}
	p.position = position{next: first, since: p.position.since}
	return p.storeRead(ctx)
}

// readSpan reads the rest of a span. The batch that was read last is fetched again: if another batch is in its place, the
// topic was recreated, whatever its offsets are (ADR 57).
func (p *partition) readSpan(ctx context.Context, s *cluster.Span) error {
	s.Next, s.Last, s.VerifyLast = p.position.next, p.position.last, p.position.hasBatch()
	if !s.VerifyLast && s.Next > s.First {
		s.Next-- // its batch identifies the partition; the record itself is skipped
	}
	p.readPart, p.skipBelow = audit.Part{}, p.position.next
	s.Each = p.scanRecord
	s.AfterFetch = func() error {
		p.position.next, p.position.last = max(s.Next, p.skipBelow), s.Last
		return p.storeRead(ctx)
	}
	err := cluster.NewReader(p.cluster).FetchSpans(ctx, s.Lead.Broker, []*cluster.Span{s})
	var caller *cluster.CallbackError
	switch {
	case errors.As(err, &caller):
		return caller.Err
	case errors.Is(err, cluster.ErrRecreated):
		reason := p.displayName() + " of the audit topic " + p.topic + " does not hold what was read of it: it was recreated"
		return p.restartAt(ctx, s.First, reason)
	case errors.Is(err, kafka.OffsetOutOfRange):
		return nil // records were removed in between; the next call finds the new extent
	}
	return err
}

// scanRecord adds the events of a record to readPart.
func (p *partition) scanRecord(r *kproto.Record) error {
	if r.Offset < p.skipBelow {
		return nil
	}
	value, err := protocol.ReadBytes(r.Value)
	if err != nil || len(value) == 0 {
		return err
	}
	var malformed int
	p.readPart.Events, malformed = p.config.Envelope.Append(p.readPart.Events, value)
	p.readPart.Malformed += malformed
	return nil
}

// storeRead stores what was read, with the position after it. The API server of an event is not known, so the events have no
// origin, and their times are not compared.
func (p *partition) storeRead(ctx context.Context) error {
	p.readPart.Since = p.position.since
	p.position.since = p.readPart.NewestEvent()
	p.readPart.Place, p.readPart.Position = p.positionKey(p.id), p.position.String()
	err := p.StorePart(ctx, p.readPart)
	p.readPart = audit.Part{}
	return err
}

// position is the offset of the next record, and the batch before it, which identifies the partition.
type position struct {
	next  int64
	last  protocol.BatchID // zero if nothing was read
	since time.Time        // response time of the newest event before it, or the start time
}

func (p position) hasBatch() bool { return p.last != protocol.BatchID{} }

// String returns the stored form.
func (p position) String() string {
	return fmt.Sprintf("%d %d %d %d", p.next, p.last.Base, p.last.CRC, p.since.UnixMilli())
}

// parsePosition parses the stored form. Older ones only have the offset.
func parsePosition(text string) (p position, ok bool) {
	var ms int64
	n, _ := fmt.Sscanf(text, "%d %d %d %d", &p.next, &p.last.Base, &p.last.CRC, &ms)
	if ms > 0 {
		p.since = time.UnixMilli(ms)
	}
	return p, n >= 1
}
