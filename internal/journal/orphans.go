package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

// OrphanPass is due for a sink behind the end of a snapshot: what stands in the destination is read, and rows of objects
// that the snapshot lacks get deletes. It is JSON in the store.
type OrphanPass struct {
	Sink      string         `json:"sink"`
	Cluster   string         `json:"cluster"`
	Resource  event.Resource `json:"resource"`
	Namespace string         `json:"namespace,omitempty"` // "" for all
	Snapshot  string         `json:"snapshot"`            // its ID
	Position  string         `json:"position"`            // up to which it is complete
	Offset    uint64         `json:"offset"`              // of its end
}

func (p OrphanPass) key() []byte {
	return codec.KeyOrphanPass(p.Sink, p.Resource.String(), p.Namespace)
}

// maxTouched bounds the objects that may change while a destination is read. // I6
const maxTouched = 1 << 18

// ErrOutrun is returned if too many objects changed while a destination was read, or a newer snapshot has begun. Reading it
// again is the remedy.
var ErrOutrun = errors.New("the cluster has changed too much meanwhile")

// OrphanReading is the reading of a destination, with the objects that changed since it began. Only the committer's
// goroutine uses it.
type OrphanReading struct {
	sink    string
	touched map[uint64]bool
}

// OrphanLedger holds the passes that are due. Safe for concurrent use.
type OrphanLedger struct {
	store *store
	queue *queue
	seed  maphash.Seed

	// Only the committer's goroutine uses these.
	sinks    []string // that get passes
	starts   map[string]Start
	readings map[*OrphanReading]bool

	mu  sync.Mutex
	all map[string]OrphanPass // by key, as the committer has written them: the last write may not be durable yet
}

// OrphanPasses returns the passes that are due for a sink, in order.
func (l *OrphanLedger) OrphanPasses(sink string) []OrphanPass {
	due := slices.DeleteFunc(l.allPasses(), func(p OrphanPass) bool { return p.Sink != sink })
	slices.SortFunc(due, func(a, b OrphanPass) int { return bytes.Compare(a.key(), b.key()) })
	return due
}

// BeginOrphanReading begins to note which objects change, until EndOrphanReading. What the sink has received up to the
// offset that it returns has to be in the destination when that is read.
func (l *OrphanLedger) BeginOrphanReading(ctx context.Context, sink string) (r *OrphanReading, newest uint64, err error) {
	r = &OrphanReading{sink: sink, touched: map[uint64]bool{}}
	err = l.queue.submit(ctx, func(g *group) error {
		l.readings[r], newest = true, g.log.extent.newest+uint64(len(g.log.openFrame))
		return nil
	}, nil)
	return r, newest, err
}

// EndOrphanReading ends a reading.
func (l *OrphanLedger) EndOrphanReading(ctx context.Context, r *OrphanReading) {
	_ = l.queue.submit(ctx, func(*group) error { delete(l.readings, r); return nil }, nil) // else the process ends
}

// RemoveOrphans appends the deletes of rows for the sink of a pass, in one durable write, and returns how many. A row stays
// if its object changed since the reading began (I3), exists in the version of the row, or is newer than the snapshot.
func (l *OrphanLedger) RemoveOrphans(ctx context.Context, r *OrphanReading, p OrphanPass, rows []*event.Change) (removed int, err error) {
	err = l.queue.submit(ctx, func(g *group) error {
		if l.findPass(p.key()).Snapshot != p.Snapshot || len(r.touched) >= maxTouched {
			return ErrOutrun
		}
		for _, row := range rows {
			orphan, err := l.isOrphan(r, p, row)
			if err != nil {
				return l.store.checkCorruption("known object", err)
			}
			if orphan {
				row.OnlySink = p.Sink
				g.log.addChange(row)
				removed++
			}
		}
		return nil
	}, nil)
	return removed, err
}

// isOrphan reports whether the destination has a row that the snapshot of a pass has not replaced.
func (l *OrphanLedger) isOrphan(r *OrphanReading, p OrphanPass, row *event.Change) (bool, error) {
	object := strings.TrimPrefix(row.Namespace+"/"+row.Name, "/")
	if r.touched[l.hashObject(p.Resource.String(), object)] {
		return false, nil
	}
	value, err := l.store.getValue(codec.KeyNamed(codec.PrefixKnown, p.Resource.String(), object))
	if err != nil || value == nil {
		return err == nil, err
	}
	k, err := codec.DecodeKnown([]byte(object), value)
	if err != nil || k.UID == "" || k.UID == row.UID && k.ResourceVersion == row.ResourceVersion {
		return false, err
	}
	order, ordered := resourceversion.Compare(k.ResourceVersion, p.Position)
	return ordered && order <= 0, nil
}

