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

// told is the newest that a destination was told of what has a key. Versions of a resource are ordered, also those of
// objects that had the key one after the other, and a destination that compacts by key keeps no more than this.
type told struct {
	uid     digest
	version uint64
	deleted bool
}

// object is what has a key in a resource, as a destination knows it. A sink whose lanes lead to several destinations may
// tell an object's changes to several, which are not in step with each other.
type object struct {
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

// delivered is what a sink had delivered, when it was fenced, of what the state does not have. It does not change once it is
// read, so a change that is read from the journal again gets the same answer.
type delivered struct {
	destinations map[string]uint32
	destination  func(sinks.Lane) string
	newest       map[object]told
	exact        map[digest]struct{} // IDs of what is not told by its version alone
	size         int                 // messages
	highest      map[string]uint64   // newest version, by resource; largest where one is no number
	restored     sync.Map            // resources whose versions went back since
}

const unordered = ^uint64(0)

func newDelivered(sink sinks.Fenced) *delivered {
	d := &delivered{
		destinations: map[string]uint32{}, destination: func(sinks.Lane) string { return "" },
		newest: map[object]told{}, exact: map[digest]struct{}{}, highest: map[string]uint64{},
	}
	if divided, ok := sink.(sinks.Divided); ok {
		d.destination = divided.Destination
	}
	return d
}

// has says whether the sink has a change that is to go through a lane.
//
// Changes of what has a key come in the order of versions, so what is not newer than the newest was told as well: a
// destination may have kept the newest only. That something is gone, as a list says, was told only if the newest says so. A
// cluster that was restored from a backup goes back: versions say nothing from its gap on. All else has an ID that says when
// it was told.
func (d *delivered) has(lane sinks.Lane, c *event.Change) bool {
	version, ordered := number(c.ResourceVersion)
	if c.Type == event.Gap && compareVersions(c.Gap.From, c.Gap.To) > 0 {
		d.restored.Store(c.Resource.String(), true)
	}
	found := c.FinalStateUnknown && !c.Left // by a list, of which another process makes one of another name
	if !ordered || !plain(c.Type) || c.Pass != "" && !found {
		_, ok := d.exact[digestOf(c.ID())]
		return ok
	}
	destination, ok := d.destinations[d.destination(lane)]
	if !ok {
		return false
	}
	newest, ok := d.newest[object{keyOfChange(c), destination}]
	if !ok || version > newest.version {
		return false
	}
	if _, restored := d.restored.Load(c.Resource.String()); restored {
		return false
	}
	return !c.FinalStateUnknown || newest.deleted || newest.uid != digestOf(c.UID)
}

// plain says that a record of this type is told by the version of its object.
func plain(t event.Type) bool { return t == event.Added || t == event.Updated || t == event.Deleted }

// living is an object that a sink has been told to exist, last of all.
type living struct {
	uid     string
	version string
	deleted bool
}

// place of an object in all resources.
type objectPlace struct{ resource, key string }

// tail is what the lanes of a sink hold behind the state.
type tail struct {
	*delivered
	objects map[objectPlace]map[string]living // by UID
	ends    map[sinks.Lane]sinks.Place        // behind the last message
}

// readTail reads all lanes of a sink from their places on. Within a lane the last message of an object counts, and of
// several lanes the newest version.
func readTail(ctx context.Context, sink sinks.Fenced, lanes map[sinks.Lane]sinks.Place) (*tail, error) {
	t := &tail{delivered: newDelivered(sink), objects: map[objectPlace]map[string]living{}, ends: maps.Clone(lanes)}
	last := map[sinks.Lane]map[digest]told{}
	for lane := range lanes {
		name := t.destination(lane)
		if _, ok := t.destinations[name]; !ok {
			t.destinations[name] = uint32(len(t.destinations))
		}
	}
	err := sink.Tail(ctx, lanes, func(lane sinks.Lane, e sinks.Emitted) error {
		if last[lane] == nil {
			last[lane] = map[digest]told{}
		}
		t.size++
		t.ends[lane] = max(t.ends[lane], e.Place+1)
		t.note(e.Emitted, last[lane])
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read what %d lanes hold: %w", len(lanes), err)
	}
	for _, lane := range slices.Sorted(maps.Keys(last)) {
		objects, destination := last[lane], t.destinations[t.destination(lane)]
		for key, l := range objects {
			place := object{key, destination}
			if before, ok := t.newest[place]; !ok || before.version <= l.version {
				t.newest[place] = l
			}
		}
	}
	return t, nil
}

// note takes a message of a lane.
func (t *tail) note(e event.Emitted, last map[digest]told) {
	resource := e.Resource.String()
	version, ordered := number(e.ResourceVersion)
	if !plain(e.Type) || !ordered || !strings.HasSuffix(e.ID, "/"+e.ResourceVersion+"/"+string(e.Type)) {
		t.exact[digestOf(e.ID)] = struct{}{}
	}
	if !plain(e.Type) && e.Type != event.Snapshot && e.Type != event.Sync {
		return
	}
	t.remember(objectPlace{resource, e.Key}, living{strings.Clone(e.UID), strings.Clone(e.ResourceVersion), e.Type == event.Deleted})
	if !ordered {
		t.highest[resource] = unordered
		return
	}
	t.highest[resource] = max(t.highest[resource], version)
	last[keyDigest(resource, e.Key)] = told{digestOf(e.UID), version, e.Type == event.Deleted}
}

// remember notes whether an object exists, as far as this sink was told.
func (t *tail) remember(place objectPlace, l living) {
	byUID := t.objects[place]
	if byUID == nil {
		byUID = map[string]living{}
		t.objects[place] = byUID
	}
	if before, ok := byUID[l.uid]; !ok || compareVersions(before.version, l.version) <= 0 {
		byUID[l.uid] = l
	}
}

// compareVersions orders resourceVersions; those that are no numbers count as equal.
func compareVersions(a, b string) int {
	m, ok := number(a)
	n, ok2 := number(b)
	if !ok || !ok2 {
		return 0
	}
	return cmp.Compare(m, n)
}

// toldBeyond is what any of the tails was told of each object beyond what is known of it, in the form of [event.Known.Told].
func toldBeyond(tails map[string]*tail, known func(objectPlace) (event.Known, error)) (map[objectPlace]string, error) {
	newest := map[objectPlace]map[string]string{}
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
	all := map[objectPlace]string{}
	for place, versions := range newest {
		k, err := known(place)
		if err != nil {
			return nil, err
		}
		for _, uid := range slices.Sorted(maps.Keys(versions)) {
			if uid == k.UID && compareVersions(versions[uid], k.ResourceVersion) <= 0 {
				continue
			}
			all[place] = event.AppendTold(all[place], event.Told{UID: uid, ResourceVersion: versions[uid]})
		}
	}
	return all, nil
}
