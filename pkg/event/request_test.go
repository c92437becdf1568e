package event

import (
	"slices"
	"testing"
)

func TestAScopeHasEachRequestOnceAndInOrder(t *testing.T) {
	one, two, again := SnapshotRequest{"new", "1"}, SnapshotRequest{"other", "1"}, SnapshotRequest{"new", "12"}
	var s StoredScope
	if s.AddSnapshotRequests(one, two, one, again, two); !slices.Equal(s.SnapshotRequests(), []SnapshotRequest{one, two, again}) {
		t.Errorf("the requests are %+v", s.SnapshotRequests())
	}
	if s.RemoveSnapshotRequests(func(r SnapshotRequest) bool { return r.ID == "1" }); !slices.Equal(s.SnapshotRequests(), []SnapshotRequest{again}) {
		t.Errorf("the requests are %+v", s.SnapshotRequests())
	}
	if s.RemoveSnapshotRequests(func(SnapshotRequest) bool { return true }); s != (StoredScope{}) {
		t.Errorf("%+v is left", s)
	}
}
