package source

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/proxy"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
)

const (
	// arriveTimeout bounds every wait. It is far above the usual time, and not a measurement.
	arriveTimeout = 10 * time.Minute
	pollInterval  = 50 * time.Millisecond
	// answerTimeout bounds one request to the admin server, which answers from memory. A page that waited for a full
	// journal, or for a list, would never answer.
	answerTimeout = 2 * time.Minute
)

// rule is a rule as in the configuration.
type rule = map[string]any

// fixture is the environment of one test: an exporter with a journal, its output file, and all records read so far.
type fixture struct {
	*environment
	t        *testing.T
	name     string // of its namespace, and the prefix of its other namespaces
	settings exporter.Settings
	exporter *exporter.Exporter
	file     *bus.File
	records  []bus.Record
	markers  int
}

var scenes atomic.Int32

// newFixture makes a fixture with rules. Nothing runs yet.
func newFixture(t *testing.T, env *environment, rules []rule, changes ...func(*exporter.Settings)) *fixture {
	t.Helper()
	s := &fixture{environment: env, t: t, name: fmt.Sprintf("fixture-%d", scenes.Add(1))}
	s.settings = exporter.Settings{Dir: t.TempDir(), Kubeconfig: env.controlPlane.Kubeconfig(), Resources: rules}
	s.settings.File = filepath.Join(s.settings.Dir, "changes")
	for _, change := range changes {
		change(&s.settings)
	}
	var err error
	s.exporter, err = exporter.New(env.program, s.settings)
	s.requireNoError(err)
	s.file = bus.NewFile(s.settings.File)
	s.requireNoError(env.cluster.CreateNamespace(t.Context(), s.name))
	t.Cleanup(s.cleanUp)
	return s
}

// viaKubeconfig is a setting: the exporter uses this kubeconfig.
func viaKubeconfig(kubeconfig string) func(*exporter.Settings) {
	return func(s *exporter.Settings) { s.Kubeconfig = kubeconfig }
}

// newFixtureBehindGateway makes a fixture with a gateway between the exporter and the API server.
func newFixtureBehindGateway(t *testing.T, env *environment, rules []rule, changes ...func(*exporter.Settings)) (*fixture, *proxy.Gateway) {
	t.Helper()
	gateway, kubeconfig := env.newGateway(t)
	return newFixture(t, env, rules, append(changes, viaKubeconfig(kubeconfig))...), gateway
}

// cleanUp stops the exporter, and shows its log if the test has failed.
func (s *fixture) cleanUp() {
	if err := s.exporter.Kill(); err != nil {
		s.t.Error(err)
	}
	s.file.Close()
	if s.t.Failed() {
		s.t.Logf("the end of the exporter's log:\n%s", s.exporter.LogTail())
	}
}

