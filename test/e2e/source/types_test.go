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

// install defines a custom resource and returns its kind. It is taken away when the test ends.
func (s *scene) install(group, plural, kind string) workload.Kind {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), arriveWithin)
	defer cancel()
	s.must(s.cluster.Install(ctx, workload.Definition{Group: group, Plural: plural, Kind: kind}))
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), arriveWithin)
		defer cancel()
		if err := s.cluster.Undefine(ctx, group, plural); err != nil {
			s.t.Error(err)
		}
	})
	return custom(group, "v1", plural, kind)
}

// remove takes the definition of a kind away and waits until nothing serves it.
func (s *scene) remove(kind workload.Kind) {
	s.t.Helper()
	s.must(s.cluster.Undefine(s.t.Context(), kind.Resource.Group, kind.Resource.Resource))
	s.await(func() string {
		served, err := s.cluster.Serves(s.t.Context(), kind)
		s.must(err)
		if served {
			return "the definition of " + kind.Resource.Resource + " to go"
		}
		return ""
	})
}

// TestATypeThatDiscoveryHidesIsWatchedOn leaves a type out of discovery for as long as four polls take, and through a
// restart, while its own endpoint answers. Nothing of it is deleted, so no delete is told, and what happens is.
func TestATypeThatDiscoveryHidesIsWatchedOn(t *testing.T) {
	t.Parallel()
	s, gateway := behind(t, control(t), []rule{{"select": []string{"shy.hidden.kubecdc.io", "namespaces"}}})
	kind := s.install("hidden.kubecdc.io", "shy", "Shy")
	s.must(s.cluster.Create(t.Context(), kind, s.name, "one"))
	s.start()
	s.awaitTold(kind, s.name, "one", "snapshot")

	gateway.Hide("hidden.kubecdc.io", "shy")
	gateway.Cut() // so that the watch begins anew
	awaitPolls(s, gateway, 4)
	s.must(s.cluster.Create(t.Context(), kind, s.name, "two"))
	s.awaitTold(kind, s.name, "two", "added")

	s.kill()
	s.must(s.exporter.Launch(t.Context()))
	awaitPolls(s, gateway, 4)
	gateway.Show("hidden.kubecdc.io", "shy")
	s.must(s.cluster.Change(t.Context(), kind, s.name, "one", 1))
	s.awaitTold(kind, s.name, "one", "updated")
	s.stop()
	for _, r := range s.records {
		if r.Type == "deleted" || r.Type == "gap" {
			t.Errorf("told of what did not happen: %s", r.Payload)
		}
	}
}

// awaitPolls waits until the exporter has asked so many times what is served.
func awaitPolls(s *scene, gateway *proxy.Gateway, n int) {
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
	s.await(func() string {
		if got := polls() - before; got < n {
			return fmt.Sprintf("%d polls, there were %d", n, got)
		}
		return ""
	})
}

// TestATypeThatIsTakenAwayIsDeletedWhole takes definitions away, one while the exporter runs and one while it is away, of a
// rule that pins the version and of one that does not: each object is deleted, with version and kind.
func TestATypeThatIsTakenAwayIsDeletedWhole(t *testing.T) {
	t.Parallel()
	env := control(t)
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
	s := newScene(t, env, rules)
	var kinds []workload.Kind
	for _, name := range names {
		kind := s.install(group(name), name, "Taken")
		kinds = append(kinds, kind)
		for _, object := range []string{"one", "two"} {
			s.must(s.cluster.Create(t.Context(), kind, s.name, object))
		}
	}
	s.start()
	for _, kind := range kinds {
		s.awaitTold(kind, s.name, "two", "snapshot")
	}
	each(t, kinds[:2], func(ctx context.Context, kind workload.Kind) error {
		return s.cluster.Undefine(ctx, kind.Resource.Group, kind.Resource.Resource)
	})
	s.awaitDeleted(kinds[:2])
	s.stop()
	for _, kind := range kinds[2:] {
		s.remove(kind)
	}
	s.start()
	s.awaitDeleted(kinds[2:])
	s.stop()

	for _, kind := range kinds {
		for _, object := range []string{"one", "two"} {
			i := slices.IndexFunc(s.records, func(r bus.Record) bool { return isOf(r, kind) && r.Name == object && r.Type == "deleted" })
			if r := s.records[i]; r.Version != "v1" || r.Kind != "Taken" || r.UID == "" || r.Left {
				t.Errorf("not the whole truth: %s", r.Payload)
			}
		}
	}
}

