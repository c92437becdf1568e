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
)

const (
	// arriveWithin bounds every wait. It is far above what it takes, and no measurement.
	arriveWithin = 10 * time.Minute
	lookEvery    = 50 * time.Millisecond
	// answersWithin bounds one question to the admin server, which has what it shows at hand: who waits for what makes it
	// full, or for a list to go on, waits for ever.
	answersWithin = 2 * time.Minute
)

// rule is a rule as the configuration has it.
type rule = map[string]any

// scene is one test's own: an exporter with a journal, the file that it writes to, and everything read from that so far.
type scene struct {
	*environment
	t        *testing.T
	name     string // of its namespace, and the beginning of its other ones
	settings exporter.Settings
	exporter *exporter.Exporter
	file     *bus.File
	records  []bus.Record
	markers  int
}

var scenes atomic.Int32

// newScene makes a scene with rules. Nothing runs yet.
func newScene(t *testing.T, env *environment, rules []rule, changes ...func(*exporter.Settings)) *scene {
	t.Helper()
	s := &scene{environment: env, t: t, name: fmt.Sprintf("scene-%d", scenes.Add(1))}
	s.settings = exporter.Settings{Dir: t.TempDir(), Kubeconfig: env.controlPlane.Kubeconfig(), Resources: rules}
	s.settings.File = filepath.Join(s.settings.Dir, "changes")
	for _, change := range changes {
		change(&s.settings)
	}
	var err error
	s.exporter, err = exporter.New(env.program, s.settings)
	s.must(err)
	s.file = bus.NewFile(s.settings.File)
	s.must(env.cluster.CreateNamespace(t.Context(), s.name))
	t.Cleanup(s.end)
	return s
}

// through is a setting: the exporter reaches the API server by a kubeconfig.
func through(kubeconfig string) func(*exporter.Settings) {
	return func(s *exporter.Settings) { s.Kubeconfig = kubeconfig }
}

// behind makes a scene whose exporter reaches the API server through a gateway.
func behind(t *testing.T, env *environment, rules []rule, changes ...func(*exporter.Settings)) (*scene, *proxy.Gateway) {
	t.Helper()
	gateway, kubeconfig := env.gateway(t)
	return newScene(t, env, rules, append(changes, through(kubeconfig))...), gateway
}

// end stops what the test has left running, and shows the log if the test failed.
func (s *scene) end() {
	if err := s.exporter.Kill(); err != nil {
		s.t.Error(err)
	}
	s.file.Close()
	if s.t.Failed() {
		s.t.Logf("the end of the exporter's log:\n%s", s.exporter.LogTail())
	}
}

// must ends the test on an error.
func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// edit takes other rules, for the next start.
func (s *scene) edit(rules ...rule) {
	s.t.Helper()
	s.must(s.exporter.Configure(func(settings *exporter.Settings) { settings.Resources = rules }))
}

// own is a rule that selects types in the scene's namespace alone. What others leave in the same API server may be hundreds
// of megabytes, and a scene keeps all that is told.
func (s *scene) own(types ...string) rule {
	return rule{"select": types, "namespaces": rule{"include": []string{s.name}}}
}

// start starts the exporter and returns when it is ready.
func (s *scene) start() {
	s.t.Helper()
	s.must(s.exporter.Start(s.t.Context()))
}

func (s *scene) stop() {
	s.t.Helper()
	s.must(s.exporter.Stop())
	s.read()
}

func (s *scene) kill() {
	s.t.Helper()
	s.must(s.exporter.Kill())
	s.read()
}

// read reads what was told since the last look and returns all that was told so far.
func (s *scene) read() []bus.Record {
	s.t.Helper()
	records, err := s.file.Read(s.t.Context())
	s.records = append(s.records, records...)
	s.must(err)
	return s.records
}

// await waits until nothing is waited for any more; "" is nothing.
func (s *scene) await(waitingFor func() string) {
	s.t.Helper()
	deadline := time.Now().Add(arriveWithin)
	for {
		waits := waitingFor()
		if waits == "" {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("after %v still waiting for %s", arriveWithin, waits)
		}
		pause(s.t, lookEvery)
	}
}

// pause waits between two looks at a condition.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	case <-time.After(d):
	}
}

// awaitTold waits until a record of that type tells of an object.
func (s *scene) awaitTold(kind workload.Kind, namespace, name, what string) {
	s.t.Helper()
	s.await(func() string {
		s.read()
		for _, r := range slices.Backward(s.records) {
			if isOf(r, kind) && r.Namespace == namespace && r.Name == name && r.Type == what {
				return ""
			}
		}
		return fmt.Sprintf("%s %s %s/%s", what, kind.Resource.Resource, namespace, name)
	})
}

// isOf says whether a record is about a kind or an object of it.
func isOf(r bus.Record, kind workload.Kind) bool {
	return r.Group == kind.Resource.Group && r.Resource == kind.Resource.Resource
}

// settle creates an object in a namespace and waits until that is told: what a list before it had to tell has come then.
func (s *scene) settle(kind workload.Kind, namespace string, labels ...string) {
	s.t.Helper()
	s.markers++
	name := fmt.Sprintf("marker-%d", s.markers)
	s.must(s.cluster.Create(s.t.Context(), labelled(kind, labels...), namespace, name))
	s.awaitTold(kind, namespace, name, "added")
}

// labelled is a kind whose objects have labels, "key=value".
func labelled(kind workload.Kind, labels ...string) workload.Kind {
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

// transcript is what records tell of a kind, in a line each, without markers: "gap", "added web/one", "deleted web/one
// left".
func transcript(records []bus.Record, kind workload.Kind) []string {
	var lines []string
	for _, r := range records {
		if !isOf(r, kind) || strings.HasPrefix(r.Name, "marker-") {
			continue
		}
		line := r.Type
		if r.Name != "" {
			line += " " + strings.TrimPrefix(r.Namespace+"/"+r.Name, "/")
		}
		if r.Left {
			line += " left"
		}
		lines = append(lines, line)
	}
	return lines
}

// gaps are the gap records about a kind.
func gaps(records []bus.Record, kind workload.Kind) []bus.Record {
	return slices.DeleteFunc(slices.Clone(records), func(r bus.Record) bool { return r.Type != "gap" || !isOf(r, kind) })
}

// custom is the kind of a custom resource with free content.
func custom(group, version, plural, kind string) workload.Kind {
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

// answer asks the admin server; code 0 while it does not answer.
func (s *scene) answer(path string) (code int, text string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), answersWithin)
	defer cancel()
	code, text, err := s.exporter.Get(ctx, path)
	if err != nil {
		return 0, err.Error()
	}
	return code, text
}

// awaitAnswer waits until the admin server answers with a code and a text that holds all parts.
func (s *scene) awaitAnswer(path string, code int, parts ...string) {
	s.t.Helper()
	s.await(func() string {
		got, text := s.answer(path)
		missing := slices.IndexFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
		if got == code && missing < 0 {
			return ""
		}
		return fmt.Sprintf("%s: %d with %q; it is %d: %.2000s", path, code, parts, got, text)
	})
}

// metric is the value of a series, 0 if there is none.
func (s *scene) metric(series string) int {
	s.t.Helper()
	code, text := s.answer("/metrics")
	if code != http.StatusOK {
		s.t.Fatalf("/metrics: %d: %s", code, text)
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			s.must(err)
			return int(n)
		}
	}
	return 0
}

// each does something with every one of many at once, and ends the test on an error.
func each[T any](t *testing.T, all []T, do func(context.Context, T) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), arriveWithin)
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
