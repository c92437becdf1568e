package state

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// digest stands for a UID or an ID. UUIDs are their own.
type digest [16]byte

func digestOf(text string) digest {
	if id, err := uuid.Parse(text); err == nil && len(text) == 36 {
		return digest(id)
	}
	sum := sha256.Sum256([]byte(text))
	return digest(sum[:16])
}

// emittedVersion is the newest that a destination was told of what has a key. Versions of a resource are ordered, also those of
// objects that had the key one after the other, and a destination that compacts by key keeps no more than this.
type emittedVersion struct {
	uid     digest
	version uint64
	deleted bool
}

// objectAtDestination is what has a key in a resource, as a destination knows it. A sink whose lanes lead to several destinations may
// tell an object's changes to several, which are not in step with each other.
type objectAtDestination struct {
	key         digest
	destination uint32
}

func keyDigest(resource, key string) digest { return digestOf(resource + "/" + key) }

func keyOfChange(c *event.Change) digest {
	if c.Namespace == "" {
		return keyDigest(c.Resource.String(), c.Name)
	}
	return keyDigest(c.Resource.String(), c.Namespace+"/"+c.Name)
}

// deliveredSet is what a sink had delivered, when it was fenced, of what the state does not have. It does not change once it is
// read, so a change that is read from the journal again gets the same answer.
type deliveredSet struct {
	destinations map[string]uint32
	destination  func(sinks.Lane) string
	newest       map[objectAtDestination]emittedVersion
	exact        map[digest]struct{} // IDs of what is not told by its version alone
	size         int                 // messages
	highest      map[string]uint64   // newest version, by resource; largest where one is no number
	restored     sync.Map            // resources whose versions went back since
}

const unordered = ^uint64(0)

func newDeliveredSet(sink sinks.Fenced) *deliveredSet {
	d := &deliveredSet{
		destinations: map[string]uint32{}, destination: func(sinks.Lane) string { return "" },
		newest: map[objectAtDestination]emittedVersion{}, exact: map[digest]struct{}{}, highest: map[string]uint64{},
	}
	if divided, ok := sink.(sinks.MultiDestination); ok {
		d.destination = divided.DestinationOf
	}
	return d
}

// contains says whether the sink has a change that is to go through a lane.
//
// Changes of what has a key come in the order of versions, so what is not newer than the newest was told as well: a
// destination may have kept the newest only. That something is gone, as a list says, was told only if the newest says so. A
// cluster that was restored from a backup goes back: versions say nothing from its gap on. All else has an ID that says when
// it was told.
func (d *deliveredSet) contains(lane sinks.Lane, c *event.Change) bool {
	version, ordered := parseVersion(c.ResourceVersion)
	if c.Type == event.Gap && compareVersions(c.Gap.From, c.Gap.To) > 0 {
		d.restored.Store(c.Resource.String(), true)
	}
	found := c.FinalStateUnknown && !c.Left // by a list, of which another process makes one of another name
	if !ordered || !identifiedByVersion(c.Type) || c.Pass != "" && !found {
		_, ok := d.exact[digestOf(c.ID())]
		return ok
	}
	destination, ok := d.destinations[d.destination(lane)]
	if !ok {
		return false
	}
	newest, ok := d.newest[objectAtDestination{keyOfChange(c), destination}]
	if !ok || version > newest.version {
		return false
	}
	if _, restored := d.restored.Load(c.Resource.String()); restored {
		return false
	}
	return !c.FinalStateUnknown || newest.deleted || newest.uid != digestOf(c.UID)
}

// identifiedByVersion says that a record of this type is told by the version of its object.
func identifiedByVersion(t event.Type) bool {
	return t == event.Added || t == event.Updated || t == event.Deleted
}

// liveObject is an object that a sink has been told to exist, last of all.
type liveObject struct {
	uid     string
	version string
	deleted bool
}

// place of an object in all resources.
type objectRef struct{ resource, key string }

// tail is what the lanes of a sink hold behind the state.
type tail struct {
	*deliveredSet
	objects map[objectRef]map[string]liveObject // by UID
	ends    map[sinks.Lane]sinks.LanePosition   // behind the last message
}