// requireNoError ends the test on an error.
func (s *fixture) requireNoError(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// setRules configures other rules, for the next start.
func (s *fixture) setRules(rules ...rule) {
	s.t.Helper()
	s.requireNoError(s.exporter.Configure(func(settings *exporter.Settings) { settings.Resources = rules }))
}

// namespacedRule returns a rule that selects types in the fixture's namespace only. Other tests may leave hundreds of
// megabytes in the same API server, and a fixture keeps all records.
func (s *fixture) namespacedRule(types ...string) rule {
	return rule{"select": types, "namespaces": rule{"include": []string{s.name}}}
}

// startExporter starts the exporter and returns when it is ready.
func (s *fixture) startExporter() {
	s.t.Helper()
	s.requireNoError(s.exporter.Start(s.t.Context()))
}

// launchExporter starts the exporter and returns when its pages answer.
func (s *fixture) launchExporter() {
	s.t.Helper()
	s.requireNoError(s.exporter.Launch(s.t.Context()))
	s.awaitPage("/metrics", http.StatusOK)
}

func (s *fixture) stopExporter() {
	s.t.Helper()
	s.requireNoError(s.exporter.Stop())
	s.readRecords()
}

func (s *fixture) killExporter() {
	s.t.Helper()
	s.requireNoError(s.exporter.Kill())
	s.readRecords()
}

// readRecords reads the new records and returns all records so far.
func (s *fixture) readRecords() []bus.Record {
	s.t.Helper()
	records, err := s.file.Read(s.t.Context())
	s.records = append(s.records, records...)
	s.requireNoError(err)
	return s.records
}

// awaitCondition waits until waitingFor returns "", the description of nothing.
func (s *fixture) awaitCondition(waitingFor func() string) {
	s.t.Helper()
	await.Condition(s.t, "the source", arriveTimeout, pollInterval, waitingFor)
}

// awaitEmitted waits for a record of a type about an object.
func (s *fixture) awaitEmitted(kind workload.Kind, namespace, name, what string) {
	s.t.Helper()
	s.awaitCondition(func() string {
		s.readRecords()
		for _, r := range slices.Backward(s.records) {
			if isAbout(r, kind) && r.Namespace == namespace && r.Name == name && r.Type == what {
				return ""
			}
		}
		return fmt.Sprintf("%s %s %s/%s", what, kind.Resource.Resource, namespace, name)
	})
}

// isAbout reports whether a record is about a kind, or an object of the kind.
func isAbout(r bus.Record, kind workload.Kind) bool {
	return r.Group == kind.Resource.Group && r.Resource == kind.Resource.Resource
}

// createMarker creates an object in a namespace and waits for its record, which follows the records of any earlier list.
func (s *fixture) createMarker(kind workload.Kind, namespace string, labels ...string) {
	s.t.Helper()
	s.markers++
	name := fmt.Sprintf("marker-%d", s.markers)
	s.requireNoError(s.cluster.Create(s.t.Context(), withLabels(kind, labels...), namespace, name))
	s.awaitEmitted(kind, namespace, name, "added")
}

// withLabels returns a kind with labels, "key=value", on its objects.
func withLabels(kind workload.Kind, labels ...string) workload.Kind {
	body := kind.Object
	kind.Object = func() *unstructured.Unstructured {
		o := body()
		values := map[string]string{}
		for _, label := range labels {
			key, value, _ := strings.Cut(label, "=")
			values[key] = value
		}
		if len(values) > 0 {
			o.SetLabels(values)
		}
		return o
	}
	return kind
}

// gapRecords returns the gap records about a kind.
func gapRecords(records []bus.Record, kind workload.Kind) []bus.Record {
	return slices.DeleteFunc(slices.Clone(records), func(r bus.Record) bool { return r.Type != "gap" || !isAbout(r, kind) })
}

// customKind returns the kind of a custom resource with arbitrary content.
func customKind(group, version, plural, kind string) workload.Kind {
	return workload.Kind{
		Resource: schema.GroupVersionResource{Group: group, Version: version, Resource: plural},
		Object: func() *unstructured.Unstructured {
			return &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": group + "/" + version, "kind": kind, "spec": map[string]any{"size": int64(0)},
			}}
		},
		Change: workload.Widgets.Change,
	}
}

// getPage requests a page of the admin server; the code is 0 if it does not answer.
func (s *fixture) getPage(path string) (code int, text string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), answerTimeout)
	defer cancel()
	code, text, err := s.exporter.Get(ctx, path)
	if err != nil {
		return 0, err.Error()
	}
	return code, text
}

// awaitPage waits until a page has a code and contains all parts.
func (s *fixture) awaitPage(path string, code int, parts ...string) {
	s.t.Helper()
	s.awaitCondition(func() string {
		got, text := s.getPage(path)
		missing := slices.IndexFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
		if got == code && missing < 0 {
			return ""
		}
		return fmt.Sprintf("%s: %d with %q; have %d: %.2000s", path, code, parts, got, text)
	})
}

// metricValue returns the value of a series; 0 if there is none.
func (s *fixture) metricValue(series string) int {
	s.t.Helper()
	code, text := s.getPage("/metrics")
	if code != http.StatusOK {
		s.t.Fatalf("/metrics: %d: %s", code, text)
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			s.requireNoError(err)
			return int(n)
		}
	}
	return 0
}

// forEach calls do for all elements concurrently, and ends the test on an error.
func forEach[T any](t *testing.T, all []T, do func(context.Context, T) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), arriveTimeout)
	defer cancel()
	errs := make(chan error, len(all))
	for _, one := range all {
		go func() { errs <- do(ctx, one) }()
	}
	for range all {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}
