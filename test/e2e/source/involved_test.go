package source

import (
	"encoding/json"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// involvedKind is a ConfigMap with values that its rule redacts, and copies of them in annotations.
func involvedKind(team string) workload.Kind {
	kind := workload.ConfigMaps
	kind.Object = func() *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"password": "hunter-in-data"},
			"metadata": map[string]any{"labels": map[string]any{"team": team}, "annotations": map[string]any{
				"plain": "shown", "token": "hunter-in-token", "copy": `{"password":"hunter-in-data"}`,
				"kubectl.kubernetes.io/last-applied-configuration": `{"kind":"ConfigMap","data":{"password":"hunter-in-data"}}`,
			}},
		}}
	}
	return kind
}

// eventAbout is an Event of the core group about a ConfigMap.
func eventAbout(namespace, name string) workload.Kind {
	return workload.Kind{
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "events"},
		Object: func() *unstructured.Unstructured {
			return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Event", "reason": "Test", "involvedObject": map[string]any{
				"apiVersion": "v1", "kind": "ConfigMap", "namespace": namespace, "name": name,
			}}}
		},
	}
}

// TestEventsHaveWhatTheirObjectMayShow: filters see what Events get of their objects, and what the rule of the object
// redacts does not leave by its Events, whatever is redacted in the Events themselves, and after a restart.
func TestEventsHaveWhatTheirObjectMayShow(t *testing.T) {
	t.Parallel()
	s := newFixture(t, sharedControlPlane(t), nil)
	events, objects := s.namespacedRule("events"), s.namespacedRule("configmaps")
	events["involvedObject"] = rule{"labels": true, "annotations": true}
	events["filter"] = `object.involvedObject.?labels.team.orValue("") == "shop"`
	events["redact"] = "none"
	objects["redactPaths"] = []string{"data.password", `metadata.annotations["token"]`}
	s.setRules(events, objects)
	for name, team := range map[string]string{"a": "shop", "b": "other"} {
		s.requireNoError(s.cluster.Create(t.Context(), involvedKind(team), s.name, name))
	}
	s.requireNoError(s.cluster.Create(t.Context(), eventAbout(s.name, "a"), s.name, "before-the-start"))
	s.startExporter()
	s.requireNoError(s.cluster.Create(t.Context(), eventAbout(s.name, "b"), s.name, "of-another-team"))
	s.requireNoError(s.cluster.Create(t.Context(), eventAbout(s.name, "a"), s.name, "live"))
	s.awaitEmitted(eventAbout("", ""), s.name, "live", "added")
	s.stopExporter()
	s.requireNoError(s.cluster.Create(t.Context(), eventAbout(s.name, "a"), s.name, "while-stopped"))
	s.startExporter()
	s.awaitEmitted(eventAbout("", ""), s.name, "while-stopped", "added")
	s.stopExporter()

	seen := map[string]bool{}
	for _, r := range s.records {
		if r.Resource != "events" || r.Name == "" {
			continue
		}
		seen[r.Name] = true
		var after struct{ InvolvedObject map[string]any }
		s.requireNoError(json.Unmarshal(r.After, &after))
		want := map[string]any{"plain": "shown", "token": "***", "copy": "***", "kubectl.kubernetes.io/last-applied-configuration": "***"}
		if fmt.Sprint(after.InvolvedObject["annotations"]) != fmt.Sprint(want) {
			t.Errorf("%s has the annotations %v, want %v", r.Name, after.InvolvedObject["annotations"], want)
		}
	}
	if fmt.Sprint(seen) != "map[before-the-start:true live:true while-stopped:true]" {
		t.Errorf("emitted were %v", seen)
	}
}
