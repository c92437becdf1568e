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
	s.EndSnapshotRequest("2", 7, 0)
	s.EndSnapshotRequest("1", 7, 0)
	ended := signal
	ended.Ended, ended.Count = true, 7
	if got := s.SnapshotRequests(); !slices.Equal(got, []SnapshotRequest{ended}) || len(s.PendingSnapshots()) > 0 {
		t.Errorf("the requests are %+v", got)
	}
}

func TestARequestNamesItsObjects(t *testing.T) {
	keys := []string{"shop/web", "system:node, a b\n=c", "shop/a%2Fb", "ü"}
	var s StoredScope
	r := SnapshotRequest{Sink: "main", ID: "1", Objects: EncodeObjectKeys(append(keys, "shop/web")), Signal: true}
	s.AddSnapshotRequests(r)
	got := s.SnapshotRequests()[0]
	found := got.ObjectKeys()
	slices.Sort(keys)
	if slices.Sort(found); got != r || !slices.Equal(found, keys) || EncodeObjectKeys(nil) != "" || (SnapshotRequest{}).ObjectKeys() != nil {
		t.Errorf("%+v has %q", got, found)
	}
	s.EndSnapshotRequest("1", 2, 1)
	if got := s.SnapshotRequests()[0]; !got.Ended || got.Count != 2 || got.Absent != 1 {
		t.Errorf("the end is %+v", got)
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
	web, api, both := pending, pending, pending
	web.Objects, api.Objects, both.Objects = EncodeObjectKeys([]string{"a/web"}), EncodeObjectKeys([]string{"b/api"}), EncodeObjectKeys([]string{"b/api", "a/web"})
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
		"one for several that have other objects": {
			[]StoredScope{scope("a", web), scope("b", api)}, []StoredScope{scope("all")}, []StoredScope{scope("all", both)},
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
