package deltas

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Event is one thing the API server said about an object: watch.Added, Modified or Deleted.
type Event struct {
	Type   watch.EventType
	Object *Object
}

// Tracker turns what the API server says about a scope into observations. One goroutine uses it, except for Stats and
// SetResource; no method waits for anything.
type Tracker struct {
	scope           Scope
	selectNamespace func(namespace string) bool
	now             func() time.Time
	known           *KnownSet
	fifo            *cache.DeltaFIFO
	queued          map[string]struct{} // keys in fifo
	view            fifoView            // what DeltaFIFO sees of known
	list            *List               // being read; nil while watching

	resource atomic.Pointer[event.Resource] // see SetResource
	stats    counters
}

// NewTracker returns a tracker of a scope that knows the objects of known, which it owns from now on. filter says whether
// objects of a namespace are wanted; nil takes all. now is the clock.
func NewTracker(s Scope, known *KnownSet, filter func(namespace string) bool, now func() time.Time) *Tracker {
	t := &Tracker{scope: s, selectNamespace: filter, now: now, known: known, queued: map[string]struct{}{}}
	quiet := klog.Logger{}
	t.fifo = cache.NewDeltaFIFOWithOptions(cache.DeltaFIFOOptions{
		KeyFunction: objectKey, KnownObjects: &t.view, EmitDeltaTypeReplaced: true, Logger: &quiet, Name: s.ID,
	})
	t.stats.known.Store(int64(known.Len()))
	return t
}

// fifoView is the view of the known objects that DeltaFIFO is given for what it is about to do: the keys to make
// tombstones or Sync deltas for, and the objects in them.
type fifoView struct {
	keys   []string
	object func(key string) *Object
}

func (v *fifoView) ListKeys() []string { return v.keys }

// GetByKey says yes to every key, also to unknown ones: DeltaFIFO drops a watch DELETED of a key that does not exist,
// and whether a delete is news is Step's decision.
func (v *fifoView) GetByKey(key string) (any, bool, error) {
	if v.object == nil {
		return nil, true, nil
	}
	return v.object(key), true, nil
}

// queueWithView shows DeltaFIFO these objects while it queues a delta for each of them.
func (t *Tracker) queueWithView(keys []string, object func(string) *Object, do func() error) error {
	t.view = fifoView{keys, object}
	defer func() { t.view = fifoView{} }()
	for _, key := range keys {
		t.queued[key] = struct{}{}
	}
	return do()
}

// SetResource says in which version the resource is read from now on: what is emitted of objects without a body of their own,
// and of none in particular, carries its name. It may be called by any goroutine.
func (t *Tracker) SetResource(r event.Resource) { t.resource.Store(&r) }

func (t *Tracker) currentScope() Scope {
	s := t.scope
	if r := t.resource.Load(); r != nil {
		s.Resource = *r
	}
	return s
}

// KnownCount is the number of objects known to exist.
func (t *Tracker) KnownCount() int { return t.known.Len() }

// ObserveEvents takes a batch of events and the resourceVersion of the last of them, bookmarks included; "" where they do not
// move the position, as in a list.
func (t *Tracker) ObserveEvents(batch []Event, position string) (event.Observation, error) {
	for _, e := range batch {
		if t.selectNamespace != nil && !t.selectNamespace(e.Object.Namespace) {
			continue
		}
		if err := t.enqueueEvent(e); err != nil {
			return event.Observation{}, err
		}
	}
	o, err := t.drainQueue()
	o.Position = position
	return o, err
}

// enqueueEvent puts an event into DeltaFIFO. One that says nothing of an object is not noted either: drain would wait for it.
func (t *Tracker) enqueueEvent(e Event) (err error) {
	switch e.Type {
	case watch.Added:
		err = t.fifo.Add(e.Object)
	case watch.Modified:
		err = t.fifo.Update(e.Object)
	case watch.Deleted:
		err = t.fifo.Delete(e.Object)
	default:
		return nil
	}
	if err == nil {
		t.queued[e.Object.Key()] = struct{}{}
	}
	return err
}

// NewGap returns the record that history between two positions was lost. to is a position of now; what differs follows.
func (t *Tracker) NewGap(from, to, reason string) *event.Change {
	c := t.currentScope().newControlRecord(event.Gap, to, t.now())
	c.Gap = &event.GapInfo{From: from, To: to, Reason: reason}
	return c
}

// NewSnapshotBegin returns the record that a snapshot begins.
func (t *Tracker) NewSnapshotBegin(id string) *event.Change {
	c := t.currentScope().newControlRecord(event.SnapshotBegin, "", t.now())
	c.Snapshot = &event.SnapshotInfo{ID: id}
	return c
}

// NewObservation returns an observation of these changes and nothing else.
func (t *Tracker) NewObservation(changes ...*event.Change) event.Observation {
	s := t.currentScope()
	t.stats.countChanges(changes)
	return event.Observation{Resource: s.Resource, Scope: s.ID, Changes: changes}
}

// StartList says that what Watched takes from now on is a list of what exists, in no particular order. A list that is
// broken off is begun again; what was emitted of it stays, and is silent in the next.
func (t *Tracker) StartList(l List) {
	t.list = &l
	t.known.startListPass()
}

// maxTombstones is how many objects that a list lacks go into one observation.
const maxTombstones = 1000

