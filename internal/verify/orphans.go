package verify

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// maxOrphans bounds the rows that are held while a destination is read. One with more is read several times, for a range of
// keys each. // I6
const maxOrphans = 100_000

var errTooManyOrphans = errors.New("more rows than can be held at once")

// EndedSnapshot is a snapshot that a destination has all records of.
type EndedSnapshot struct {
	Resource  event.Resource
	Namespace string // "" for all
	ID        string
	Position  string // up to which it is complete
}

// Orphans finds rows that snapshots may lack.
type Orphans struct {
	Reader    sinks.StoredReader
	Target    string // a topic; "" for a stream
	Cluster   string // of the rows: others stay
	Snapshots []EndedSnapshot
	MaxRows   int // that are held at once; 0: 100,000
}

// orphanRow is the newest record of a key in a lane.
type orphanRow struct {
	lane int
	key  string
}

// Find reads all lanes, and passes the rows that are of a snapshot's objects, by its index, and in versions that it would
// have replaced, as deletes to each, once or more often. The caller knows the objects, and decides which of them are
// orphans. A key is left out if it has another record in another lane, where the objects of a topic that grew go.
func (o *Orphans) Find(ctx context.Context, each func(snapshot int, rows []*event.Change) error) error {
	lanes, err := o.Reader.StoredLanes(ctx, o.Target)
	if err != nil {
		return err
	}
	const hashBits = 64
	seed := maphash.MakeSeed()
	for prefix, bits := uint64(0), 0; prefix < 1<<bits; prefix++ {
		part := &orphanPart{Orphans: o, parser: &recordParser{format: format.Upsert}, rows: map[orphanRow]foundRow{}, lanes: lanes,
			contains: func(key string) bool { return maphash.String(seed, key)>>(hashBits-bits) == prefix }}
		err := part.readRows(ctx)
		switch {
		case errors.Is(err, errTooManyOrphans):
			prefix, bits = prefix*2-1, bits+1 // the first half is next
		case err != nil:
			return err
		default:
			if err := part.emit(each); err != nil {
				return err
			}
		}
	}
	return nil
}

// foundRow is the delete of the object of a row, and the snapshot that would have replaced the row.
type foundRow struct {
	*event.Change
	snapshot int
}

// orphanPart is a range of keys.
type orphanPart struct {
	*Orphans
	parser   *recordParser
	contains func(key string) bool
	lanes    []sinks.StoredLane
	rows     map[orphanRow]foundRow
}

func (p *orphanPart) readRows(ctx context.Context) error {
	err := p.readLanes(ctx, p.contains, func(at orphanRow, stored sinks.StoredRecord) error {
		if row, kind := p.parseRow(stored); kind == rowReplaced {
			p.rows[at] = row
		} else {
			delete(p.rows, at)
		}
		if len(p.rows) > cmp.Or(p.MaxRows, maxOrphans) {
			return errTooManyOrphans
		}
		return nil
	})
	if err != nil || len(p.lanes) == 1 || len(p.rows) == 0 {
		return err
	}
	return p.removeElsewhere(ctx)
}

func (p *orphanPart) readLanes(ctx context.Context, contains func(string) bool, each func(orphanRow, sinks.StoredRecord) error) error {
	spans := make([]sinks.StoredSpan, len(p.lanes))
	for i, l := range p.lanes {
		spans[i] = sinks.StoredSpan{StoredLane: l, From: l.First, To: l.End}
	}
	return p.Reader.ReadStored(ctx, spans, func(stored sinks.StoredRecord) error {
		if !contains(stored.Key) {
			return nil
		}
		return each(orphanRow{stored.Lane, stored.Key}, stored)
	})
}

// removeElsewhere removes the rows of keys that have another one in another lane.
func (p *orphanPart) removeElsewhere(ctx context.Context) error {
	keys, elsewhere := map[string]bool{}, map[orphanRow]bool{}
	for at := range p.rows {
		keys[at.key] = true
	}
	err := p.readLanes(ctx, func(key string) bool { return keys[key] }, func(at orphanRow, stored sinks.StoredRecord) error {
		delete(elsewhere, at)
		if _, kind := p.parseRow(stored); kind == rowStays {
			elsewhere[at] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	stays := map[string]bool{}
	for at := range elsewhere {
		stays[at.key] = true
	}
	maps.DeleteFunc(p.rows, func(at orphanRow, _ foundRow) bool { return stays[at.key] })
	return nil
}

// rowKind is what a record means for its key.
type rowKind int

const (
	rowStays    rowKind = iota // no snapshot would have replaced it, or it is not ours
	rowReplaced                // a snapshot would have replaced it
	rowRemoved                 // the key has no value
)

// parseRow returns the row of a record that a snapshot would have replaced.
func (p *orphanPart) parseRow(stored sinks.StoredRecord) (row foundRow, kind rowKind) {
	r, ours := p.parser.parse(stored)
	switch {
	case stored.RemovesUnnamed || len(stored.Value) == 0 || ours && r.Type == string(event.Deleted):
		return row, rowRemoved
	case !ours || r.malformed || !r.isObject() || r.Cluster != p.Cluster:
		return row, rowStays
	}
	snapshot := stored.Header(format.HeaderSnapshot)
	if r.Snapshot != nil {
		snapshot = r.Snapshot.ID
	}
	of := event.Resource{Group: r.Group, Resource: r.Resource}.String()
	for i, s := range p.Snapshots {
		order, ordered := resourceversion.Compare(r.ResourceVersion, s.Position)
		if s.Resource.String() != of || s.Namespace != "" && s.Namespace != r.Namespace || s.ID == snapshot || !ordered || order > 0 {
			continue
		}
		if r.Version != "" { // where the key has it
			s.Resource.Version = r.Version
		}
		return foundRow{&event.Change{
			Type: event.Deleted, Delta: event.DeltaDeleted, Cluster: r.Cluster, Resource: s.Resource, Namespace: r.Namespace, Name: r.Name,
			UID: r.UID, ResourceVersion: r.ResourceVersion, ListVersion: s.Position, Coalesced: true, FinalStateUnknown: true,
			ObservedAt: time.Now().UTC(), Snapshot: &event.SnapshotInfo{ID: s.ID}, Pass: s.ID, // which found that the object is gone
		}, i}, rowReplaced
	}
	return row, rowStays
}

// emit passes what was found to each, in the order of the keys.
func (p *orphanPart) emit(each func(int, []*event.Change) error) error {
	bySnapshot := map[int][]*event.Change{}
	for _, row := range p.rows {
		bySnapshot[row.snapshot] = append(bySnapshot[row.snapshot], row.Change)
	}
	for _, snapshot := range slices.Sorted(maps.Keys(bySnapshot)) {
		rows := bySnapshot[snapshot]
		slices.SortFunc(rows, func(a, b *event.Change) int {
			return compareKeys(consumer.Key{Namespace: a.Namespace, Name: a.Name}, consumer.Key{Namespace: b.Namespace, Name: b.Name})
		})
		if err := each(snapshot, rows); err != nil {
			return err
		}
	}
	return nil
}
