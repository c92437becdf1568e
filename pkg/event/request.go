package event

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
)

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