// awaitDeleted waits until both objects of the kinds are deleted.
func (s *scene) awaitDeleted(kinds []workload.Kind) {
	s.t.Helper()
	for _, kind := range kinds {
		for _, object := range []string{"one", "two"} {
			s.awaitTold(kind, s.name, object, "deleted")
		}
	}
}

// TestTypesThatNeverAnswerHoldUpNobody lets the API server take the questions about ten types and never answer, which is
// more than are read at once. The others are read all the same, the ten are named, and are read when they answer.
func TestTypesThatNeverAnswerHoldUpNobody(t *testing.T) {
	t.Parallel()
	hung := []string{"endpoints", "events", "limitranges", "nodes", "persistentvolumes", "podtemplates", "replicationcontrollers",
		"resourcequotas", "secrets", "serviceaccounts"}
	s, gateway := behind(t, control(t), nil)
	s.edit(rule{"select": hung}, s.own("configmaps", "services"))
	heal := gateway.Fault(func(r proxy.Request) bool { return r.Group == "" && slices.Contains(hung, r.Resource) }, gateway.Hang)
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "one"))
	s.must(s.cluster.Create(t.Context(), workload.Services, s.name, "one"))
	s.must(s.exporter.Launch(t.Context()))
	s.awaitTold(workload.ConfigMaps, s.name, "one", "snapshot")
	s.awaitTold(workload.Services, s.name, "one", "snapshot")
	s.awaitAnswer("/readyz", http.StatusServiceUnavailable, "has not answered")
	var named []string
	for _, resource := range hung {
		named = append(named, fmt.Sprintf("kubecdc_resource_state{resource=%q,state=\"unreachable\"} 1", resource))
	}
	s.awaitAnswer("/metrics", http.StatusOK, named...)
	s.must(s.cluster.Change(t.Context(), workload.ConfigMaps, s.name, "one", 1))
	s.awaitTold(workload.ConfigMaps, s.name, "one", "updated")

	heal()
	s.awaitAnswer("/readyz", http.StatusOK)
	s.stop()
}

// TestATypeThatComesAfterALostJournalBeginsWithoutAGap breaks the journal, and defines a selected type when that is told of:
// history was lost of what there was, and not of what came later.
func TestATypeThatComesAfterALostJournalBeginsWithoutAGap(t *testing.T) {
	t.Parallel()
	s := newScene(t, control(t), nil, func(settings *exporter.Settings) { settings.DrainTimeout = "30s" })
	s.edit(s.own("configmaps", "newcomers.later.kubecdc.io"))
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "one"))
	s.start()
	s.awaitTold(workload.ConfigMaps, s.name, "one", "snapshot")
	s.kill()
	spoil(t, s.settings.JournalDir())
	told := len(s.records)
	s.start()
	s.settle(workload.ConfigMaps, s.name)
	if n := len(gaps(s.records[told:], workload.ConfigMaps)); n != 1 {
		t.Errorf("%d gaps of what was lost, want 1", n)
	}

	kind := s.install("later.kubecdc.io", "newcomers", "Newcomer")
	s.must(s.cluster.Create(t.Context(), kind, s.name, "one"))
	s.await(func() string {
		for _, r := range s.read() {
			if isOf(r, kind) && r.Name == "one" {
				return ""
			}
		}
		return "the newcomer"
	})
	s.stop()
	for _, r := range gaps(s.records, kind) {
		t.Errorf("history of what was not there was not lost: %s", r.Payload)
	}
}
