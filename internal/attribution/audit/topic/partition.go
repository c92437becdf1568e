package topic

import (
	"context"
	"fmt"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/follow"
)

// partition reads one partition. One goroutine uses it.
type partition struct {
	*Topic
	id       int32
	follower *follow.Partition
	since    time.Time  // response time of the newest event before the position, or the start time
	readPart audit.Part // what was read since the last store
}

// newPartition returns a reader of a partition. One that was added while the topic was read is read from its start.
func newPartition(t *Topic, id int32, added bool) *partition {
	p := &partition{Topic: t, id: id}
	p.follower = follow.New(follow.Options{
		Cluster: t.cluster, Partition: cluster.Partition{Topic: t.topic, Index: id}, Role: "audit topic", FromStart: added,
		Load: p.loadPosition, Each: p.scanRecord, Store: p.storeRead,
		RecordLoss: func(ctx context.Context, reason string) error { return p.StoreLoss(ctx, p.since, reason) },
	})
	return p
}

// readAvailable reads everything up to the end of the partition.
func (p *partition) readAvailable(ctx context.Context) error {
	lead, err := p.layout.Load().Lead(p.id)
	if err != nil {
		return err
	}
	p.readPart = audit.Part{}
	return p.follower.ReadAvailable(ctx, lead)
}

func (p *partition) loadPosition() (string, error) {
	stored, err := p.StoredPosition(p.positionKey(p.id))
	if p.since = parseSince(stored); stored == "" {
		p.since = time.Now()
	}
	return stored, err
}

// scanRecord adds the events of a record to readPart.
func (p *partition) scanRecord(r follow.Record) error {
	if len(r.Value) == 0 {
		return nil
	}
	var malformed int
	p.readPart.Events, malformed = p.config.Envelope.Append(p.readPart.Events, r.Value)
	p.readPart.Malformed += malformed
	return nil
}

// storeRead stores what was read, with the position after it. The API server of an event is not known, so the events have no
// origin, and their times are not compared.
func (p *partition) storeRead(ctx context.Context, at follow.Position) error {
	p.readPart.Since = p.since
	p.since = p.readPart.NewestEvent()
	p.readPart.Place, p.readPart.Position = p.positionKey(p.id), fmt.Sprintf("%s %d", at, p.since.UnixMilli())
	err := p.StorePart(ctx, p.readPart)
	p.readPart = audit.Part{}
	return err
}

// parseSince returns the time in a stored position. Older ones have none.
func parseSince(stored string) (since time.Time) {
	var next, base, crc, ms int64
	if n, _ := fmt.Sscanf(stored, "%d %d %d %d", &next, &base, &crc, &ms); n == 4 && ms > 0 {
		since = time.UnixMilli(ms)
	}
	return since
}
