package source

import (
	"fmt"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// TestResyncEmitsEveryKnownObjectAgain has a rule with resync, and objects that change meanwhile: each known object is
// emitted again in the version that was emitted last, never in an older one, and never after its delete. A rule without
// resync emits nothing again.
func TestResyncEmitsEveryKnownObjectAgain(t *testing.T) {
	t.Parallel()
	const objects = 40
	s := newFixture(t, sharedControlPlane(t), nil)
	again := s.namespacedRule("configmaps")
	again["resync"] = "1m"
	s.setRules(again, s.namespacedRule("services"))
	for i := range objects {
		s.requireNoError(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, fmt.Sprintf("o-%02d", i)))
	}
	s.requireNoError(s.cluster.Create(t.Context(), workload.Services, s.name, "one"))
	s.startExporter()
	s.createMarker(workload.ConfigMaps, s.name)
	s.requireNoError(s.cluster.Delete(t.Context(), workload.ConfigMaps, s.name, "o-00"))
	step := 0
	s.awaitCondition(func() string { // changes continue until each object was emitted again twice; every second object stays unchanged
		step++
		s.requireNoError(s.cluster.Change(t.Context(), workload.ConfigMaps, s.name, fmt.Sprintf("o-%02d", 1+2*(step%(objects/2))), step))
		return s.missingSyncs(objects, 2)
	})
	s.stopExporter()

	newest, ids := map[string]string{}, map[string]bool{}
	for _, r := range s.records {
		switch {
		case r.Name == "":
			continue
		case ids[r.ID]:
			t.Errorf("two records have the ID %s", r.ID)
		case r.Type == "sync" && r.ResourceVersion != newest[r.String()]:
			t.Errorf("%s was last emitted at %q and is emitted again at %q", r.Object, newest[r.String()], r.ResourceVersion)
		case r.Type == "sync" && len(r.After) == 0:
			t.Errorf("emitted again without its body: %s", r.Payload)
		case r.Type == "sync" && r.Resource != "configmaps":
			t.Errorf("emitted again without a resync: %s", r.Payload)
		}
		ids[r.ID] = true
		newest[r.String()] = r.ResourceVersion
		if r.Type == "deleted" {
			newest[r.String()] = "nothing, as it is gone"
		}
	}
}

// missingSyncs describes an object that was emitted again fewer times than that; "" if there is none.
func (s *fixture) missingSyncs(objects, times int) string {
	synced := map[string]int{}
	for _, r := range s.readRecords() {
		if r.Type == "sync" {
			synced[r.Name]++
		}
	}
	for i := 1; i < objects; i++ {
		if name := fmt.Sprintf("o-%02d", i); synced[name] < times {
			return fmt.Sprintf("%s was emitted again %d times", name, synced[name])
		}
	}
	return ""
}
