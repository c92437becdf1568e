package index

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

const (
	// awaitLanes is how long the end of a snapshot waits for lanes in which nothing comes, and that may lag behind.
	awaitLanes = time.Minute
	// maxFrames bounds the snapshots that are remembered, since records of any of them may come again.
	maxFrames = 256
)

// frame is a snapshot.
type frame struct {
	Number    int    `json:"number"` // of the frame, in the order in which they were opened
	Namespace string `json:"namespace,omitempty"`
	// Guess is set until the begin is read: an object came first, and the snapshot is of its namespace, or of all.
	Guess bool `json:"guess,omitempty"`
	// Whole is set if no record was lost. Otherwise the end counts only if all objects that it numbers were read.
	Whole   bool            `json:"whole,omitempty"`
	Held    *event.Change   `json:"held,omitempty"` // the end, which waits
	Done    bool            `json:"done,omitempty"` // the end has been written, or does not count
	Late    bool            `json:"late,omitempty"` // rows have been written of what was observed since At
	At      time.Time       `json:"at"`             // when the first record was observed
	objects map[string]bool // that were read; nil if another process read some
}

func resourceOf(c *event.Change) string { return c.Cluster + "/" + c.Resource.String() + "/" }

// opensFrame reports whether a record is the first one of a snapshot.
func (s *Source) opensFrame(c *event.Change) bool {
	return c != nil && c.Snapshot != nil && c.Type != event.Replayed && c.Type != event.PartialBegin && c.Type != event.PartialEnd &&
		c.Type != event.SnapshotEnd && s.state.Frames[resourceOf(c)+c.Snapshot.ID] == nil
}

// frames keeps the accounts of snapshots, and returns false for a record of one that has no row now: an end waits, and a
// begin that comes behind objects of its snapshot has a row before these.
func (s *Source) frames(c *event.Change, at time.Time) bool {
	opens := s.opensFrame(c)
	if opens {
		s.openFrame(c, at)
	}
	if c.Type == event.Gap {
		s.endHeld(at, func(end *event.Change) bool { return resourceOf(end) == resourceOf(c) && end.Namespace == c.Namespace })
	}
	if c.Snapshot == nil {
		return true
	}
	f := s.state.Frames[resourceOf(c)+c.Snapshot.ID]
	switch {
	case f == nil: // of single objects, or an end without anything
		return c.Type != event.SnapshotEnd
	case c.Type == event.SnapshotBegin:
		f.Namespace, f.Guess = c.Namespace, false
		return opens && !f.Late
	case c.Type == event.SnapshotEnd:
		switch {
		case f.Done || f.Held != nil:
		case s.starts(): // what is gone may be of before it, or behind it
			f.end()
		default:
			if f.Held = c; !f.Late {
				s.settle(f, time.Time{})
			}
		}
		return false
	case f.objects == nil:
	case c.Type == event.Deleted:
		delete(f.objects, c.Key())
	default:
		f.objects[c.Key()] = true
	}
	return true
}

// openFrame opens the snapshot that a record is the first one of. If that is an object, the begin comes later, of its
// namespace or of all.
func (s *Source) openFrame(c *event.Change, at time.Time) {
	f := &frame{Namespace: c.Namespace, Guess: c.Name != "", Whole: !s.starts(), At: at, objects: map[string]bool{}}
	f.Late = !s.state.Newest[resourceOf(c)].At.Before(at)
	oldest := ""
	for other, o := range s.state.Frames {
		f.Number = max(f.Number, o.Number+1)
		if oldest == "" || o.Number < s.state.Frames[oldest].Number {
			oldest = other
		}
	}
	s.endHeld(at, func(end *event.Change) bool { return resourceOf(end) == resourceOf(c) && f.mayBeOf(end.Namespace) })
	if len(s.state.Frames) >= maxFrames {
		delete(s.state.Frames, oldest)
	}
	if s.state.Frames[resourceOf(c)+c.Snapshot.ID] = f; !f.Guess || f.Late {
		return
	}
	for _, namespace := range slices.Compact([]string{"", c.Namespace}) {
		s.append(&event.Change{Type: event.SnapshotBegin, Cluster: c.Cluster, Resource: c.Resource, Namespace: namespace, ObservedAt: at,
			Snapshot: c.Snapshot})
	}
}

// starts reports whether a lane has records that are gone, and none behind these was taken yet.
func (s *Source) starts() bool {
	return slices.ContainsFunc(s.lanes, func(l *lane) bool { return l.starts })
}

// endHeld ends the snapshots that wait, before a record which their ends must not stand behind: these would end another
// snapshot, or a later gap.
func (s *Source) endHeld(at time.Time, concerns func(end *event.Change) bool) {
	for _, f := range s.state.Frames {
		if f.Held != nil && concerns(f.Held) {
			if !f.Late {
				s.settle(f, at)
			}
			f.end()
		}
	}
}

