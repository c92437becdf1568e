package source

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// TestEditedRuleStartsBeforeStates edits a rule between two runs: the objects known before the edit are listed once,
// and the first update of each object has the state that was emitted last.
func TestEditedRuleStartsBeforeStates(t *testing.T) {
	t.Parallel()
	const objects = 10
	s := newFixture(t, sharedControlPlane(t), nil)
	rule := s.namespacedRule("configmaps")
	s.setRules(rule)
	for i := range objects {
		s.requireNoError(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, fmt.Sprintf("o-%d", i)))
	}
	s.startExporter()
	s.createMarker(workload.ConfigMaps, s.name)
	s.stopExporter()
	rule["before"] = "full"
	s.setRules(rule)
	s.startExporter()
	const through = "the states of known objects were read"
	s.awaitCondition(func() string {
		if strings.Contains(s.exporter.LogTail(), through) {
			return ""
		}
		return through
	})
	for i := range objects {
		s.requireNoError(s.cluster.Change(t.Context(), workload.ConfigMaps, s.name, fmt.Sprintf("o-%d", i), 1))
	}
	s.createMarker(workload.ConfigMaps, s.name)
	s.stopExporter()

	emitted, updates := map[string]any{}, 0
	for _, r := range s.records {
		var before, after any
		_ = json.Unmarshal(r.Before, &before) // stays nil without before
		_ = json.Unmarshal(r.After, &after)
		if r.Type == "updated" {
			updates++
			if before == nil || !reflect.DeepEqual(before, emitted[r.String()]) {
				t.Errorf("%s has before %s", r.Object, r.Before)
			}
		}
		emitted[r.String()] = after
	}
	if updates != objects {
		t.Errorf("%d updates, want %d", updates, objects)
	}
}
