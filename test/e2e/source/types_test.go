package source

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/proxy"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// installType defines a custom resource with free content and returns its kind. It is removed at the end of the test.
func (s *fixture) installType(group, plural, kind string) workload.Kind {
	s.t.Helper()
	return s.installDefinition(workload.Definition{Group: group, Plural: plural, Kind: kind})
}

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

// removeType removes the definition of a kind and waits until it is no longer served.
func (s *fixture) removeType(kind workload.Kind) {
	s.t.Helper()
	s.requireNoError(s.cluster.Undefine(s.t.Context(), kind.Resource.Group, kind.Resource.Resource))
	s.awaitCondition(func() string {
		served, err := s.cluster.Serves(s.t.Context(), kind)
		s.requireNoError(err)
		if served {
			return "the definition of " + kind.Resource.Resource + " to go"
		}
		return ""
	})
}

// TestTypeHiddenByDiscoveryIsStillWatched hides a type from discovery for four polls, and through a restart, while its own
// endpoint answers. Nothing is deleted, so no delete is emitted, and changes are.
func TestTypeHiddenByDiscoveryIsStillWatched(t *testing.T) {
	t.Parallel()
	s, gateway := newFixtureBehindGateway(t, sharedControlPlane(t), []rule{{"select": []string{"shy.hidden.kubecdc.io", "namespaces"}}})
	kind := s.installType("hidden.kubecdc.io", "shy", "Shy")
	s.requireNoError(s.cluster.Create(t.Context(), kind, s.name, "one"))
	s.startExporter()
	s.awaitEmitted(kind, s.name, "one", "snapshot")

	gateway.Hide("hidden.kubecdc.io", "shy")
	gateway.Cut() // restarts the watch
	awaitPolls(s, gateway, 4)
	s.requireNoError(s.cluster.Create(t.Context(), kind, s.name, "two"))
	s.awaitEmitted(kind, s.name, "two", "added")

	s.killExporter()
	s.requireNoError(s.exporter.Launch(t.Context()))
	awaitPolls(s, gateway, 4)
	gateway.Show("hidden.kubecdc.io", "shy")
	s.requireNoError(s.cluster.Change(t.Context(), kind, s.name, "one", 1))
	s.awaitEmitted(kind, s.name, "one", "updated")
	s.stopExporter()
	for _, r := range s.records {
		if r.Type == "deleted" || r.Type == "gap" {
			t.Errorf("a record without a change: %s", r.Payload)
		}
	}
}

// awaitPolls waits for n more discovery polls of the exporter.
func awaitPolls(s *fixture, gateway *proxy.Gateway, n int) {
	s.t.Helper()
	polls := func() (n int) {
		for _, r := range gateway.Requests() {
			if r.Path == "/apis" {
				n++
			}
		}
		return n
	}
	before := polls()
	s.awaitCondition(func() string {
		if got := polls() - before; got < n {
			return fmt.Sprintf("%d polls; have %d", n, got)
		}
		return ""
	})
}

// TestRemovedTypeIsDeletedCompletely removes definitions, one while the exporter runs and one while it is stopped, of a rule
// that pins the version and of one that does not: each object is deleted, with version and kind.
func TestRemovedTypeIsDeletedCompletely(t *testing.T) {
	t.Parallel()
	env := sharedControlPlane(t)
	group := func(name string) string { return name + ".taken.kubecdc.io" }
	names := []string{"runningpinned", "running", "awaypinned", "away"}
	var rules []rule
	for _, name := range names {
		selects := name + "." + group(name)
		if strings.HasSuffix(name, "pinned") {
			selects = name + ".v1." + group(name)
		}
		rules = append(rules, rule{"select": []string{selects}})
	}
	s := newFixture(t, env, rules)
	var kinds []workload.Kind
	for _, name := range names {
		kind := s.installType(group(name), name, "Taken")
		kinds = append(kinds, kind)
		for _, object := range []string{"one", "two"} {
			s.requireNoError(s.cluster.Create(t.Context(), kind, s.name, object))
		}
	}
	s.startExporter()
	for _, kind := range kinds {
		s.awaitEmitted(kind, s.name, "two", "snapshot")
	}
	forEach(t, kinds[:2], func(ctx context.Context, kind workload.Kind) error {
		return s.cluster.Undefine(ctx, kind.Resource.Group, kind.Resource.Resource)
	})
	s.awaitDeleted(kinds[:2])
	s.stopExporter()
	for _, kind := range kinds[2:] {
		s.removeType(kind)
	}
	s.startExporter()
	s.awaitDeleted(kinds[2:])
	s.stopExporter()

	for _, kind := range kinds {
		for _, object := range []string{"one", "two"} {
			i := slices.IndexFunc(s.records, func(r bus.Record) bool { return isAbout(r, kind) && r.Name == object && r.Type == "deleted" })
			if r := s.records[i]; r.Version != "v1" || r.Kind != "Taken" || r.UID == "" || r.Left {
				t.Errorf("an incomplete delete: %s", r.Payload)
			}
		}
	}
}

// awaitDeleted waits until both objects of the kinds are deleted.
func (s *fixture) awaitDeleted(kinds []workload.Kind) {
	s.t.Helper()
	for _, kind := range kinds {
		for _, object := range []string{"one", "two"} {
			s.awaitEmitted(kind, s.name, object, "deleted")
		}
	}
}

// TestTypesThatNeverAnswerDoNotBlockOthers hangs all requests for ten types, more than are listed at once. The other types
// are read all the same, the ten are reported, and are read when they answer.
func TestTypesThatNeverAnswerDoNotBlockOthers(t *testing.T) {
	t.Parallel()
	hung := []string{"endpoints", "events", "limitranges", "nodes", "persistentvolumes", "podtemplates", "replicationcontrollers",
		"resourcequotas", "secrets", "serviceaccounts"}
	s, gateway := newFixtureBehindGateway(t, sharedControlPlane(t), nil)
	s.setRules(rule{"select": hung}, s.namespacedRule("configmaps", "services"))
	heal := gateway.Fault(func(r proxy.Request) bool { return r.Group == "" && slices.Contains(hung, r.Resource) }, gateway.Hang)
	s.requireNoError(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "one"))
	s.requireNoError(s.cluster.Create(t.Context(), workload.Services, s.name, "one"))
	s.requireNoError(s.exporter.Launch(t.Context()))
	s.awaitEmitted(workload.ConfigMaps, s.name, "one", "snapshot")
	s.awaitEmitted(workload.Services, s.name, "one", "snapshot")
	s.awaitPage("/readyz", http.StatusServiceUnavailable, "has not answered")
	var named []string
	for _, resource := range hung {
		named = append(named, fmt.Sprintf("kubecdc_resource_state{resource=%q,state=\"unreachable\"} 1", resource))
	}
	s.awaitPage("/metrics", http.StatusOK, named...)
	s.requireNoError(s.cluster.Change(t.Context(), workload.ConfigMaps, s.name, "one", 1))
	s.awaitEmitted(workload.ConfigMaps, s.name, "one", "updated")

	heal()
	s.awaitPage("/readyz", http.StatusOK)
	s.stopExporter()
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

	kind := s.installType("later.kubecdc.io", "newcomers", "Newcomer")
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