// ObserveMissing returns an observation of objects that the list lacks, and whether there are more of them. It is called when all
// of the list was taken, until there are none.
func (t *Tracker) ObserveMissing() (o event.Observation, more bool, err error) {
	keys := t.known.unseenKeys(maxTombstones)
	now := t.now()
	stub := func(key string) *Object { return stubFromKnown(t.known.lookupKey(key), now) }
	err = t.queueWithView(keys, stub, func() error { return t.fifo.Replace(nil, "") })
	if err != nil {
		return o, false, err
	}
	o, err = t.drainQueue()
	return o, len(keys) == maxTombstones, err
}

// FinishList says that all of the list was emitted, and returns the observation that ends it: position is its own.
func (t *Tracker) FinishList(position string) event.Observation {
	o := t.NewObservation()
	if s := t.list.Snapshot; s != nil {
		end := t.currentScope().newControlRecord(event.SnapshotEnd, position, t.now())
		end.Snapshot = &event.SnapshotInfo{ID: s.ID, Position: position, Count: t.known.Len(), Digest: t.known.computeDigest()}
		o = t.NewObservation(end)
	}
	t.list = nil
	o.Position = position
	t.stats.recordSeen(t.now())
	return o
}

// ObserveSynced takes an object that was read because a rule wants it to be emitted again. pass names the reading.
func (t *Tracker) ObserveSynced(object *Object, pass string) (event.Observation, error) {
	err := t.queueWithView([]string{object.Key()}, func(string) *Object { return object }, t.fifo.Resync)
	if err != nil {
		return event.Observation{}, err
	}
	t.list = &List{Pass: pass}
	defer func() { t.list = nil }()
	return t.drainQueue()
}

// ObserveBodies returns an observation of the bodies of those objects that are still in the version that is known: nothing was
// emitted of the others' yet, or something newer. What is remembered of their state is completed where it is missing.
func (t *Tracker) ObserveBodies(objects []*Object) event.Observation {
	o := t.NewObservation()
	for _, object := range objects {
		known := t.known.lookupKey(object.Key())
		if !object.matchesKnown(known) {
			continue
		}
		o.Bodies = append(o.Bodies, event.Body{Key: known.Key, UID: known.UID, ResourceVersion: known.ResourceVersion, Raw: object.Raw})
		if known.Summary == "" && object.Summary != "" {
			known.Summary = object.Summary
			t.known.replaceOrRemove(known)
			o.Known = append(o.Known, known)
		}
	}
	return o
}

// drainQueue empties the queue through Step.
func (t *Tracker) drainQueue() (event.Observation, error) {
	o := t.NewObservation()
	t.stats.recordSeen(t.now())
	for range t.queued {
		if _, err := t.fifo.Pop(func(obj any, _ bool) error { return t.stepObject(&o, obj.(cache.Deltas)) }); err != nil {
			return o, err
		}
	}
	clear(t.queued)
	t.stats.countChanges(o.Changes)
	t.stats.known.Store(int64(t.known.Len()))
	return o, nil
}

// stepObject adds to o what the deltas of one object mean.
func (t *Tracker) stepObject(o *event.Observation, ds cache.Deltas) error {
	key, err := t.fifo.KeyOf(ds)
	if err != nil {
		return err
	}
	before := t.known.lookupKey(key)
	after, changes := Step(t.currentScope(), t.list, before, ds)
	o.Changes = append(o.Changes, changes...)
	switch {
	case after != before:
		t.known.replaceOrRemove(after)
		if after.Exists() {
			o.Known = append(o.Known, after)
		} else {
			o.RemovedKeys = append(o.RemovedKeys, key)
		}
	case t.list != nil:
		t.known.markSeen(key)
	}
	return nil
}

// stubFromKnown is an object of which only the identity is known.
func stubFromKnown(k event.Known, observedAt time.Time) *Object {
	namespace, name, err := cache.SplitMetaNamespaceKey(k.Key)
	if err != nil { // a key is made by NewObject and has at most one slash
		name = k.Key
	}
	o := NewObject(namespace, name)
	o.UID, o.ResourceVersion, o.ObservedAt = k.UID, k.ResourceVersion, observedAt
	return o
}

// Stats is what a tracker has seen and emitted since it was made.
type Stats struct {
	Known    int       // objects known to exist
	LastSeen time.Time // when the API server last said something; zero if never
	Changes  map[event.Type]uint64
}

// Stats may be called at any time from any goroutine. It waits for nothing.
func (t *Tracker) Stats() Stats {
	s := Stats{Known: int(t.stats.known.Load()), Changes: map[event.Type]uint64{}}
	if at := t.stats.lastSeen.Load(); at != nil {
		s.LastSeen = *at
	}
	t.stats.mu.Lock()
	defer t.stats.mu.Unlock()
	for typ, n := range t.stats.changes {
		s.Changes[typ] = n
	}
	return s
}

type counters struct {
	known    atomic.Int64
	lastSeen atomic.Pointer[time.Time]

	mu      sync.Mutex
	changes map[event.Type]uint64
}

// recordSeen notes that the API server said something: an event, a bookmark or a list.
func (c *counters) recordSeen(at time.Time) { c.lastSeen.Store(&at) }

func (c *counters) countChanges(changes []*event.Change) {
	if len(changes) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changes == nil {
		c.changes = map[event.Type]uint64{}
	}
	for _, ch := range changes {
		c.changes[ch.Type]++
	}
}
