package deltas

import (
	"testing"

	"k8s.io/client-go/tools/cache"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// TestAStampIsOnlyOnChangesOfOneWrite: not where an object may have entered the selection, and not where a list or the
// replacement of an object stands for several writes.
func TestAStampIsOnlyOnChangesOfOneWrite(t *testing.T) {
	stamped := func(uid, version string) *Object {
		o := NewObject("n", "a")
		o.UID, o.ResourceVersion, o.Stamp = uid, version, &event.Stamp{User: "alice", Replaced: "1"}
		return o
	}
	known := event.Known{Key: "n/a", UID: "u", ResourceVersion: "1"}
	for name, c := range map[string]struct {
		scope Scope
		list  *List
		known event.Known
		delta cache.Delta
		want  bool
	}{
		"created":                     {known: event.Known{Key: "n/a"}, delta: cache.Delta{Type: cache.Added, Object: stamped("u", "2")}, want: true},
		"updated":                     {known: known, delta: cache.Delta{Type: cache.Updated, Object: stamped("u", "2")}, want: true},
		"updated with a selector":     {scope: Scope{Selected: true}, known: known, delta: cache.Delta{Type: cache.Updated, Object: stamped("u", "2")}, want: true},
		"entered the selection":       {scope: Scope{Selected: true}, known: event.Known{Key: "n/a"}, delta: cache.Delta{Type: cache.Added, Object: stamped("u", "2")}},
		"updated and not known":       {known: event.Known{Key: "n/a"}, delta: cache.Delta{Type: cache.Updated, Object: stamped("u", "2")}},
		"another object, not created": {known: known, delta: cache.Delta{Type: cache.Updated, Object: stamped("v", "2")}},
		"listed":                      {list: &List{}, known: known, delta: cache.Delta{Type: cache.Updated, Object: stamped("u", "2")}},
		"deleted":                     {known: known, delta: cache.Delta{Type: cache.Deleted, Object: stamped("u", "2")}},
	} {
		_, changes := Step(c.scope, c.list, c.known, cache.Deltas{c.delta})
		for i, change := range changes {
			last := i == len(changes)-1
			if (change.Stamp != nil) != (c.want && last) {
				t.Errorf("%s: the stamp of %s is %v", name, change.Type, change.Stamp)
			}
		}
		if len(changes) == 0 {
			t.Errorf("%s: no change", name)
		}
	}
}
