package app

import (
	"testing"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// newTestRouting reads a configuration with these routes over two sinks, main and bus.
func newTestRouting(t *testing.T, routes string) *routing {
	t.Helper()
	cfg, err := config.Load(writeTemp(t, "config.yaml", `
resources: [{select: ["*"]}]
sinks:
  - {name: main, kafka: {brokers: ["127.0.0.1:9092"], topic: "k8s.{resource}"}}
  - {name: bus, nats: {url: "nats://127.0.0.1:4222", stream: K8S, subject: "k8s.{name}"}}
`+routes))
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRouting(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func routeName(r delivery.Route) string {
	switch {
	case r.Skip:
		return "-"
	case r.Topic == nil:
		return "own"
	}
	return r.Topic.String()
}

func TestRoutesOfTheConfigurationAreFollowed(t *testing.T) {
	r := newTestRouting(t, `
routes:
  - {select: ["events.events.k8s.io"], drop: true}
  - {select: ["*"], exclude: ["nodes"], namespaces: {exclude: ["kube-*"]}, types: [added], to: [{sink: main}, {sink: bus, topic: "new.{name}"}]}
  - {select: ["deployments.v1.apps"], classes: [status], filter: object.ready == true, to: [{sink: main, topic: "ready.{resource}"}]}
`)
	apps := event.Resource{Group: "apps", Version: "v1", Resource: "deployments"}
	pods := event.Resource{Version: "v1", Resource: "pods"}
	for name, c := range map[string]struct {
		change event.Change
		want   string // in main and in bus
	}{
		"dropped":               {event.Change{Type: event.Added, Resource: event.Resource{Group: "events.k8s.io", Version: "v1", Resource: "events"}}, "- -"},
		"another group":         {event.Change{Type: event.Updated, Resource: event.Resource{Version: "v1", Resource: "events"}}, "own own"},
		"to two topics":         {event.Change{Type: event.Added, Resource: pods, Namespace: "web"}, "own new.{name}"},
		"no namespace":          {event.Change{Type: event.Added, Resource: event.Resource{Version: "v1", Resource: "namespaces"}}, "own new.{name}"},
		"an excluded resource":  {event.Change{Type: event.Added, Resource: event.Resource{Version: "v1", Resource: "nodes"}}, "own own"},
		"an excluded namespace": {event.Change{Type: event.Added, Resource: pods, Namespace: "kube-system"}, "own own"},
		"another type":          {event.Change{Type: event.Deleted, Resource: pods, Namespace: "web"}, "own own"},
		"by class and filter":   {event.Change{Type: event.Updated, Class: event.ClassStatus, Resource: apps, After: []byte(`{"ready":true}`)}, "ready.{resource} -"},
		"another class":         {event.Change{Type: event.Updated, Class: event.ClassSpec, Resource: apps, After: []byte(`{"ready":true}`)}, "own own"},
		"the filter says no":    {event.Change{Type: event.Updated, Class: event.ClassStatus, Resource: apps, After: []byte(`{"ready":false}`)}, "own own"},
		"another version":       {event.Change{Type: event.Updated, Class: event.ClassStatus, Resource: event.Resource{Group: "apps", Version: "v2", Resource: "deployments"}, After: []byte(`{"ready":true}`)}, "own own"},
	} {
		if got := routeName(r.routeFor("main")(&c.change)) + " " + routeName(r.routeFor("bus")(&c.change)); got != c.want {
			t.Errorf("%s: goes to %s, want %s", name, got, c.want)
		}
	}
	if stats := r.routeStats(); len(stats) != 3 || stats[0].Dropped["main"] != 1 || stats[2].Sent["main"] != 1 {
		t.Errorf("%+v", stats)
	}
}

// The position of a sink is valid under the same routes only, so it is stored with their fingerprint.
func TestRoutingIDChangesWithRoutes(t *testing.T) {
	none := newTestRouting(t, "")
	one := newTestRouting(t, `routes: [{select: [pods], drop: true}]`)
	same := newTestRouting(t, `routes: [{select: ["pods"], drop: true}]`)
	other := newTestRouting(t, `routes: [{select: [pods], to: [{sink: main}]}]`)
	if none.id != "" || none.routeFor("main") != nil || none.routeStats() != nil {
		t.Errorf("no routes are %+v", none)
	}
	if one.id != same.id || one.id == other.id || one.id == "" {
		t.Errorf("%q, %q and %q; want two alike and another", one.id, same.id, other.id)
	}
}

// TestASinkThatStartsNowGetsNoFirstList, but each change, and what is addressed to it. Its watermarks have no digest,
// because it does not have all objects.
func TestASinkThatStartsNowGetsNoFirstList(t *testing.T) {
	for _, routes := range []string{"", `
routes:
  - {select: ["*"], to: [{sink: main}]}
`} {
		r := newTestRouting(t, routes)
		for start, firstList := range map[string]bool{"now": false, "journal": true, "snapshot": true} {
			route := skipUnwanted(config.Sink{Name: "main", Format: "json", Start: start}, r.routeFor("main"))
			of := event.Resource{Version: "v1", Resource: "pods"}
			for _, typ := range []event.Type{event.Snapshot, event.SnapshotBegin, event.SnapshotEnd} {
				all := &event.Change{Type: typ, Resource: of, Snapshot: &event.SnapshotInfo{ID: "first"}}
				own := &event.Change{Type: typ, Resource: of, OnlySink: "main", Snapshot: &event.SnapshotInfo{ID: "own"}}
				if route(all).Skip == firstList || route(own).Skip {
					t.Errorf("%s, %s: of all it skips %v, its own %v", start, typ, route(all).Skip, route(own).Skip)
				}
			}
			late := &event.Change{Type: event.Updated, Resource: of, Snapshot: &event.SnapshotInfo{ID: "first"}}
			mark := &event.Change{Type: event.Watermark, Resource: of, Watermark: &event.WatermarkInfo{Sinks: []string{"main"}}}
			if route(late).Skip || route(mark).Skip || route(mark).Partial == firstList {
				t.Errorf("%s: change %+v, watermark %+v", start, route(late), route(mark))
			}
		}
	}
}

// TestASinkWithRowsOnlySkipsControlRecords in both formats, and no change.
func TestASinkWithRowsOnlySkipsControlRecords(t *testing.T) {
	for _, rowsOnly := range []bool{false, true} {
		for _, f := range []string{"debezium", "upsert"} {
			route := skipUnwanted(config.Sink{Name: "main", Format: f, RowsOnly: rowsOnly}, nil)
			for typ, control := range map[event.Type]bool{
				event.Gap: true, event.SnapshotBegin: true, event.SnapshotEnd: true, event.PartialBegin: true, event.PartialEnd: true,
				event.Snapshot: false, event.Added: false, event.Updated: false, event.Deleted: false, event.Sync: false,
			} {
				if skip := route(&event.Change{Type: typ}).Skip; skip != (control && rowsOnly) {
					t.Errorf("%s, rowsOnly %v: %s is skipped: %v", f, rowsOnly, typ, skip)
				}
			}
		}
	}
}
