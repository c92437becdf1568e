package state

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// digest is a UUID itself, or a hash of any other UID or ID.
type digest [16]byte

func digestOf(text string) digest {
	if id, err := uuid.Parse(text); err == nil && len(text) == 36 {
		return digest(id)
	}
	sum := sha256.Sum256([]byte(text))
	return digest(sum[:16])
}

// emittedVersion is the newest version that a destination holds under an object key. Versions of a resource are ordered,
// across objects that had the key one after the other too, and a destination that compacts by key keeps no older one.
type emittedVersion struct {
	uid     digest
	version uint64
	deleted bool
	carried bool // by the state, so that it lies before everything that is read from the lanes
}

// objectAtDestination is an object key at one destination. A sink with lanes to several destinations may send changes of
// one object to several of them, and each has its own newest version.
type objectAtDestination struct {
	key         digest
	destination uint32
}

func keyDigest(resource, key string) digest { return digestOf(resource + "/" + key) }

// deliveredSet is what a sink held beyond the state when it was fenced. Apart from restored it does not change once it is
// read, so a change that is read from the journal again gets the same answer.
type deliveredSet struct {
	destinations map[string]uint32
	destination  func(sinks.Lane) string
	newest       map[objectAtDestination]emittedVersion
	exact        map[digest]string // IDs of records that their version alone does not identify, with the resource
	size         int               // messages read
	highest      map[string]uint64 // newest version by resource, or list that revealed a deletion; unordered if one is not a number
	restored     *sync.Map         // names of resources with versions that have gone back since; of all sets of a sink
}

// unordered is higher than every position, so that a set with versions that are not numbers is never released.
const unordered = ^uint64(0)

func newDeliveredSet(sink sinks.Fenced) *deliveredSet {
	d := &deliveredSet{
		destinations: map[string]uint32{}, destination: func(sinks.Lane) string { return "" },
		newest: map[objectAtDestination]emittedVersion{}, exact: map[digest]string{}, highest: map[string]uint64{}, restored: &sync.Map{},
	}
	if divided, ok := sink.(sinks.MultiDestination); ok {
		d.destination = divided.DestinationOf
	}
	return d
}

// recordRestored records that the versions of a resource have gone back if a change is the gap that marks it.
func recordRestored(restored *sync.Map, c *event.Change) {
	if c.Type == event.Gap && resourceversion.Order(c.Gap.From, c.Gap.To) > 0 {
		restored.Store(c.Resource.String(), true)
	}
}

// containsChange reports whether the sink holds a change that is about to be sent through a lane.
//
// Changes under one object key are emitted in the order of versions, so the newest version implies all older ones, even if
// the destination kept only the newest. A deletion that a list revealed is contained only if the newest version is a
// deletion, or of another object. After a cluster was restored from a backup its versions go back: from that gap on they
// prove nothing. Records without an ordered version are compared by ID.
//
// A watermark counts as contained while the sink holds anything newer than its position: behind that it would belong to no
// state of the cluster.
func (d *deliveredSet) containsChange(lane sinks.Lane, c *event.Change) bool {
	version, ordered := parseVersion(c.ResourceVersion)
	listed := c.FinalStateUnknown && !c.Left // its ID names the list, and the list of another process has another name
	if !ordered || !identifiedByVersion(c.Type) || c.Pass != "" && !listed {
		_, ok := d.exact[digestOf(c.ID())]
		return ok || c.Type == event.Watermark && version < d.highest[c.Resource.String()] && !d.isRestored(c)
	}
	destination, ok := d.destinations[d.destination(lane)]
	if !ok {
		return false
	}
	key := keyDigest(c.Resource.String(), strings.TrimPrefix(c.Namespace+"/"+c.Name, "/"))
	newest, ok := d.newest[objectAtDestination{key, destination}]
	if !ok || version > newest.version || d.isRestored(c) {
		return false
	}
	return !c.FinalStateUnknown || newest.deleted || newest.uid != digestOf(c.UID)
}

// isRestored reports whether the versions of the resource of a change have gone back.
func (d *deliveredSet) isRestored(c *event.Change) bool {
	_, restored := d.restored.Load(c.Resource.String())
	return restored
}

// identifiedByVersion reports whether the version of its object identifies a record of this type.
func identifiedByVersion(t event.Type) bool {
	return t == event.Added || t == event.Updated || t == event.Deleted
}

// liveObject is the newest version of an object that a sink holds.
type liveObject struct {
	uid     string
	version string
	deleted bool
	carried bool // by the state
}

type objectRef struct{ resource, key string }

type emittedRef struct {
	destination string
	objectRef
}

// tail is what lanes of a sink hold beyond the state.
type tail struct {
	*deliveredSet
	resources map[string]event.Resource            // of all messages that were read, by name
	objects   map[emittedRef]map[string]liveObject // by UID
	ends      map[sinks.Lane]sinks.LanePosition    // after the last message, of the lanes that were read
	waiting   map[sinks.Lane]waitingLane           // the others
	gone      map[sinks.Lane]bool                  // of the lanes that were read: those that no longer exist
}

// waitingLane is a lane that could not be fenced or read back.
type waitingLane struct {
	tail   sinks.Tail
	reason error
}

