package event

import (
	"slices"
	"testing"
)

func TestAScopeHasEachRequestOnceAndInOrder(t *testing.T) {
	one, two, again := SnapshotRequest{Sink: "new", ID: "1"}, SnapshotRequest{Sink: "other", ID: "1"}, SnapshotRequest{Sink: "new", ID: "12"}
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

func TestARequestOfASignalStaysWithItsEnd(t *testing.T) {
	signal := SnapshotRequest{Sink: "main", ID: "1", Namespace: "shop", Signal: true}
	added := SnapshotRequest{Sink: "new", ID: "2"}
	var s StoredScope
	s.AddSnapshotRequests(signal, added)
	s.EndSnapshotRequest("2", 7)
	s.EndSnapshotRequest("1", 7)
	ended := signal
	ended.Ended, ended.Count = true, 7
	if got := s.SnapshotRequests(); !slices.Equal(got, []SnapshotRequest{ended}) || len(s.PendingSnapshots()) > 0 {
		t.Errorf("the requests are %+v", got)
	}
}

// TestScopesTakeOverWhatIsRequestedOfThoseThatGo, and none of it is lost, or counted twice.
func TestScopesTakeOverWhatIsRequestedOfThoseThatGo(t *testing.T) {
	scope := func(id string, all ...SnapshotRequest) StoredScope {
		s := StoredScope{ID: id}
		s.AddSnapshotRequests(all...)
		return s
	}
	pending := SnapshotRequest{Sink: "main", ID: "1", Signal: true}
	two, five := pending, pending
	two.Ended, two.Count, five.Ended, five.Count = true, 2, true, 5
	seven := five
	seven.Count = 7
	for name, c := range map[string]struct{ stored, next, want []StoredScope }{
		"a new scope beside one that stays": {
			[]StoredScope{scope("a", pending)}, []StoredScope{scope("a", two), scope("b")}, []StoredScope{scope("a", pending), scope("b")},
		},
		"one for several, of which one is not done": {
			[]StoredScope{scope("a", two), scope("b", pending)}, []StoredScope{scope("all")}, []StoredScope{scope("all", pending)},
		},
		"one for several that are done": {
			[]StoredScope{scope("a", two), scope("b", five)}, []StoredScope{scope("all")}, []StoredScope{scope("all", seven)},
		},
		"several for one": {
			[]StoredScope{scope("all", pending)}, []StoredScope{scope("a"), scope("b")}, []StoredScope{scope("a", pending), scope("b", pending)},
		},
		"several for one that is done": {
			[]StoredScope{scope("all", two)}, []StoredScope{scope("a"), scope("b")}, []StoredScope{scope("a", two), scope("b")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if CarrySnapshotRequests(c.stored, c.next); !slices.Equal(c.next, c.want) {
				t.Errorf("the scopes are %+v, want %+v", c.next, c.want)
			}
		})
	}
}
