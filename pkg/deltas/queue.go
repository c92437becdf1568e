package deltas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// OriginKind says what a list given to Replace is.
type OriginKind int

// The kinds of list.
const (
	// First is the first list ever of a scope, or of a scope whose journal was lost: it claims no change.
	First OriginKind = iota
	// Resumed is no list at all: the watch goes on from the stored position and what is known stays known.
	Resumed
	// Relisted is a list after history was lost: differences are told, coalesced, after a gap record.
	Relisted
)

// Origin is where a list came from. The source knows; it says so before the Reflector hands the list over.
type Origin struct {
	Kind   OriginKind
	From   string // last complete position; "" when none
	Reason string // why history was lost, for the gap record; on First "" means that nothing was lost
}

// QueueConfig is what a Queue needs. All fields but Filter are required.
type QueueConfig struct {
	Scope  Scope
	Stored event.Stored                // nothing when the scope is new
	Filter func(namespace string) bool // objects it says no to are not observed; nil takes all
	Origin func() Origin               // of the list that Replace is about to be given
	Append Append
	Now    func() time.Time
	// SnapshotID returns an ID that no snapshot of the resource ever had.
	SnapshotID func() string
}

// Queue takes what the Reflector was told and gives observations. It is a cache.ReflectorStore; the Reflector calls its
// methods from one goroutine while Run pops in another.
type Queue struct {
	cfg   QueueConfig
	fifo  *cache.DeltaFIFO
	known *knownSet

	// order guards the ledger and is held across Append: a position must not overtake the observations below it on
	// their way to the journal (I1).
	order   sync.Mutex
	drained *sync.Cond // on order; signalled when the ledger is idle or the queue stops
	ledger  ledger
	stopped error
	stored  string // position last appended

	// Owned by the goroutine that lists.
	snapshot *event.SnapshotInfo // in progress; nil when none is
	retell   bool                // what is known was not told within a snapshot

	deleting deleting
	stats    counters
	resource atomic.Pointer[event.Resource] // see MoveTo

	life context.Context // ends with Run; bounds Append on the Reflector's side
	end  context.CancelFunc
}

var (
	_ cache.ReflectorStore         = (*Queue)(nil)
	_ cache.ReflectorBookmarkStore = (*Queue)(nil)
)

// item is an object with its number and the kind of list it came in. It is what DeltaFIFO holds.
type item struct {
	*Object
	number uint64
	origin OriginKind
	staged bool // came before the list it belongs to

	snapshot *event.SnapshotInfo // that the list is part of
	retell   bool                // tell it even if it is known
}

// NewQueue returns a queue that knows what is stored. It starts nothing.
func NewQueue(cfg QueueConfig) *Queue {
	q := &Queue{cfg: cfg, known: newKnownSet(cfg.Stored.Known), stored: cfg.Stored.Position, deleting: deleting{}}
	q.cfg.Stored.Known = nil // the set has them
	q.life, q.end = context.WithCancel(context.Background())
	q.ledger.position = cfg.Stored.Position
	if cfg.Stored.Position == "" && cfg.Stored.Snapshot != "" {
		q.snapshot = &event.SnapshotInfo{ID: cfg.Stored.Snapshot}
	}
	// In a journal from before there were snapshots a first list may have been cut short.
	q.retell = cfg.Stored.Position == "" && cfg.Stored.Snapshot == "" && len(cfg.Stored.Known) > 0
	q.drained = sync.NewCond(&q.order)
	quiet := klog.Logger{}
	q.fifo = cache.NewDeltaFIFOWithOptions(cache.DeltaFIFOOptions{
		KeyFunction: KeyOf, KnownObjects: q.known, EmitDeltaTypeReplaced: true, Logger: &quiet, Name: cfg.Scope.ID,
	})
	return q
}

// MoveTo says in which version the resource is read from now on: what is told of objects without a body of their own, and
// of none in particular, carries its name. It may be called by any goroutine.
func (q *Queue) MoveTo(r event.Resource) { q.resource.Store(&r) }

func (q *Queue) scope() Scope {
	s := q.cfg.Scope
	if r := q.resource.Load(); r != nil {
		s.Resource = *r
	}
	return s
}