// readTail reads lanes of a sink from the given positions to their ends, except those that wait already. Within a lane the
// last message of an object key counts; across lanes of one destination the newest version does. Carried records lie before
// all of that.
func readTail(ctx context.Context, sink sinks.Fenced, from tailStart, waiting map[sinks.Lane]error) (*tail, error) {
	lanes, read := from.lanes, maps.Clone(from.lanes)
	t := &tail{
		deliveredSet: newDeliveredSet(sink), objects: map[emittedRef]map[string]liveObject{}, ends: map[sinks.Lane]sinks.LanePosition{},
		waiting: map[sinks.Lane]waitingLane{}, gone: map[sinks.Lane]bool{}, resources: map[string]event.Resource{},
	}
	for lane, tail := range lanes {
		t.ends[lane] = tail.From
	}
	wait := func(waiting map[sinks.Lane]error) {
		for lane, reason := range waiting {
			t.waiting[lane] = waitingLane{lanes[lane], reason}
			delete(t.ends, lane)
			delete(read, lane)
		}
	}
	wait(waiting)
	last := map[sinks.Lane]map[digest]emittedVersion{}
	for lane := range lanes {
		t.destinationNumber(t.destination(lane))
	}
	for _, chunk := range from.carried {
		if err := t.addCarried(chunk); err != nil {
			return nil, malformedState(err)
		}
	}
	unread, err := sink.ReadTail(ctx, read, func(lane sinks.Lane, e sinks.Emitted) error {
		if last[lane] == nil {
			last[lane] = map[digest]emittedVersion{}
		}
		t.size++
		t.ends[lane] = max(t.ends[lane], e.Position+1)
		t.recordMessage(t.destination(lane), e.EmittedRecord, last[lane])
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read what %d lanes hold: %w", len(lanes), err)
	}
	wait(unread)
	for _, lane := range sink.GoneLanes(ctx, slices.Collect(maps.Keys(t.ends))) {
		t.gone[lane] = true
	}
	for _, lane := range slices.Sorted(maps.Keys(last)) {
		objects, destination := last[lane], t.destinations[t.destination(lane)]
		for key, l := range objects {
			place := objectAtDestination{key, destination}
			if before, ok := t.newest[place]; !ok || before.carried || before.version <= l.version {
				t.newest[place] = l
			}
		}
	}
	return t, nil
}

func (d *deliveredSet) destinationNumber(name string) uint32 {
	n, ok := d.destinations[name]
	if !ok {
		n = uint32(len(d.destinations))
		d.destinations[name] = n
	}
	return n
}

// recordMessage adds a message. last collects the newest version by object key of its lane.
func (t *tail) recordMessage(destination string, e event.EmittedRecord, last map[digest]emittedVersion) {
	resource := e.Resource.String()
	t.resources[resource] = e.Resource
	version, ordered := parseVersion(e.ResourceVersion)
	if !identifiedByVersion(e.Type) || !ordered || !strings.HasSuffix(e.ID, "/"+e.ResourceVersion+"/"+string(e.Type)) {
		t.exact[digestOf(e.ID)] = resource
	}
	if !identifiedByVersion(e.Type) && e.Type != event.Snapshot && e.Type != event.Sync {
		return
	}
	o := liveObject{uid: strings.Clone(e.UID), version: strings.Clone(e.ResourceVersion), deleted: e.Type == event.Deleted}
	t.recordObject(emittedRef{destination, objectRef{resource, e.Key}}, o)
	if revealedAt, ok := parseVersion(e.ListVersion); ok {
		t.highest[resource] = max(t.highest[resource], revealedAt)
	}
	if !ordered {
		return
	}
	last[keyDigest(resource, e.Key)] = emittedVersion{uid: digestOf(e.UID), version: version, deleted: e.Type == event.Deleted}
}

// recordObject updates the newest version of an object that the sink holds.
func (t *tail) recordObject(place emittedRef, l liveObject) {
	version, ordered := parseVersion(l.version)
	if !ordered {
		version = unordered
	}
	t.highest[place.resource] = max(t.highest[place.resource], version)
	byUID := t.objects[place]
	if byUID == nil {
		byUID = map[string]liveObject{}
		t.objects[place] = byUID
	}
	if before, ok := byUID[l.uid]; !ok || resourceversion.Order(before.version, l.version) <= 0 {
		byUID[l.uid] = l
	}
	if len(byUID) > 1 && !l.carried { // the deletion of the object before came first; compaction may have removed it
		maps.DeleteFunc(byUID, func(uid string, before liveObject) bool { return before.carried && uid != l.uid })
	}
}

// emittedBeyond returns, for each object key, the versions that any of the tails holds beyond the known one, in the form of
// [event.Known.EmittedElsewhere]. The source deletes what the journal was seeded with if it no longer exists (I8).
func emittedBeyond(tails map[string]*tail, known func(objectRef) (event.Known, error)) (map[objectRef]string, error) {
	newest := map[objectRef]map[string]string{}
	for _, t := range tails {
		for place, byUID := range t.objects {
			ref := place.objectRef
			for uid, l := range byUID {
				if l.deleted || uid == "" || strings.Contains(uid+l.version, " ") {
					continue
				}
				if newest[ref] == nil {
					newest[ref] = map[string]string{}
				}
				if before, ok := newest[ref][uid]; !ok || resourceversion.Order(before, l.version) < 0 {
					newest[ref][uid] = l.version
				}
			}
		}
	}
	all := map[objectRef]string{}
	for ref, versions := range newest {
		k, err := known(ref)
		if err != nil {
			return nil, err
		}
		for _, uid := range slices.Sorted(maps.Keys(versions)) {
			if uid == k.UID && resourceversion.Order(versions[uid], k.ResourceVersion) <= 0 {
				continue
			}
			all[ref] = event.AppendEmittedVersion(all[ref], event.EmittedVersion{UID: uid, ResourceVersion: versions[uid]})
		}
	}
	return all, nil
}
