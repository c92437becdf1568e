package deltas

import (
	"cmp"
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
	// Selected says that the API server evaluates a label or field selector: an object may enter the selection long after
	// it was made, so an ADDED event does not say who did that.
	Selected bool
}

// newControlRecord makes a record about the whole scope.
func (s Scope) newControlRecord(t event.Type, resourceVersion string, at time.Time) *event.Change {
	return &event.Change{
		Type: t, Cluster: s.Cluster, Resource: s.Resource, Namespace: s.Namespace, ResourceVersion: resourceVersion, ObservedAt: at,
	}
}

// List says what the objects of a list mean.
type List struct {
	// Snapshot is the first list of a scope, or of one whose journal was lost, and is nil in any other: it claims no change.
	Snapshot *event.SnapshotInfo
	// Pass names the comparison with an edited rule, and is empty in any other list: what the list lacks is not selected any
	// more, and one version of an object may be emitted more than once. Rules that are edited within a snapshot have both.
	Pass string
	// Name is the list's own. It is a part of the ID of what only this list can tell: that an object is gone, in the version
	// that was known. The same version may have left before, and been let in again by an edited rule.
	Name string
}

// Step decides what the deltas of one object mean, given what is known of it. It is the meaning of this program in one
// place, and pure: no clock, no I/O, the same input always gives the same output.
//
// known.Key must be set; an empty known.UID says that nothing is known. deltas are those of one DeltaFIFO Pop, oldest
// first; list is what they were read in, nil for a watch. The result is what is known afterwards (again an empty UID for
// nothing) and the changes to emit, oldest first.
//
// What only some sinks were told (known.Told) counts as not known when it is seen, because the others have to be told; and
// as known when a list lacks it. A watch tells it again, and its deletion.
//
// A list is the present truth, so it is compared for equality only, which also holds when the cluster was restored from an
// older backup. A watch event is news, unless it is of the object's own past: another API server behind the same
// address may show that again, and a change must not be followed by an older one (I3).
func Step(s Scope, list *List, known event.Known, deltas cache.Deltas) (event.Known, []*event.Change) {
	st := objectStep{scope: s, list: list, known: known}
	for _, d := range deltas {
		switch d.Type {
		case cache.Added, cache.Updated:
			if o := d.Object.(*Object); list != nil {
				st.handleListed(o)
			} else {
				st.handleWatchEvent(d.Type, o)
			}
		case cache.Sync:
			st.handleSynced(d.Object.(*Object))
		case cache.Deleted:
			if t, ok := d.Object.(cache.DeletedFinalStateUnknown); ok {
				st.handleVanished(t.Obj.(*Object))
			} else {
				st.handleDeleted(d.Object.(*Object))
			}
		}
	}
	return st.known, st.changes
}

type objectStep struct {
	scope   Scope
	list    *List
	known   event.Known
	changes []*event.Change
}

// isKnown says that the object is known to exist.
func (s *objectStep) isKnown() bool { return s.known.UID != "" }

// isKnownObject says that it is the known object, in whatever version.
func (s *objectStep) isKnownObject(o *Object) bool { return s.isKnown() && s.known.UID == o.UID }

// isOutdated says that a watch event is of the object's own past.
func (s *objectStep) isOutdated(o *Object) bool {
	return s.isKnownObject(o) && !isNewer(o.ResourceVersion, s.known.ResourceVersion)
}

// handleWatchEvent handles an ADDED or MODIFIED watch event.
func (s *objectStep) handleWatchEvent(t cache.DeltaType, o *Object) {
	if s.isOutdated(o) {
		return
	}
	switch {
	case s.isKnownObject(o):
		c := s.emitChange(event.Updated, t, o)
		c.Class, c.Actor = classOf(s.known.Summary, o.Summary), actorOfUpdate(s.known.Summary, o.Summary, o.Names)
	case s.isKnown():
		s.emitReplacedByNamesake(t, o)
		s.emitAdded(t, o)
	case t == cache.Updated:
		s.emitChange(event.Updated, t, o) // not known, but the API server says it was there before
	default:
		s.emitAdded(t, o)
	}
	s.setKnown(o)
}

// setKnown makes o what is known. Of what only some sinks were told, a watch has yet to tell what is newer, or another object.
func (s *objectStep) setKnown(o *Object) {
	told := s.filterEmittedElsewhere(func(t event.EmittedVersion) bool {
		return t.UID != o.UID || isNewer(t.ResourceVersion, o.ResourceVersion)
	})
	s.known = o.toKnown()
	s.known.EmittedElsewhere = told
}

// removeKnown makes nothing known of o, which is gone.
func (s *objectStep) removeKnown(o *Object) {
	s.known = event.Known{Key: s.known.Key, EmittedElsewhere: s.filterEmittedElsewhere(func(t event.EmittedVersion) bool { return t.UID != o.UID })}
}

// filterEmittedElsewhere is what is to be kept of what only some sinks were told.
func (s *objectStep) filterEmittedElsewhere(keep func(event.EmittedVersion) bool) (kept string) {
	s.known.EachEmittedElsewhere(func(t event.EmittedVersion) {
		if keep(t) {
			kept = event.AppendEmittedVersion(kept, t)
		}
	})
	return kept
}

func (s *objectStep) emitAdded(t cache.DeltaType, o *Object) {
	c := s.emitChange(event.Added, t, o)
	if !s.scope.Selected {
		c.Actor = actorOfCreate(o.Summary, o.Names)
	}
}

