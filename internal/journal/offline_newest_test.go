package journal

import (
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

func TestIsLatestComparesWithKnownObject(t *testing.T) {
	dir := t.TempDir()
	j := startJournal(t, Options{Dir: dir})
	know := func(name string, k event.Known) {
		c := podChange(1, 10)
		j.mustAppend(event.Observation{Resource: resourceNamed(name), Scope: name, Changes: []*event.Change{c}, Known: []event.Known{k}})
	}
	know("pods", event.Known{Key: "team/lives", UID: "u1", ResourceVersion: "5"})
	know("pods", event.Known{Key: "other/lives", UID: "u2", ResourceVersion: "6"})
	know("podsets", event.Known{Key: "team/elsewhere", UID: "u4", ResourceVersion: "8"})
	know("nodes", event.Known{Key: "n1", UID: "u5", ResourceVersion: "9"})
	j.stopAndClose()
	o := openOffline(t, dir)
	defer func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, test := range []struct {
		resource, namespace, name, uid, version string
		kind                                    event.Type
		want                                    bool
	}{
		{"pods", "team", "lives", "u1", "5", event.Updated, true},
		{"pods", "team", "lives", "u1", "4", event.Updated, false},
		{"pods", "team", "lives", "u0", "5", event.Updated, false},
		{"pods", "team", "lives", "u0", "4", event.Deleted, false}, // it would end the life of u1
		{"pods", "other", "lives", "u2", "6", event.Added, true},
		{"pods", "team", "forgotten", "u6", "1", event.Deleted, true},
		{"pods", "team", "forgotten", "u6", "1", event.Updated, false},
		{"pods", "team", "elsewhere", "u4", "8", event.Updated, false},
		{"nodes", "", "n1", "u5", "9", event.Snapshot, true},
		{"pods", "", "", "", "9", event.Gap, false},
	} {
		c := &event.Change{Type: test.kind, Resource: event.Resource{Version: "v1", Resource: test.resource},
			Namespace: test.namespace, Name: test.name, UID: test.uid, ResourceVersion: test.version}
		if got, err := o.isLatest(c); err != nil || got != test.want {
			t.Errorf("%+v: %v, %v", test, got, err)
		}
	}
}
