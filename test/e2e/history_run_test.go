package e2e

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
)

// TestAHistoryWithoutAConfigurationAnswersWhatWasDone writes objects while an exporter runs for a history alone, and is
// killed twice: the history has each version once, answers what was done, and has neither values of Secrets nor what is not
// to be watched.
func TestAHistoryWithoutAConfigurationAnswersWhatWasDone(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "history")
	p := plants{word: "planted-for-the-history-"} // other tests have planted into the same cluster
	secrets := workload.Kind{
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "secrets"},
		Object:   of("v1", "Secret", map[string]any{"data": map[string]any{"p": base64.StdEncoding.EncodeToString([]byte(p.value()))}}),
	}
	leases := workload.Kind{Resource: leases.Resource, Object: of("coordination.k8s.io/v1", "Lease", map[string]any{"spec": map[string]any{}})}
	s := newFixture(t, []workload.Kind{workload.ConfigMaps, workload.Deployments, secrets}, func(settings *exporter.Settings) {
		settings.History = dir
	})
	events := workload.Kind{
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "events"},
		Object:   of("v1", "Event", map[string]any{"reason": "Test", "involvedObject": map[string]any{"kind": "ConfigMap", "namespace": s.name, "name": "settings"}}),
	}
	do := func(err error) string {
		t.Helper()
		s.must(err)
		revision, err := s.etcd.Revision(t.Context())
		s.must(err)
		return fmt.Sprintf("rv:%d", revision)
	}
	s.must(s.exporter.Start(t.Context()))
	do(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "settings"))
	do(s.cluster.Create(t.Context(), secrets, s.name, "password"))
	do(s.cluster.Create(t.Context(), events, s.name, "said"))
	do(s.cluster.Create(t.Context(), leases, s.name, "held"))
	created := do(s.cluster.Create(t.Context(), workload.Deployments, s.name, "web"))
	do(s.cluster.Patch(t.Context(), workload.ConfigMaps, s.name, "settings", `{"data":{"color":"blue"}}`))
	s.must(s.exporter.Kill())
	scaled := do(s.cluster.Patch(t.Context(), workload.Deployments, s.name, "web", `{"spec":{"replicas":2}}`))
	s.must(s.exporter.Start(t.Context()))
	do(s.cluster.Patch(t.Context(), secrets, s.name, "password", fmt.Sprintf(`{"stringData":{"q":%q}}`, p.value())))
	do(s.cluster.Patch(t.Context(), leases, s.name, "held", `{"spec":{"holderIdentity":"me"}}`))
	image := `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"example.invalid/c:2"}]}}}}`
	do(s.cluster.Patch(t.Context(), workload.Deployments, s.name, "web", image))
	s.must(s.exporter.Kill())
	deleted := do(s.cluster.Delete(t.Context(), workload.ConfigMaps, s.name, "settings"))
	s.must(s.exporter.Start(t.Context()))
	last := do(s.cluster.Patch(t.Context(), workload.Deployments, s.name, "web", `{"spec":{"replicas":3}}`))
	await.Condition(t, "the history", arriveWithin, lookEvery, func() string {
		if err := s.compareHistory(dir, false); err != nil {
			return err.Error()
		}
		return ""
	})
	s.must(s.exporter.Stop())
	s.must(s.compareHistory(dir, true))
	s.nothingInFiles(&p, root)
	s.onlyWatched(dir, &p)

	for _, c := range []struct {
		args  string
		wants []string // in this order
		lacks string
	}{
		{"log deploy/web", []string{"+ deployments.apps " + s.name + "/web", "by e2e-workload", "spec.replicas: 0 → 2", "image: example.invalid/c:1 → example.invalid/c:2",
			"spec.replicas: 2 → 3"}, "! "},
		{"log cm/settings", []string{"+ configmaps", "data.color: + blue", "- configmaps"}, "! "},
		{"log secrets/password", []string{"+ secrets", "~ secrets"}, "planted"},
		{"get deploy --at " + created + " -o yaml", []string{"replicas: 0"}, ""},
		{"get deployment web --at " + scaled + " -o yaml", []string{"replicas: 2", "example.invalid/c:1"}, ""},
		{"get cm/settings --at " + scaled + " -o json", []string{`"color":"blue"`}, ""},
		{"get cm --at " + deleted + " -o name", []string{""}, "configmap/settings"},
		{"diff --from " + created + " --to " + last, []string{"- configmaps " + s.name + "/settings", "~ secrets", "~ deployments.apps", "spec.replicas: 0 → 3"}, "leases"},
		{"diff deploy/web --from " + scaled + " --to " + last, []string{"spec.replicas: 2 → 3"}, "configmaps"},
		{"blame deploy/web", []string{"e2e-workload", "spec.replicas: 3"}, "≤"},
	} {
		answer := s.ask(append(append([]string{"history"}, strings.Fields(c.args)...), "-n", s.name, "--dir", dir)...)
		rest := answer
		for _, want := range c.wants {
			_, after, ok := strings.Cut(rest, want)
			if !ok {
				t.Errorf("%s: no %q, or not in its place, in\n%s", c.args, want, answer)
			}
			rest = after
		}
		if c.lacks != "" && strings.Contains(answer, c.lacks) {
			t.Errorf("%s: %q is in\n%s", c.args, c.lacks, answer)
		}
	}
}

