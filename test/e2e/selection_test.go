package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
)

// TestNamespacesCreatedLaterAreWatched has one rule with globs, which watches the cluster and drops what it does not take,
// and one with a name, for which a Role can be made no earlier than its namespace: until then it is forbidden.
func TestNamespacesCreatedLaterAreWatched(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Services}
	s := newRestrictedFixture(t, kinds, func(settings *exporter.Settings) {
		settings.Resources = []map[string]any{
			{"select": []string{"configmaps"}, "namespaces": map[string]any{
				"include": []string{settings.Stream + "-team-*"}, "exclude": []string{"*-secret"},
			}},
			{"select": []string{"services"}, "namespaces": map[string]any{"include": []string{settings.Stream + "-later"}}},
		}
	})
	s.must(s.exporter.Start(t.Context()))
	s.awaitMetric(fmt.Sprintf(`kubecdc_resource_state{resource="services;ns=%s-later",state="forbidden"}`, s.name), "1")
	s.awaitMetric(fmt.Sprintf(`kubecdc_namespace_missing{name="%s-later"}`, s.name), "1")
	s.awaitAnswer("/readyz", http.StatusOK, fmt.Sprintf("NamespaceMissing: 2 (%[1]s-later, %[1]s-team-*): ", s.name))
	want := map[string]bool{}
	for _, namespace := range []string{"-team-a", "-team-b", "-team-b-secret", "-teams", "-later"} {
		s.must(s.cluster.CreateNamespace(t.Context(), s.name+namespace))
		for _, kind := range kinds {
			s.must(s.cluster.Create(t.Context(), kind, s.name+namespace, "one"))
		}
		switch namespace {
		case "-team-a", "-team-b":
			want["configmaps "+s.name+namespace+"/one"] = true
		case "-later":
			want["services "+s.name+namespace+"/one"] = true
		}
	}
	s.grant()
	// The last record ends the wait for records that must not come.
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name+"-team-a", "last"))
	s.must(s.cluster.Create(t.Context(), workload.Services, s.name+"-later", "last"))
	want["configmaps "+s.name+"-team-a/last"], want["services "+s.name+"-later/last"] = true, true
	s.awaitMetric(fmt.Sprintf(`kubecdc_namespace_missing{name="%s-later"}`, s.name), "0")
	for _, b := range s.buses {
		var got map[string]bool
		s.await(b, func(records []bus.Record) string {
			got = map[string]bool{}
			for _, r := range records {
				if r.Name != "" { // else it speaks of the resource
					got[r.String()] = true
				}
			}
			for object := range want {
				if !got[object] {
					return object
				}
			}
			return ""
		})
		if !maps.Equal(got, want) {
			t.Errorf("%s: told of %v, want %v", b.Name(), slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
		}
	}
}

// TestObjectThatLeavesTheSelectorIsDeleted relabels objects that the API server selects by label.
func TestObjectThatLeavesTheSelectorIsDeleted(t *testing.T) {
	s := newRestrictedFixture(t, []workload.Kind{workload.ConfigMaps}, func(settings *exporter.Settings) {
		settings.Resources = []map[string]any{{"select": []string{"configmaps"}, "labelSelector": "app=" + settings.Stream}}
	})
	s.must(s.exporter.Start(t.Context()))
	label := func(value string) {
		s.must(s.cluster.Patch(t.Context(), workload.ConfigMaps, s.name, "one", fmt.Sprintf(`{"metadata":{"labels":{"app":%q}}}`, value)))
	}
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "one"))
	label(s.name)
	s.must(s.cluster.Change(t.Context(), workload.ConfigMaps, s.name, "one", 1))
	label("other")
	s.must(s.cluster.Change(t.Context(), workload.ConfigMaps, s.name, "one", 2))
	label(s.name)
	for _, b := range s.buses {
		var types []string
		s.await(b, func(records []bus.Record) string {
			types = nil
			for _, r := range records {
				if r.Name == "one" {
					types = append(types, r.Type)
				}
			}
			if len(types) < 4 {
				return fmt.Sprintf("four changes, there are %v", types)
			}
			return ""
		})
		if want := "added updated deleted added"; strings.Join(types, " ") != want {
			t.Errorf("%s: told %v, want %s", b.Name(), types, want)
		}
	}
}

// TestObjectRecreatedDuringDowntimeIsDeletedAndAdded deletes objects and creates them again under their names while the
// exporter is away.
func TestObjectRecreatedDuringDowntimeIsDeletedAndAdded(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Widgets}
	s := newRestrictedFixture(t, kinds)
	s.must(s.exporter.Start(t.Context()))
	for _, kind := range kinds {
		s.must(s.cluster.Create(t.Context(), kind, s.name, "one"))
	}
	s.awaitAll()
	s.must(s.exporter.Stop())
	for _, kind := range kinds {
		s.must(s.cluster.Delete(t.Context(), kind, s.name, "one"))
		s.must(s.cluster.Create(t.Context(), kind, s.name, "one"))
	}
	s.must(s.exporter.Start(t.Context()))
	s.awaitAll()
	s.judge(oracle.Rules{})
	for _, b := range s.buses {
		uids := map[bus.Object][]string{}
		for _, r := range b.records {
			if r.Namespace == s.name {
				uids[r.Object] = append(uids[r.Object], r.Type+" "+r.UID)
			}
		}
		for object, told := range uids {
			if len(told) != 3 || told[1] != strings.Replace(told[0], "added", "deleted", 1) || told[2] == told[0] {
				t.Errorf("%s: %v: told %v", b.Name(), object, told)
			}
		}
	}
}

// configMapsOf is the kind of ConfigMaps with so many bytes of ballast.
func configMapsOf(bytes int) workload.Kind {
	kind := workload.ConfigMaps
	kind.Object = func() *unstructured.Unstructured {
		o := workload.ConfigMaps.Object()
		o.Object["data"] = map[string]any{"step": "0", "ballast": strings.Repeat("0123456789abcdef", bytes/16)}
		return o
	}
	return kind
}

// TestSlowWatcherLosesNothing lets the exporter freeze until the API server closes its watch.
func TestSlowWatcherLosesNothing(t *testing.T) {
	large := configMapsOf(64 << 10) // fills every buffer on the way soon
	s := newRestrictedFixture(t, []workload.Kind{large})
	s.must(s.exporter.Start(t.Context()))
	s.must(s.cluster.Create(t.Context(), large, s.name, "first"))
	s.awaitAll()
	before := s.closedAsSlow("configmaps")
	s.must(s.exporter.Pause())
	load := s.run(workload.Plan{Objects: 150, Updates: 3}, []workload.Kind{large})
	s.must(load.Wait())
	for deadline := time.Now().Add(arriveWithin); s.closedAsSlow("configmaps") == before; await.Pause(t, lookEvery) {
		if time.Now().After(deadline) {
			t.Fatal("the API server has closed no watch: there was nothing to be too slow for")
		}
	}
	s.must(s.exporter.Resume())
	s.awaitAll()
	s.judge(oracle.Rules{})
}

// closedAsSlow is how many watches of a resource the API server has closed because they did not read.
func (s *fixture) closedAsSlow(resource string) int {
	s.t.Helper()
	text, err := s.cluster.Metrics(s.t.Context())
	s.must(err)
	for name, value := range series(text, "apiserver_terminated_watchers_total{") {
		if strings.Contains(name, fmt.Sprintf("resource=%q", resource)) {
			return value
		}
	}
	return 0
}
