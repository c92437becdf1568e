package deltas

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

// Event is one watch event: watch.Added, Modified or Deleted.
type Event struct {
	Type   watch.EventType
	Object *Object
}

// Tracker turns the events and lists of a scope into observations. It is used by one goroutine, except for Stats. No
// method blocks.
type Tracker struct {
	namesakes       []string // keys, see Namesakes
	scope           Scope
	selectNamespace func(namespace string) bool
	now             func() time.Time
	known           *KnownSet
	fifo            *cache.DeltaFIFO
	queued          map[string]watch.EventType // keys in fifo
	view            fifoView                   // the known objects as DeltaFIFO sees them
	list            *List                      // the list being read; nil while watching
	beside          *sinkSnapshot              // for one sink, in progress; nil for none
	clock           *Clock
	position        string // up to which everything was observed; "" if unknown

	stats counters
}

// NewTracker returns a tracker that takes ownership of the known objects. filter reports whether objects of a namespace are
// selected; nil selects all. now is the clock.
func NewTracker(s Scope, known *KnownSet, filter func(namespace string) bool, now func() time.Time) *Tracker {
	t := &Tracker{scope: s, selectNamespace: filter, now: now, known: known, queued: map[string]watch.EventType{}, clock: &Clock{}}
	quiet := klog.Logger{}
	t.fifo = cache.NewDeltaFIFOWithOptions(cache.DeltaFIFOOptions{
		KeyFunction: objectKey, KnownObjects: &t.view, EmitDeltaTypeReplaced: true, Logger: &quiet, Name: s.ID,
	})
	t.stats.known.Store(int64(known.Len()))
	return t
}

// fifoView is the part of the known objects that DeltaFIFO needs for its next operation: the keys to queue tombstones or
// Sync deltas for, and the objects in those deltas.
type fifoView struct {
	keys   []string
	object func(key string) *Object
}

func (v *fifoView) ListKeys() []string { return v.keys }

// GetByKey reports every key as existing, including unknown ones: DeltaFIFO would drop a DELETED event of a key that does
// not exist, but that decision belongs to Step.
func (v *fifoView) GetByKey(key string) (any, bool, error) {
	if v.object == nil {
		return nil, true, nil
	}
	return v.object(key), true, nil
}

// queueWithView exposes these objects to DeltaFIFO while do queues a delta for each of them.
func (t *Tracker) queueWithView(keys []string, object func(string) *Object, do func() error) error {
	t.view = fifoView{keys, object}
	defer func() { t.view = fifoView{} }()
	for _, key := range keys {
		t.queued[key] = ""
	}
	return do()
}

// KnownCount returns the number of objects known to exist.
func (t *Tracker) KnownCount() int { return t.known.Len() }

// ObserveEvents processes a batch of events. position is the resourceVersion of the last event, including bookmarks; "" if
// the events do not advance the position, as in a list.
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
	if o.Position = position; position != "" {
		t.position = position
	}
	return o, err
}

// enqueueEvent adds an event to DeltaFIFO. Other event types are not recorded in t.queued, because drainQueue pops once per
// recorded key and would block.
func (t *Tracker) enqueueEvent(e Event) (err error) {
	t.scope.Identified = t.scope.Identified || e.Object.UID != ""
	key := e.Object.Key()
	switch e.Type {
	case watch.Added:
		err = t.fifo.Add(e.Object)
	case watch.Modified:
		err = t.fifo.Update(e.Object)
	case watch.Deleted:
		if e.Object.UID == "" && t.queued[key] == watch.Deleted {
			return nil // DeltaFIFO would keep the second of two, which says less
		}
		err = t.fifo.Delete(e.Object)
	default:
		return nil
	}
	if err == nil {
		t.queued[key] = e.Type
	}
	return err
}

// NewGap returns a gap record for the history lost between two positions. to is a current position; the remaining
// differences follow.
func (t *Tracker) NewGap(from, to, reason string) *event.Change {
	if order, ordered := resourceversion.Compare(from, to); ordered && order > 0 {
		t.clock.forget() // versions begin again
	}
	c := t.scope.newControlRecord(event.Gap, to, t.now())
	c.Gap = &event.GapInfo{From: from, To: to, Reason: reason}
	return c
}