// mayBeOf reports whether the snapshot is of a namespace, "" for all.
func (f *frame) mayBeOf(namespace string) bool {
	return f.Namespace == namespace || f.Guess && namespace == ""
}

func (f *frame) end() { f.Held, f.objects, f.Done = nil, nil, true }

// settle appends the end of a snapshot that waits, if nothing of it can follow: all of its objects were read, or each
// lane has been read past it, or now, when all were read to their ends, is long enough behind it.
func (s *Source) settle(f *frame, now time.Time) {
	end := f.Held
	if end == nil {
		return
	}
	isPast := now.Sub(end.ObservedAt) > awaitLanes ||
		!slices.ContainsFunc(s.lanes, func(l *lane) bool { return !l.time().After(end.ObservedAt) })
	isBehind := false // another begin, which it would end
	for id, o := range s.state.Frames {
		isBehind = isBehind || o.Number > f.Number && strings.HasPrefix(id, resourceOf(end)) && o.mayBeOf(end.Namespace)
	}
	switch {
	case isBehind:
		f.end()
	case f.objects != nil && len(f.objects) == end.Snapshot.Count, f.Whole && !f.Guess && isPast:
		if f.Late {
			s.late = append(s.late, f)
			return
		}
		s.append(end)
		s.isGap = false
		f.end()
	case isPast: // some of its records are gone
		f.end()
	}
}

// settleLate appends the end of a snapshot of which other lanes had been ahead, and so it has no begin: what was not
// observed since gets a delete. As it may have been created again meanwhile, states are known behind what the lanes had
// ahead.
func (s *Source) settleLate(ctx context.Context, f *frame) error {
	if err := s.flush(); err != nil {
		return err
	}
	end, newest := f.Held, s.state.Newest[resourceOf(f.Held)]
	if newest.At.After(end.ObservedAt) {
		end.ObservedAt = newest.At
	}
	if order, ordered := resourceversion.Compare(newest.Version, end.ResourceVersion); ordered && order > 0 {
		end.ResourceVersion = newest.Version
	}
	of := history.Match{Cluster: end.Cluster, Group: end.Resource.Group, Resource: end.Resource.Resource}
	if end.Namespace != "" {
		of.Namespace = &end.Namespace
	}
	err := s.index.States(ctx, s.Dir, of, func(o *event.Change) bool {
		if o.ObservedAt.Before(f.At) {
			gone := o.Clone()
			gone.Type, gone.After, gone.ResourceVersion = event.Deleted, nil, end.ResourceVersion
			gone.ChangedAt, gone.ObservedAt = event.ChangeTime{At: end.ObservedAt, NotBefore: o.ObservedAt}, end.ObservedAt
			s.append(gone)
		}
		return true
	})
	s.append(end)
	s.isGap = false
	f.end()
	return err
}

// lose appends a gap of everything: records are gone, and what exists is unknown until the next whole list.
func (s *Source) lose(reason string, at time.Time) {
	s.endHeld(at, func(*event.Change) bool { return true })
	for _, f := range s.state.Frames {
		f.Whole = false
	}
	if s.isGap {
		return
	}
	s.isGap = true
	for _, of := range s.state.Scopes {
		s.append(of.newGap(reason, at))
	}
}

// scope is a part of a cluster that snapshots and gaps are about.
type scope struct {
	Cluster   string         `json:"cluster"`
	Resource  event.Resource `json:"resource"`
	Namespace string         `json:"namespace,omitempty"`
}

func (of scope) newGap(reason string, at time.Time) *event.Change {
	return &event.Change{Type: event.Gap, Cluster: of.Cluster, Resource: of.Resource, Namespace: of.Namespace, ObservedAt: at,
		Gap: &event.GapInfo{Reason: reason}}
}

// addNewest records the time and the version of a row.
func (s *state) addNewest(c *event.Change) {
	if c.Name == "" || c.Type.IsBeside() {
		return
	}
	n := s.Newest[resourceOf(c)]
	if c.ObservedAt.After(n.At) {
		n.At = c.ObservedAt
	}
	if order, ordered := resourceversion.Compare(n.Version, c.ResourceVersion); !ordered || order < 0 {
		n.Version = c.ResourceVersion
	}
	s.Newest[resourceOf(c)] = n
}

// addScope records what a control record is about.
func (s *state) addScope(c *event.Change) {
	of := scope{c.Cluster, event.Resource{Group: c.Resource.Group, Resource: c.Resource.Resource}, c.Namespace}
	if (c.Type == event.SnapshotBegin || c.Type == event.SnapshotEnd || c.Type == event.Gap) && !slices.Contains(s.Scopes, of) {
		s.Scopes = append(s.Scopes, of)
	}
}
