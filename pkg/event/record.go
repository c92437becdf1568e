package event

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Cursor is the delivery progress of one sink. A change is settled when the destination has acknowledged it or it is a
// durable dead letter (I2). The cursor lists only lanes with unsettled changes, so its size depends on the number of lanes
// that are in flight or failing, not on how long they have been failing.
type Cursor struct {
	Low       uint64            // all changes up to here are settled; the journal keeps what follows
	High      uint64            // all changes up to here are settled, except those of Lanes; below Low it counts as Low
	Lanes     map[string]uint64 // per lane: all changes of the lane up to here are settled
	Layout    string            // the layout that lane names depend on; Lanes and High are invalid under another one
	State     []byte            // state that the sink stores together with exactly these positions; nil if it has none
	Resending uint64            // while a loss is sent again, the newest change that was there when it was found; else 0
}

// HighestOffset returns the highest offset in the cursor.
func (c Cursor) HighestOffset() uint64 {
	n := max(c.Low, c.High)
	for _, offset := range c.Lanes {
		n = max(n, offset)
	}
	return n
}

// RewindLanes returns a cursor from which lanes deliver again what follows their offsets, and the others what they would
// have.
func (c Cursor) RewindLanes(after map[string]uint64) Cursor {
	high := max(c.High, c.Low)
	back := c
	back.High, back.Lanes = high, maps.Clone(c.Lanes)
	if back.Lanes == nil {
		back.Lanes = map[string]uint64{}
	}
	for lane, offset := range after {
		position, named := c.Lanes[lane]
		if !named {
			position = high
		}
		back.Lanes[lane] = min(position, offset)
		back.Low = min(back.Low, offset)
	}
	return back
}

// Normalize returns a copy without the lanes that are at High.
func (c Cursor) Normalize() Cursor {
	c.High = max(c.High, c.Low)
	c.Lanes = maps.Clone(c.Lanes)
	maps.DeleteFunc(c.Lanes, func(_ string, offset uint64) bool { return offset == c.High })
	if len(c.Lanes) == 0 {
		c.Lanes = nil
	}
	return c
}

// DeadLetter is a change that a sink could not deliver, kept until it is discarded.
type DeadLetter struct {
	Offset uint64
	Time   time.Time // when it was dead-lettered; UTC
	Reason string    // one line for display, as the sink reported it
	Change *Change
}

// Evidence is external input that is kept until the attribution that needs it is resolved. Only the component that stored it
// interprets the value.
type Evidence struct {
	Number uint64 // assigned by the component that stored it
	Value  []byte
}

// Record is a change with its offset in the journal.
type Record struct {
	Offset uint64 // starts at 1, grows by one per change, never reused
	Change *Change

	// InFrame means that the change is a part of the memory of a frame that was read from disk, with up to a MiB of other
	// changes. Code that keeps the change longer than those keeps a [Change.Clone].
	InFrame bool
}

// SnapshotRequest asks for the existing objects of a scope again, for one sink: between live changes, each in the version
// that was emitted last.
type SnapshotRequest struct {
	Sink      string // its name
	ID        string // with which the IDs of its snapshots begin; the same in all scopes
	Namespace string // the only one that the snapshot has objects of; "" for all that the scope has
	Objects   string // the only ones that it has, as EncodeObjectKeys returns them; "" for all

	// Signal is set if an operator has made the request, and not if its sink is new. Then the sink has every change, whatever
	// comes of the request, and the request stays with its end until it is removed.
	Signal bool
	Ended  bool // the end of the snapshot was emitted
	Count  int  // objects that it had
	Absent int  // of Objects: those that do not exist; it had their deletes
}

// EncodeObjectKeys returns the keys of objects, as in [Known], in order and without blanks.
func EncodeObjectKeys(keys []string) string {
	encoded := make([]string, len(keys))
	for i, key := range keys {
		encoded[i] = url.PathEscape(key)
	}
	slices.Sort(encoded)
	return strings.Join(slices.Compact(encoded), ",")
}

// ObjectKeys returns the keys of Objects; nil for all.
func (r SnapshotRequest) ObjectKeys() (keys []string) {
	if r.Objects == "" {
		return nil
	}
	for encoded := range strings.SplitSeq(r.Objects, ",") {
		if key, err := url.PathUnescape(encoded); err == nil {
			keys = append(keys, key)
		}
	}
	return keys
}

// addObjects adds the objects of a request with the same ID that another scope had.
func (r *SnapshotRequest) addObjects(o SnapshotRequest) {
	if r.Objects != "" && o.Objects != "" {
		r.Objects = EncodeObjectKeys(append(r.ObjectKeys(), o.ObjectKeys()...))
	}
}