// NewSnapshotBegin returns the record that starts a snapshot.
func (t *Tracker) NewSnapshotBegin(id string) *event.Change {
	c := t.scope.newControlRecord(event.SnapshotBegin, "", t.now())
	c.Snapshot = &event.SnapshotInfo{ID: id}
	return c
}

// KeepSum keeps the number of the known objects and the digest over them up to date, for NewWatermark. It looks at each
// object once. Call it before anything is observed.
func (t *Tracker) KeepSum() { t.known.keepSum() }

// NewWatermark returns a watermark of the known objects, which are the state of the scope at a position. info has the epoch,
// the sequence and the sinks.
func (t *Tracker) NewWatermark(position string, info event.WatermarkInfo) *event.Change {
	c := t.scope.newControlRecord(event.Watermark, position, t.now())
	all := t.known.currentSum()
	info.Algorithm, info.Count, info.Digest = event.DigestAlgorithm, all.count, all.digest.String()
	c.Watermark = &info
	return c
}

// NewObservation returns an observation with only these changes.
func (t *Tracker) NewObservation(changes ...*event.Change) event.Observation {
	s := t.scope
	t.stats.countChanges(changes)
	return event.Observation{Resource: s.Resource, Scope: s.ID, Changes: changes}
}

// StartList marks the start of a list: until FinishList, ObserveEvents receives existing objects, in any order. A list that
// failed is started again; objects that were emitted stay known and are not emitted again.
func (t *Tracker) StartList(l List) {
	t.list, t.beside, t.namesakes = &l, nil, nil
	t.known.startListPass()
}

// maxTombstones bounds the objects of one observation of ObserveMissing.
const maxTombstones = 1000

// ObserveMissing returns an observation of known objects that the list lacks, and whether there are more. Call it after all
// objects of the list were observed, until more is false.
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

// FinishList ends the list and returns the observation that carries its position.
func (t *Tracker) FinishList(position string) event.Observation {
	o := t.NewObservation()
	if s := t.list.Snapshot; s != nil {
		end := t.scope.newControlRecord(event.SnapshotEnd, position, t.now())
		all := t.known.currentSum()
		end.Snapshot = &event.SnapshotInfo{ID: s.ID, Position: position, Count: all.count, Digest: all.digest.String()}
		o = t.NewObservation(end)
	}
	t.list = nil
	o.Position, t.position = position, position
	t.stats.recordSeen(t.now())
	return o
}

// ObserveSynced processes an object that was read for a resync. pass is the ID of the resync, position the resourceVersion
// that it reads at.
func (t *Tracker) ObserveSynced(object *Object, pass, position string) (event.Observation, error) {
	return t.observeBeside([]*Object{object}, List{Pass: pass, Position: position, Beside: true})
}

// observeBeside processes objects that were read beside the watch.
func (t *Tracker) observeBeside(objects []*Object, l List) (event.Observation, error) {
	byKey := make(map[string]*Object, len(objects))
	for _, o := range objects {
		byKey[o.Key()] = o
	}
	err := t.queueWithView(slices.Sorted(maps.Keys(byKey)), func(key string) *Object { return byKey[key] }, t.fifo.Resync)
	if err != nil {
		return event.Observation{}, err
	}
	t.list = &l
	defer func() { t.list = nil }()
	return t.drainQueue()
}

// Knows reports whether an object is known, in another version than this one.
func (t *Tracker) Knows(o *Object) bool {
	known := t.known.lookupKey(o.Key())
	return known.UID == o.UID && known.ResourceVersion != o.ResourceVersion
}

