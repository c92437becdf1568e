package source

import (
	"context"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// installDefinition defines a custom resource and returns its kind in version v1. It is removed at the end of the test.
func (s *fixture) installDefinition(d workload.Definition) workload.Kind {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), arriveTimeout)
	defer cancel()
	s.requireNoError(s.cluster.Install(ctx, d))
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), arriveTimeout)
		defer cancel()
		if err := s.cluster.Undefine(ctx, d.Group, d.Plural); err != nil {
			s.t.Error(err)
		}
	})
	return customKind(d.Group, "v1", d.Plural, d.Kind)
}

// TestTypeAddedAfterLostJournalHasNoGap breaks the journal, and defines a selected type once the gaps are emitted: existing
// types have lost history, later ones have not.
func TestTypeAddedAfterLostJournalHasNoGap(t *testing.T) {
	t.Parallel()
	s := newFixture(t, sharedControlPlane(t), nil, func(settings *exporter.Settings) { settings.DrainTimeout = "30s" })
	s.setRules(s.namespacedRule("configmaps", "newcomers.later.kubecdc.io"))
	s.requireNoError(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "one"))
	s.startExporter()
	s.awaitEmitted(workload.ConfigMaps, s.name, "one", "snapshot")
	s.killExporter()
	breakJournal(t, s.settings.JournalDir())
	emitted := len(s.records)
	s.startExporter()
	s.createMarker(workload.ConfigMaps, s.name)
	if n := len(gapRecords(s.records[emitted:], workload.ConfigMaps)); n != 1 {
		t.Errorf("%d gaps of the lost history, want 1", n)
	}

	kind := s.installDefinition(workload.Definition{Group: "later.kubecdc.io", Plural: "newcomers", Kind: "Newcomer"})
	s.requireNoError(s.cluster.Create(t.Context(), kind, s.name, "one"))
	s.awaitCondition(func() string {
		for _, r := range s.readRecords() {
			if isAbout(r, kind) && r.Name == "one" {
				return ""
			}
		}
		return "the newcomer"
	})
	s.stopExporter()
	for _, r := range gapRecords(s.records, kind) {
		t.Errorf("a gap for a type that did not exist: %s", r.Payload)
	}
}
