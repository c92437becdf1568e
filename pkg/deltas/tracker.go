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
// MoveTo; no method waits for anything.
type Tracker struct {
	scope  Scope
	filter func(namespace string) bool
	now    func() time.Time
	known  *Known
	fifo   *cache.DeltaFIFO
	queued map[string]struct{} // keys in fifo
	ask    knownObjects        // what DeltaFIFO sees of known
	list   *List               // being read; nil while watching

	resource atomic.Pointer[event.Resource] // see MoveTo
	stats    counters
}

// NewTracker returns a tracker of a scope that knows the objects of known, which it owns from now on. filter says whether
// objects of a namespace are wanted; nil takes all. now is the clock.
func NewTracker(s Scope, known *Known, filter func(namespace string) bool, now func() time.Time) *Tracker {
	t := &Tracker{scope: s, filter: filter, now: now, known: known, queued: map[string]struct{}{}}
	quiet := klog.Logger{}
	t.fifo = cache.NewDeltaFIFOWithOptions(cache.DeltaFIFOOptions{
		KeyFunction: keyOf, KnownObjects: &t.ask, EmitDeltaTypeReplaced: true, Logger: &quiet, Name: s.ID,
	})
	t.stats.known.Store(int64(known.Len()))
	return t
}

// knownObjects is the view of the known objects that DeltaFIFO is given for what it is about to do: the keys to make
// tombstones or Sync deltas for, and the objects in them.
type knownObjects struct {
	keys   []string
	object func(key string) *Object
}

func (v *knownObjects) ListKeys() []string { return v.keys }

// GetByKey says yes to every key, also to unknown ones: DeltaFIFO drops a watch DELETED of a key that does not exist,
// and whether a delete is news is Step's decision.
func (v *knownObjects) GetByKey(key string) (any, bool, error) {
	if v.object == nil {
		return nil, true, nil
	}
	return v.object(key), true, nil
}

// with shows DeltaFIFO these objects while it queues a delta for each of them.
func (t *Tracker) with(keys []string, object func(string) *Object, do func() error) error {
	t.ask = knownObjects{keys, object}
	defer func() { t.ask = knownObjects{} }()
	for _, key := range keys {
		t.queued[key] = struct{}{}
	}
	return do()
}

// MoveTo says in which version the resource is read from now on: what is emitted of objects without a body of their own,
// and of none in particular, carries its name. It may be called by any goroutine.
func (t *Tracker) MoveTo(r event.Resource) { t.resource.Store(&r) }

func (t *Tracker) current() Scope {
	s := t.scope
	if r := t.resource.Load(); r != nil {
		s.Resource = *r
	}
	return s
}

// Known is the number of objects known to exist.
func (t *Tracker) Known() int { return t.known.Len() }

// Watched takes a batch of events and the resourceVersion of the last of them, bookmarks included; "" where they do not
// move the position, as in a list.
func (t *Tracker) Watched(batch []Event, position string) (event.Observation, error) {
	for _, e := range batch {
		if t.filter != nil && !t.filter(e.Object.Namespace) {
			continue
		}
		if err := t.queue(e); err != nil {
			return event.Observation{}, err
		}
	}
	o, err := t.drain()
	o.Position = position
	return o, err
}