// readTail reads all lanes of a sink from their places on. Within a lane the last message of an object counts, and of
// several lanes the newest version.
func readTail(ctx context.Context, sink sinks.Fenced, lanes map[sinks.Lane]sinks.LanePosition) (*tail, error) {
	t := &tail{deliveredSet: newDeliveredSet(sink), objects: map[objectRef]map[string]liveObject{}, ends: maps.Clone(lanes)}
	last := map[sinks.Lane]map[digest]emittedVersion{}
	for lane := range lanes {
		name := t.destination(lane)
		if _, ok := t.destinations[name]; !ok {
			t.destinations[name] = uint32(len(t.destinations))
		}
	}
	err := sink.ReadTail(ctx, lanes, func(lane sinks.Lane, e sinks.Emitted) error {
		if last[lane] == nil {
			last[lane] = map[digest]emittedVersion{}
		}
		t.size++
		t.ends[lane] = max(t.ends[lane], e.Position+1)
		t.recordMessage(e.EmittedRecord, last[lane])
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read what %d lanes hold: %w", len(lanes), err)
	}
	for _, lane := range slices.Sorted(maps.Keys(last)) {
		objects, destination := last[lane], t.destinations[t.destination(lane)]
		for key, l := range objects {
			place := objectAtDestination{key, destination}
			if before, ok := t.newest[place]; !ok || before.version <= l.version {
				t.newest[place] = l
			}
		}
	}
	return t, nil
}

// recordMessage takes a message of a lane.
func (t *tail) recordMessage(e event.EmittedRecord, last map[digest]emittedVersion) {
	resource := e.Resource.String()
	version, ordered := parseVersion(e.ResourceVersion)
	if !identifiedByVersion(e.Type) || !ordered || !strings.HasSuffix(e.ID, "/"+e.ResourceVersion+"/"+string(e.Type)) {
		t.exact[digestOf(e.ID)] = struct{}{}
	}
	if !identifiedByVersion(e.Type) && e.Type != event.Snapshot && e.Type != event.Sync {
		return
	}
	t.recordObject(objectRef{resource, e.Key}, liveObject{strings.Clone(e.UID), strings.Clone(e.ResourceVersion), e.Type == event.Deleted})
	if !ordered {
		t.highest[resource] = unordered
		return
	}
	t.highest[resource] = max(t.highest[resource], version)
	last[keyDigest(resource, e.Key)] = emittedVersion{digestOf(e.UID), version, e.Type == event.Deleted}
}

// recordObject notes whether an object exists, as far as this sink was told.
func (t *tail) recordObject(place objectRef, l liveObject) {
	byUID := t.objects[place]
	if byUID == nil {
		byUID = map[string]liveObject{}
		t.objects[place] = byUID
	}
	if before, ok := byUID[l.uid]; !ok || compareVersions(before.version, l.version) <= 0 {
		byUID[l.uid] = l
	}
}

// compareVersions orders resourceVersions; those that are no numbers count as equal.
func compareVersions(a, b string) int {
	m, ok := parseVersion(a)
	n, ok2 := parseVersion(b)
	if !ok || !ok2 {
		return 0
	}
	return cmp.Compare(m, n)
}

// emittedBeyond is what any of the tails was told of each object beyond what is known of it, in the form of [event.Known.Told].
func emittedBeyond(tails map[string]*tail, known func(objectRef) (event.Known, error)) (map[objectRef]string, error) {
	newest := map[objectRef]map[string]string{}
	for _, t := range tails {
		for place, byUID := range t.objects {
			for uid, l := range byUID {
				if l.deleted || uid == "" || strings.Contains(uid+l.version, " ") {
					continue
				}
				if newest[place] == nil {
					newest[place] = map[string]string{}
				}
				if before, ok := newest[place][uid]; !ok || compareVersions(before, l.version) < 0 {
					newest[place][uid] = l.version
				}
			}
		}
	}
	all := map[objectRef]string{}
	for place, versions := range newest {
		k, err := known(place)
		if err != nil {
			return nil, err
		}
		for _, uid := range slices.Sorted(maps.Keys(versions)) {
			if uid == k.UID && compareVersions(versions[uid], k.ResourceVersion) <= 0 {
				continue
			}
			all[place] = event.AppendEmittedVersion(all[place], event.EmittedVersion{UID: uid, ResourceVersion: versions[uid]})
		}
	}
	return all, nil
}