// RemoveOrphanPass removes a pass that has ended, unless a newer snapshot has taken its place. Durable when it returns nil.
func (l *OrphanLedger) RemoveOrphanPass(ctx context.Context, p OrphanPass) error {
	return l.queue.submit(ctx, func(g *group) error {
		if l.findPass(p.key()).Snapshot == p.Snapshot {
			l.removePass(g.batch, p)
		}
		return nil
	}, nil)
}

func (l *OrphanLedger) findPass(key []byte) OrphanPass {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[string(key)]
}

func (l *OrphanLedger) removePass(b *writeBatch, p OrphanPass) {
	b.removeKey(p.key())
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, string(p.key()))
}

func (l *OrphanLedger) putPass(b *writeBatch, p OrphanPass) {
	value, _ := json.Marshal(p) // plain data
	b.putKey(p.key(), value)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all[string(p.key())] = p
}

// recordChange notes a change that is appended. The end of a snapshot makes passes due, in the same write; the next one of
// the same objects lacks all that this one lacked, so its beginning takes them back.
func (l *OrphanLedger) recordChange(b *writeBatch, c *event.Change, offset uint64) {
	if c.Name != "" {
		l.touchObject(c.Resource.String(), strings.TrimPrefix(c.Namespace+"/"+c.Name, "/"), c.OnlySink)
	}
	if c.Type != event.SnapshotBegin && c.Type != event.SnapshotEnd {
		return
	}
	for _, sink := range l.sinks {
		if c.Held.Skips(sink) || c.OnlySink != sink && (c.OnlySink != "" || l.starts[sink] == StartNow) { // first lists do not come to the latter
			continue
		}
		p := OrphanPass{Sink: sink, Cluster: c.Cluster, Resource: c.Resource, Namespace: c.Namespace, Snapshot: c.Snapshot.ID,
			Position: c.Snapshot.Position, Offset: offset}
		if c.Type == event.SnapshotEnd {
			l.putPass(b, p)
		} else if c.OnlySink == "" && l.findPass(p.key()).Sink != "" {
			l.removePass(b, p)
		}
	}
}

// touchObject notes an object for the readings that are under way; what is for one sink, for that of this sink alone.
func (l *OrphanLedger) touchObject(resource, object, onlySink string) {
	for r := range l.readings {
		if len(r.touched) < maxTouched && (onlySink == "" || onlySink == r.sink) {
			r.touched[l.hashObject(resource, object)] = true
		}
	}
}

func (l *OrphanLedger) hashObject(resource, object string) uint64 {
	return maphash.String(l.seed, resource+" "+object)
}

// declare sets the sinks that get passes. Those of others are due no longer.
func (l *OrphanLedger) declare(b *writeBatch, d Declaration) {
	l.sinks, l.starts = d.ReadBack, d.Starts
	for _, p := range l.allPasses() {
		if !slices.Contains(d.ReadBack, p.Sink) {
			l.removePass(b, p)
		}
	}
}

// renameSink lets the passes of a sink go on for the name that it has now.
func (l *OrphanLedger) renameSink(b *writeBatch, before, name string) {
	for _, p := range l.allPasses() {
		if p.Sink == before {
			l.removePass(b, p)
			p.Sink = name
			l.putPass(b, p)
		}
	}
}

func (l *OrphanLedger) allPasses() []OrphanPass {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.all))
}

func (l *OrphanLedger) loadFromStore() error {
	all := map[string]OrphanPass{}
	err := l.store.forEachKey(codec.PrefixOrphans, func(key, value []byte) error {
		var p OrphanPass
		if err := json.Unmarshal(value, &p); err != nil {
			return fmt.Errorf("%w: orphan pass: %w", form.ErrMalformed, err)
		}
		all[string(key)] = p
		return nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = all
	return err
}

// forget drops from memory what a seed has dropped.
func (l *OrphanLedger) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.all)
}