// onlyWatched fails the test where a history has a row of an Event or a Lease, a value of a Secret, or a row of any type
// twice.
func (s *fixture) onlyWatched(dir string, p *plants) {
	s.t.Helper()
	h, err := history.Open(history.Folder(dir))
	s.must(err)
	defer h.Close()
	seen, secrets := map[string]bool{}, 0
	for row, err := range h.Rows(s.t.Context(), history.Query{}) {
		s.must(err)
		if slices.Contains([]string{"events", "leases"}, row.Resource) {
			s.t.Errorf("there is a row of %v", row.Key())
		}
		s.nothingOf(p, fmt.Sprint(row.Key()), row.Object+fmt.Sprint(row.Changed))
		if row.Resource == "secrets" && row.Namespace == s.name && row.Name == "password" {
			secrets++
		}
		of := row.UID + row.ResourceVersion + row.Type
		if row.IsState() && seen[of] {
			s.t.Errorf("%v of %v is there twice", row.Type, row.Key())
		}
		seen[of] = true
	}
	if secrets != 2 {
		s.t.Errorf("the Secret has %d rows, not 2", secrets)
	}
}

// of returns what makes objects of a kind.
func of(apiVersion, kind string, content map[string]any) func() *unstructured.Unstructured {
	return func() *unstructured.Unstructured {
		o := (&unstructured.Unstructured{Object: content}).DeepCopy()
		o.SetAPIVersion(apiVersion)
		o.SetKind(kind)
		return o
	}
}

// compareHistory returns which revisions of etcd have no row, and if doubled is set, which have several.
func (s *fixture) compareHistory(dir string, doubled bool) (err error) {
	h, err := history.Open(history.Folder(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.must(err)
	defer h.Close()
	type version struct {
		bus.Object
		revision string
	}
	rows := map[version][]string{}
	for row, err := range h.Rows(s.t.Context(), history.Query{WithoutObjects: true}) {
		s.must(err)
		if row.IsState() && row.Type != "snapshot" {
			of := version{bus.Object{Group: row.Group, Resource: row.Resource, Namespace: row.Namespace, Name: row.Name}, row.ResourceVersion}
			rows[of] = append(rows[of], row.Type)
		}
	}
	types := map[oracle.Op]string{oracle.Created: "added", oracle.Updated: "updated", oracle.Deleted: "deleted"}
	for _, r := range s.history().Revisions {
		switch found := rows[version{r.Object, fmt.Sprint(r.Revision)}]; {
		case len(found) == 0 || found[0] != types[r.Op]:
			return fmt.Errorf("%v has the rows %v", r, found)
		case doubled && len(found) > 1:
			return fmt.Errorf("%v is there %d times: %v", r, len(found), found)
		}
	}
	return nil
}
