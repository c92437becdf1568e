package deltas

import (
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Scope is one resource as selected by one rule: what is listed and watched together, and has a position of its own.
type Scope struct {
	ID       string // stable across restarts and version changes of the resource
	Cluster  string // cluster name carried by every change
	Resource event.Resource
	// Namespace is the one that the scope covers; "" where it covers all, or the resource has none. Control records name it.
	Namespace string
}

// control makes a record about the whole scope.
func (s Scope) control(t event.Type, resourceVersion string, at time.Time) *event.Change {
	return &event.Change{
		Type: t, Cluster: s.Cluster, Resource: s.Resource, Namespace: s.Namespace, ResourceVersion: resourceVersion, ObservedAt: at,
	}
}

// Step decides what the deltas of one object mean, given what is known of it. It is the meaning of this program in one
// place, and pure: no clock, no I/O, the same input always gives the same output.
//
// known.Key must be set; an empty known.UID says that nothing is known. deltas are those of one DeltaFIFO Pop, oldest
// first. The result is what is known afterwards (again an empty UID for nothing) and the changes to tell, oldest first.
//
// History is sometimes told twice: after a restart the watch goes on from a position that may be older than what is
// known of single objects. What is not newer than known is therefore silent (I3). A list is different: it is the present
// truth, so it is compared for equality only, which also holds when the cluster was restored from an older backup.
func Step(s Scope, known event.Known, deltas cache.Deltas) (event.Known, []*event.Change) {
	st := step{scope: s, known: known}
	for _, d := range deltas {
		switch d.Type {
		case cache.Added, cache.Updated:
			if it := d.Object.(*item); it.staged {
				st.listed(it)
			} else {
				st.watched(d.Type, it)
			}
		case cache.Replaced:
			st.listed(d.Object.(*item))
		case cache.Deleted:
			if t, ok := d.Object.(cache.DeletedFinalStateUnknown); ok {
				st.vanished(t.Obj.(*item))
			} else {
				st.deleted(d.Object.(*item))
			}
		}
	}
	return st.known, st.changes
}

type step struct {
	scope   Scope
	known   event.Known
	changes []*event.Change
}

// live says that the object is known to exist.
func (s *step) live() bool { return s.known.UID != "" && !s.known.Gone }

// told says that a watch event of this resourceVersion is history already told.
func (s *step) told(rv string) bool { return s.known.UID != "" && !newer(rv, s.known.ResourceVersion) }

// watched handles an ADDED or MODIFIED watch event.
func (s *step) watched(t cache.DeltaType, it *item) {
	if s.told(it.ResourceVersion) {
		return
	}
	switch {
	case s.live() && s.known.UID == it.UID:
		c := s.tell(event.Updated, t, it)
		c.Class, c.Actor = classOf(s.known.Summary, it.Summary), writerOf(s.known.Summary, it.Summary, it.Names)
	case s.live():
		s.replacedByNamesake(t, it)
		s.tell(event.Added, t, it).Actor = creatorOf(it.Summary, it.Names)
	case t == cache.Updated && !s.known.Gone:
		s.tell(event.Updated, t, it) // not known, but the API server says it was there before
	default:
		s.tell(event.Added, t, it).Actor = creatorOf(it.Summary, it.Names)
	}
	s.remember(it)
}

// listed handles an object in a list from the API server. What differs is told without an actor: there may have been many.
func (s *step) listed(it *item) {
	switch {
	case it.is(s.known) && !it.retell:
		if s.known.Summary == "" {
			s.known.Summary = it.Summary // the journal is from before there were any
		}
		return
	case s.live() && s.known.UID == it.UID:
		c := s.tell(event.Updated, cache.Replaced, it)
		c.Coalesced, c.Class = true, classOf(s.known.Summary, it.Summary)
	case s.live():
		s.replacedByNamesake(cache.Replaced, it)
		s.tell(event.Added, cache.Replaced, it).Coalesced = true
	case it.origin == First:
		s.tell(event.Snapshot, cache.Replaced, it)
	default:
		s.tell(event.Added, cache.Replaced, it).Coalesced = true
	}
	s.remember(it)
}

// saysNothing says that an object in a list would neither tell nor teach anything: listed would do nothing.
func saysNothing(known event.Known, o *Object) bool {
	return o.is(known) && (known.Summary != "" || o.Summary == "")
}

// deleted handles a DELETED watch event: it carries the final state.
func (s *step) deleted(it *item) {
	if s.told(it.ResourceVersion) {
		return
	}
	if s.live() && s.known.UID != it.UID {
		s.replacedByNamesake(cache.Deleted, it)
	}
	s.tell(event.Deleted, cache.Deleted, it)
	s.remember(it)
	s.known.Gone, s.known.Summary = true, ""
}

// vanished handles an object that a list no longer has: it was deleted while nobody watched (I8). it is the newest that
// was queued of it, or a stub made from what is known.
func (s *step) vanished(it *item) {
	if !s.live() {
		return
	}
	c := s.tell(event.Deleted, cache.Deleted, it)
	c.UID, c.ResourceVersion = s.known.UID, s.known.ResourceVersion
	c.FinalStateUnknown, c.Coalesced = true, true
	s.known.Gone, s.known.Summary = true, ""
}

// replacedByNamesake tells that the known object is gone because another one now has its name.
func (s *step) replacedByNamesake(t cache.DeltaType, by *item) {
	s.changes = append(s.changes, &event.Change{
		Type: event.Deleted, Delta: event.Delta(t), Cluster: s.scope.Cluster, Resource: s.scope.Resource,
		Namespace: by.Namespace, Name: by.Name, UID: s.known.UID, ResourceVersion: s.known.ResourceVersion,
		ObservedAt: by.ObservedAt, Coalesced: true, FinalStateUnknown: true, Snapshot: by.snapshot,
	})
}

func (s *step) tell(t event.Type, d cache.DeltaType, it *item) *event.Change {
	resource := s.scope.Resource
	if it.Resource != nil {
		resource = *it.Resource
	}
	c := &event.Change{
		Type: t, Delta: event.Delta(d), Cluster: s.scope.Cluster, Resource: resource,
		Namespace: it.Namespace, Name: it.Name, UID: it.UID, ResourceVersion: it.ResourceVersion,
		Generation: it.Generation, ObservedAt: it.ObservedAt, Snapshot: it.snapshot,
	}
	if t == event.Deleted {
		c.Before = it.Raw
	} else {
		c.After = it.Raw
	}
	s.changes = append(s.changes, c)
	return c
}

func (s *step) remember(it *item) {
	s.known = it.known()
}

// newer says that a was written after b. resourceVersions of one resource are ordered integers (KEP-5504). An aggregated
// API may not keep to that; its versions are then only compared for equality, and history told twice stays visible.
func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	if err != nil {
		return a != b
	}
	return order > 0
}