// appendTo appends the request to the encoding of [StoredScope.Requests]. No member has a blank.
func (r SnapshotRequest) appendTo(to string) string {
	to += r.Sink + " " + r.ID
	if r.Signal {
		to += " signal"
	}
	if r.Namespace != "" {
		to += " namespace=" + r.Namespace
	}
	if r.Objects != "" {
		to += " objects=" + r.Objects
	}
	if r.Ended {
		to += " ended=" + strconv.Itoa(r.Count)
	}
	if r.Absent > 0 {
		to += " absent=" + strconv.Itoa(r.Absent)
	}
	return to + "\n"
}

// SnapshotRequests returns the requests of a scope in order.
func (s *StoredScope) SnapshotRequests() (all []SnapshotRequest) {
	for line := range strings.Lines(s.Requests) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		r := SnapshotRequest{Sink: fields[0], ID: fields[1]}
		for _, f := range fields[2:] {
			switch key, value, _ := strings.Cut(f, "="); key {
			case "signal":
				r.Signal = true
			case "namespace":
				r.Namespace = value
			case "objects":
				r.Objects = value
			case "absent":
				r.Absent, _ = strconv.Atoi(value)
			case "ended":
				r.Ended = true
				r.Count, _ = strconv.Atoi(value)
			}
		}
		all = append(all, r)
	}
	return all
}

// PendingSnapshots returns the requests of a scope that have not ended, in order.
func (s *StoredScope) PendingSnapshots() []SnapshotRequest {
	return slices.DeleteFunc(s.SnapshotRequests(), func(r SnapshotRequest) bool { return r.Ended })
}

// ReplaceSnapshotRequests replaces all requests of a scope.
func (s *StoredScope) ReplaceSnapshotRequests(all []SnapshotRequest) {
	s.Requests = ""
	for _, r := range all {
		s.Requests = r.appendTo(s.Requests)
	}
}

// AddSnapshotRequests adds requests. Of two with one sink and ID, which two scopes had, one is left, of the objects of both:
// it has ended if both have.
func (s *StoredScope) AddSnapshotRequests(requests ...SnapshotRequest) {
	all := s.SnapshotRequests()
	for _, r := range requests {
		i := slices.IndexFunc(all, func(o SnapshotRequest) bool { return o.Sink == r.Sink && o.ID == r.ID })
		switch {
		case i < 0:
			all = append(all, r)
		case all[i].Ended && r.Ended:
			all[i].Count += r.Count
			all[i].Absent += r.Absent
		case all[i].Ended:
			all[i] = r
		case !r.Ended:
			all[i].addObjects(r)
		}
	}
	s.ReplaceSnapshotRequests(all)
}

// RemoveSnapshotRequests removes the requests for which remove is true.
func (s *StoredScope) RemoveSnapshotRequests(remove func(SnapshotRequest) bool) {
	s.ReplaceSnapshotRequests(slices.DeleteFunc(s.SnapshotRequests(), remove))
}

// EndSnapshotRequest records that a request has ended with so many objects, and deletes of absent ones. That of a new sink
// is removed.
func (s *StoredScope) EndSnapshotRequest(id string, count, absent int) {
	s.RemoveSnapshotRequests(func(r SnapshotRequest) bool { return r.ID == id && !r.Signal })
	all := s.SnapshotRequests()
	for i := range all {
		if all[i].ID == id {
			all[i].Ended, all[i].Count, all[i].Absent = true, count, absent
		}
	}
	s.ReplaceSnapshotRequests(all)
}

// CarrySnapshotRequests gives the scopes of a resource that replace the stored ones what is requested of those. What is
// requested of a scope that stays is what is stored of it, and those that are new take over from those that go.
func CarrySnapshotRequests(stored, next []StoredScope) {
	stays := func(all []StoredScope, id string) int {
		return slices.IndexFunc(all, func(s StoredScope) bool { return s.ID == id })
	}
	first := true
	for i := range next {
		if at := stays(stored, next[i].ID); at >= 0 {
			next[i].Requests = stored[at].Requests
			continue
		}
		next[i].Requests = ""
		for _, s := range stored {
			if stays(next, s.ID) >= 0 {
				continue
			}
			if next[i].AddSnapshotRequests(s.PendingSnapshots()...); first {
				next[i].AddSnapshotRequests(s.SnapshotRequests()...)
			}
		}
		first = false
	}
}