// ObserveBodies returns an observation with the bodies of those objects that are still in the known version. For any other
// object, either nothing was emitted yet or a newer version was. Summaries are replaced by those of the states.
func (t *Tracker) ObserveBodies(objects []*Object) event.Observation {
	o := t.NewObservation()
	for _, object := range objects {
		known := t.known.lookupKey(object.Key())
		if !object.matchesKnown(known) {
			continue
		}
		o.Bodies = append(o.Bodies, event.Body{
			Key: known.Key, UID: known.UID, ResourceVersion: known.ResourceVersion, Raw: object.Raw,
		})
		if object.Summary != "" && object.Summary != known.Summary { // none, or that of another form
			known.Summary = object.Summary
			t.known.replaceSummary(known)
			o.Known = append(o.Known, known)
		}
	}
	return o
}

// drainQueue empties the queue through Step.
func (t *Tracker) drainQueue() (event.Observation, error) {
	o := t.NewObservation()
	o.Changes, o.Known = make([]*event.Change, 0, len(t.queued)), make([]event.Known, 0, len(t.queued))
	t.stats.recordSeen(t.now())
	for range t.queued {
		if _, err := t.fifo.Pop(func(obj any, _ bool) error { return t.stepObject(&o, obj.(cache.Deltas)) }); err != nil {
			return o, err
		}
	}
	clear(t.queued)
	t.clock.setTimes(o.Changes, t.position)
	t.stats.countChanges(o.Changes)
	t.stats.known.Store(int64(t.known.Len()))
	return o, nil
}

// stepObject applies the deltas of one object and adds the result to o.
func (t *Tracker) stepObject(o *event.Observation, ds cache.Deltas) error {
	key, err := t.fifo.KeyOf(ds)
	if err != nil {
		return err
	}
	before := t.known.lookupKey(key)
	if t.list != nil && !t.list.Beside && t.hasNamesakes(before, ds) {
		t.namesakes = append(t.namesakes, key)
	}
	after, changes := Step(t.scope, t.list, before, ds)
	for _, d := range ds {
		if object, ok := d.Object.(*Object); ok {
			t.clock.learn(object)
		}
	}
	changes = t.addToSnapshot(before, after, changes, ds)
	o.Changes = append(o.Changes, changes...)
	switch {
	case after != before:
		t.known.replaceOrRemove(after)
		if after.Exists() {
			o.Known = append(o.Known, after)
		} else {
			o.RemovedKeys = append(o.RemovedKeys, key)
		}
	case t.list != nil && (!t.list.Beside || t.list.Snapshot != nil && len(changes) > 0):
		t.known.markSeen(key)
	}
	if after == before && len(changes) > 0 && (t.scope.Filtered || t.list != nil && t.list.Compared) {
		o.Known = append(o.Known, after) // with what the filter makes of the changes
	}
	return nil
}

// hasNamesakes reports whether a list has several objects of one name.
func (t *Tracker) hasNamesakes(known event.Known, ds cache.Deltas) bool {
	uid := ""
	if t.known.isSeen(known.Key) {
		uid = known.UID
	}
	for _, d := range ds {
		o, ok := d.Object.(*Object)
		if ok && uid != "" && o.UID != uid {
			return len(t.namesakes) < maxNamesakes
		}
		if ok {
			uid = o.UID
		}
	}
	return false
}

// maxNamesakes bounds the names that Namesakes returns.
const maxNamesakes = 10

// Namesakes returns some names that the last list had several objects of.
func (t *Tracker) Namesakes() []string { return t.namesakes }

// stubFromKnown returns an object without a body for a known identity.
func stubFromKnown(k event.Known, observedAt time.Time) *Object {
	namespace, name, err := cache.SplitMetaNamespaceKey(k.Key)
	if err != nil { // keys are built by NewObject and have at most one slash
		name = k.Key
	}
	o := NewObject(namespace, name)
	o.UID, o.ResourceVersion, o.ObservedAt = k.UID, k.ResourceVersion, observedAt
	return o
}

// Stats counts what a tracker has received and emitted since its creation.
type Stats struct {
	Known    int       // objects known to exist
	LastSeen time.Time // time of the last event, bookmark or list; zero if none
	Changes  map[event.Type]uint64
}

// Stats returns the current counts. It does not block and is safe for concurrent use.
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

// recordSeen records the time of an event, a bookmark or a list.
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