// Run turns deltas into observations until ctx ends or Append fails. What is queued then is not lost: the stored
// position is before it.
func (q *Queue) Run(ctx context.Context) error {
	defer q.end()
	defer context.AfterFunc(ctx, func() { q.end(); q.fifo.Close() })()
	for {
		_, err := q.fifo.Pop(func(obj any, _ bool) error { return q.process(ctx, obj.(cache.Deltas)) })
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			q.stop(err)
			if errors.Is(err, cache.ErrFIFOClosed) || ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

func (q *Queue) stop(err error) {
	q.order.Lock()
	defer q.order.Unlock()
	q.stopped = err
	q.drained.Broadcast()
}

// process runs under DeltaFIFO's lock, so that the known set never lags behind what was popped.
func (q *Queue) process(ctx context.Context, ds cache.Deltas) error {
	key, err := q.fifo.KeyOf(ds)
	if err != nil {
		return err
	}
	before := q.known.get(key)
	after, changes := Step(q.scope(), before, ds)
	if after != before {
		q.known.put(after)
	}

	q.order.Lock()
	defer q.order.Unlock()
	for _, d := range ds {
		number := numberOf(d)
		q.ledger.finish(number)
		q.deleting.popped(key, number)
	}
	o := Observation{Scope: q.cfg.Scope.ID, Changes: changes}
	o.Forget = q.known.forgetGone(q.ledger.position)
	if after != before && !slices.Contains(o.Forget, key) {
		o.Known = []event.Known{after}
	}
	q.stats.count(changes)
	return q.append(ctx, o)
}

// append completes o with the position and hands it over. The caller holds q.order.
func (q *Queue) append(ctx context.Context, o Observation) error {
	if q.ledger.position != q.stored {
		o.Position = q.ledger.position
	}
	if q.ledger.idle() {
		q.drained.Broadcast()
	}
	if len(o.Changes) == 0 && len(o.Known) == 0 && len(o.Forget) == 0 && o.Position == "" {
		return nil
	}
	o.Resource = q.scope().Resource
	if err := q.cfg.Append(ctx, o); err != nil {
		return err
	}
	q.stored = q.ledger.position
	return nil
}

func numberOf(d cache.Delta) uint64 {
	if t, ok := d.Object.(cache.DeletedFinalStateUnknown); ok {
		return t.Obj.(*item).number
	}
	return d.Object.(*item).number
}

// Add takes an ADDED watch event.
func (q *Queue) Add(obj any) error { return q.enter(obj, q.fifo.Add, false) }

// Update takes a MODIFIED watch event.
func (q *Queue) Update(obj any) error { return q.enter(obj, q.fifo.Update, false) }

// Delete takes a DELETED watch event.
func (q *Queue) Delete(obj any) error { return q.enter(obj, q.fifo.Delete, true) }

// enter numbers a watch event and queues it. Where the filter says no, only the position moves.
func (q *Queue) enter(obj any, queue func(any) error, deleted bool) error {
	o, ok := obj.(*Object)
	if !ok {
		return fmt.Errorf("deltas: watch event carries %T, want *deltas.Object", obj)
	}
	if !q.wanted(o) {
		return q.Bookmark(o.ResourceVersion)
	}
	q.stats.event(q.cfg.Now())
	it := &item{Object: o}
	if !q.admit(it, deleted) {
		return q.Bookmark(o.ResourceVersion)
	}
	return queue(it)
}

// admit gives the item its number, unless it is a delete that DeltaFIFO would merge with the one queued before it.
func (q *Queue) admit(it *item, deleted bool) bool {
	q.order.Lock()
	defer q.order.Unlock()
	switch {
	case !deleted:
		q.deleting.exists(it.Key())
	case q.deleting.queued(it.Key()):
		return false
	}
	it.number = q.ledger.enter(it.ResourceVersion, false)
	if deleted {
		q.deleting.mark(it.Key(), it.number)
	}
	return true
}

// Bookmark moves the position of a quiet resource (KEP-956).
func (q *Queue) Bookmark(resourceVersion string) error {
	q.stats.event(q.cfg.Now())
	return q.pass(func() { q.ledger.enter(resourceVersion, true) })
}

// pass does something to the ledger and appends what follows from it.
func (q *Queue) pass(move func()) error {
	q.order.Lock()
	defer q.order.Unlock()
	move()
	o := Observation{Scope: q.cfg.Scope.ID, Forget: q.known.forgetGone(q.ledger.position)}
	return q.append(q.life, o)
}

func (q *Queue) wanted(o *Object) bool { return q.cfg.Filter == nil || q.cfg.Filter(o.Namespace) }

// Resync does nothing: known objects are announced again by nobody.
func (q *Queue) Resync() error { return nil }