// handleListed handles an object in a list. What differs is emitted without an actor: there may have been many.
func (s *objectStep) handleListed(o *Object) {
	others := s.clearEmittedElsewhere(o.UID)
	namesake := s.isKnown() && !s.isKnownObject(o)
	if namesake {
		s.emitReplacedByNamesake(cache.Replaced, o)
	}
	s.emitMissingDeletes(others, o)
	switch {
	case o.matchesKnown(s.known):
		if s.known.Summary == "" {
			s.known.Summary = o.Summary // the journal is from before there were any
		}
		return
	case s.isKnownObject(o):
		c := s.emitChange(event.Updated, cache.Replaced, o)
		c.Coalesced, c.Class = true, classOf(s.known.Summary, o.Summary)
	case s.list.Snapshot != nil && !namesake:
		s.emitChange(event.Snapshot, cache.Replaced, o)
	default:
		s.emitChange(event.Added, cache.Replaced, o).Coalesced = true
	}
	s.known = o.toKnown()
}

// handleSynced handles an object that a rule wants to be emitted again. Only the version that was emitted last is: an older one
// must not follow it (I3), and a newer one comes with the watch.
func (s *objectStep) handleSynced(o *Object) {
	if o.matchesKnown(s.known) {
		s.emitChange(event.Sync, cache.Sync, o)
	}
}

// handleDeleted handles a DELETED watch event: it carries the final state. In a list it ends what the list, or what was known
// before, began.
func (s *objectStep) handleDeleted(o *Object) {
	if s.list == nil && s.isOutdated(o) {
		return
	}
	var others []event.EmittedVersion
	if s.list != nil {
		if !s.isKnown() && s.filterEmittedElsewhere(func(t event.EmittedVersion) bool { return t.UID == o.UID }) == "" {
			return
		}
		others = s.clearEmittedElsewhere(o.UID)
	}
	if s.isKnown() && !s.isKnownObject(o) {
		s.emitReplacedByNamesake(cache.Deleted, o)
	}
	s.emitMissingDeletes(others, o)
	s.emitChange(event.Deleted, cache.Deleted, o)
	s.removeKnown(o)
}

// handleVanished handles an object that a list no longer has: it was deleted while nobody watched (I8), or the rules do not
// select it any more. o is made from what is known.
func (s *objectStep) handleVanished(o *Object) {
	others := s.clearEmittedElsewhere("")
	if s.isKnown() {
		s.emitGone(stubFromKnown(s.known, o.ObservedAt))
	}
	s.emitMissingDeletes(others, o)
	s.known = event.Known{Key: s.known.Key}
}

// emitGone emits that o is gone, or not selected any more, as a list says.
func (s *objectStep) emitGone(o *Object) {
	c := s.emitChange(event.Deleted, cache.Deleted, o)
	c.FinalStateUnknown, c.Coalesced, c.Left, c.Pass = true, true, s.list.Pass != "", cmp.Or(s.list.Pass, s.list.Name)
}

// clearEmittedElsewhere ends what only some sinks were told, in a list, which is the present truth: all but the object with this UID is
// gone. It returns those that are not known besides. A deletion of what is known names the newest version that anybody was
// told.
func (s *objectStep) clearEmittedElsewhere(uid string) (others []event.EmittedVersion) {
	s.known.EachEmittedElsewhere(func(t event.EmittedVersion) {
		switch {
		case t.UID == uid:
		case t.UID != s.known.UID:
			others = append(others, t)
		case isNewer(t.ResourceVersion, s.known.ResourceVersion):
			s.known.ResourceVersion = t.ResourceVersion
		}
	})
	s.known.EmittedElsewhere = ""
	return others
}

// emitMissingDeletes emits that these are gone, after all that is older, and before by.
func (s *objectStep) emitMissingDeletes(others []event.EmittedVersion, by *Object) {
	for _, t := range others {
		s.emitGone(stubFromKnown(event.Known{Key: s.known.Key, UID: t.UID, ResourceVersion: t.ResourceVersion}, by.ObservedAt))
	}
}

// emitReplacedByNamesake emits that the known object is gone because another one now has its name. That one's UID is a part of
// the ID, as the version that is gone may have left before.
func (s *objectStep) emitReplacedByNamesake(t cache.DeltaType, by *Object) {
	c := s.emitChange(event.Deleted, t, by)
	c.UID, c.ResourceVersion, c.Previous, c.Generation, c.Before = s.known.UID, s.known.ResourceVersion, "", 0, nil
	c.Coalesced, c.FinalStateUnknown, c.Pass = true, true, cmp.Or(c.Pass, by.UID)
	s.known.EmittedElsewhere = s.filterEmittedElsewhere(func(t event.EmittedVersion) bool { return t.UID != s.known.UID })
}

func (s *objectStep) emitChange(t event.Type, d cache.DeltaType, o *Object) *event.Change {
	resource := s.scope.Resource
	if o.Resource != nil {
		resource = *o.Resource
	}
	c := &event.Change{
		Type: t, Delta: event.Delta(d), Cluster: s.scope.Cluster, Resource: resource,
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
		Generation: o.Generation, ObservedAt: o.ObservedAt,
	}
	if s.isKnownObject(o) {
		c.Previous = s.known.ResourceVersion
	}
	if s.list != nil {
		c.Snapshot, c.Pass = s.list.Snapshot, s.list.Pass
	}
	if t == event.Deleted {
		c.Before = o.Raw
	} else {
		c.After = o.Raw
	}
	s.changes = append(s.changes, c)
	return c
}

// isNewer says that a was written after b. resourceVersions of one resource are ordered integers (KEP-5504). An aggregated
// API may not keep to that; its versions are then only compared for equality, and history emitted twice stays visible.
func isNewer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	if err != nil {
		return a != b
	}
	return order > 0
}
