package event

import "strings"

// SnapshotRequest asks for the existing objects of a scope again, for one sink: between live changes, each in the version
// that was emitted last.
type SnapshotRequest struct {
	Sink string // its name
	ID   string // with which the IDs of its snapshots begin; the same in all scopes
}

// AppendSnapshotRequest appends a request to the encoding of [StoredScope.Requests]. Neither name nor ID has a blank.
func AppendSnapshotRequest(to string, r SnapshotRequest) string {
	return to + r.Sink + " " + r.ID + "\n"
}

// SnapshotRequests returns the requests of a scope in order.
func (s *StoredScope) SnapshotRequests() (all []SnapshotRequest) {
	for line := range strings.Lines(s.Requests) {
		sink, id, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		all = append(all, SnapshotRequest{Sink: sink, ID: id})
	}
	return all
}

// AddSnapshotRequests adds requests, except those that the scope has.
func (s *StoredScope) AddSnapshotRequests(requests ...SnapshotRequest) {
	for _, r := range requests {
		if line := AppendSnapshotRequest("", r); !strings.Contains("\n"+s.Requests, "\n"+line) {
			s.Requests += line
		}
	}
}

// RemoveSnapshotRequests removes the requests for which remove is true.
func (s *StoredScope) RemoveSnapshotRequests(remove func(SnapshotRequest) bool) {
	all := s.SnapshotRequests()
	s.Requests = ""
	for _, r := range all {
		if !remove(r) {
			s.Requests = AppendSnapshotRequest(s.Requests, r)
		}
	}
}