// queue puts an event into DeltaFIFO. One that says nothing of an object is not noted either: drain would wait for it.
func (t *Tracker) queue(e Event) (err error) {
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

// Gap returns the record that history between two positions was lost. to is a position of now; what differs follows.
func (t *Tracker) Gap(from, to, reason string) *event.Change {
	c := t.current().control(event.Gap, to, t.now())
	c.Gap = &event.GapInfo{From: from, To: to, Reason: reason}
	return c
}

// SnapshotBegin returns the record that a snapshot begins.
func (t *Tracker) SnapshotBegin(id string) *event.Change {
	c := t.current().control(event.SnapshotBegin, "", t.now())
	c.Snapshot = &event.SnapshotInfo{ID: id}
	return c
}

// Observe returns an observation of these changes and nothing else.
func (t *Tracker) Observe(changes ...*event.Change) event.Observation {
	s := t.current()
	t.stats.count(changes)
	return event.Observation{Resource: s.Resource, Scope: s.ID, Changes: changes}
}

// BeginList says that what Watched takes from now on is a list of what exists, in no particular order. A list that is
// broken off is begun again; what was emitted of it stays, and is silent in the next.
func (t *Tracker) BeginList(l List) {
	t.list = &l
	t.known.begin()
}

// tombstones is how many objects that a list lacks go into one observation.
const tombstones = 1000

// Missing returns an observation of objects that the list lacks, and whether there are more of them. It is called when all
// of the list was taken, until there are none.
func (t *Tracker) Missing() (o event.Observation, more bool, err error) {
	keys := t.known.unseen(tombstones)
	now := t.now()
	stub := func(key string) *Object { return stubOf(t.known.get(key), now) }
	err = t.with(keys, stub, func() error { return t.fifo.Replace(nil, "") })
	if err != nil {
		return o, false, err
	}
	o, err = t.drain()
	return o, len(keys) == tombstones, err
}

// EndList says that all of the list was emitted, and returns the observation that ends it: position is its own.
func (t *Tracker) EndList(position string) event.Observation {
	o := t.Observe()
	if s := t.list.Snapshot; s != nil {
		end := t.current().control(event.SnapshotEnd, position, t.now())
		end.Snapshot = &event.SnapshotInfo{ID: s.ID, Position: position, Count: t.known.Len(), Digest: t.known.digest()}
		o = t.Observe(end)
	}
	t.list = nil
	o.Position = position
	t.stats.seen(t.now())
	return o
}

// Synced takes an object that was read because a rule wants it to be emitted again. pass names the reading.
func (t *Tracker) Synced(object *Object, pass string) (event.Observation, error) {
	err := t.with([]string{object.Key()}, func(string) *Object { return object }, t.fifo.Resync)
	if err != nil {
		return event.Observation{}, err
	}
	t.list = &List{Pass: pass}
	defer func() { t.list = nil }()
	return t.drain()
}

// Bodies returns an observation of the bodies of those objects that are still in the version that is known: nothing was
// emitted of the others' yet, or something newer. What is remembered of their state is completed where it is missing.
func (t *Tracker) Bodies(objects []*Object) event.Observation {
	o := t.Observe()
	for _, object := range objects {
		known := t.known.get(object.Key())
		if !object.is(known) {
			continue
		}
		o.Bodies = append(o.Bodies, event.Body{Key: known.Key, UID: known.UID, ResourceVersion: known.ResourceVersion, Raw: object.Raw})
		if known.Summary == "" && object.Summary != "" {
			known.Summary = object.Summary
			t.known.replace(known)
			o.Known = append(o.Known, known)
		}
	}
	return o
}

// drain empties the queue through Step.
func (t *Tracker) drain() (event.Observation, error) {
	o := t.Observe()
	t.stats.seen(t.now())
	for range t.queued {
		if _, err := t.fifo.Pop(func(obj any, _ bool) error { return t.step(&o, obj.(cache.Deltas)) }); err != nil {
			return o, err
		}
	}
	clear(t.queued)
	t.stats.count(o.Changes)
	t.stats.known.Store(int64(t.known.Len()))
	return o, nil
}

// step adds to o what the deltas of one object mean.
func (t *Tracker) step(o *event.Observation, ds cache.Deltas) error {
	key, err := t.fifo.KeyOf(ds)
	if err != nil {
		return err
	}
	before := t.known.get(key)
	after, changes := Step(t.current(), t.list, before, ds)
	o.Changes = append(o.Changes, changes...)
	switch {
	case after != before:
		t.known.replace(after)
		if after.Exists() {
			o.Known = append(o.Known, after)
		} else {
			o.Forget = append(o.Forget, key)
		}
	case t.list != nil:
		t.known.see(key)
	}
	return nil
}

// stubOf is an object of which only the identity is known.
func stubOf(k event.Known, observedAt time.Time) *Object {
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

// seen notes that the API server said something: an event, a bookmark or a list.
func (c *counters) seen(at time.Time) { c.lastSeen.Store(&at) }

func (c *counters) count(changes []*event.Change) {
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
