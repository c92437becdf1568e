package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// plantedIn says how many objects of each kind the test makes; each holds two values.
const (
	plantedSecrets     = 150
	plantedDeployments = 50
)

// plants are the values that must be seen nowhere.
type plants struct {
	values []string
}

// value returns a new value. Nothing else looks like it.
func (p *plants) value() string {
	v := fmt.Sprintf("planted-%04d-%016x", len(p.values), 0x9e3779b97f4a7c15*uint64(len(p.values)+1))
	p.values = append(p.values, v)
	return v
}

// foundIn returns the values that a text holds, plain or in base64 at any alignment.
func (p *plants) foundIn(text string) []string {
	var found []string
	if !strings.Contains(text, "planted-") && !strings.Contains(text, "cGxhbnRlZC") && !strings.Contains(text, "BsYW50ZWQt") && !strings.Contains(text, "wbGFudGVkL") {
		return nil
	}
	for _, v := range p.values {
		if strings.Contains(text, v) || strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(v))) {
			found = append(found, v)
		}
	}
	if found == nil {
		found = []string{"a part of one"}
	}
	return found
}

// secretKind makes Secrets that hold values in data, in stringData and in kubectl's copy, and whose update brings new ones.
func (p *plants) secretKind() workload.Kind {
	return workload.Kind{
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "secrets"},
		Object: func() *unstructured.Unstructured {
			copied := fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","data":{"p":%q}}`, base64.StdEncoding.EncodeToString([]byte(p.value())))
			return &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "v1", "kind": "Secret",
				"metadata":   map[string]any{"annotations": map[string]any{"kubectl.kubernetes.io/last-applied-configuration": copied}},
				"data":       map[string]any{"p": base64.StdEncoding.EncodeToString([]byte(p.value()))},
				"stringData": map[string]any{"q": p.value()},
			}}
		},
		Change: func(int) string { return fmt.Sprintf(`{"stringData":{"q":%q}}`, p.value()) },
	}
}

// deploymentKind makes Deployments that hold values in environment variables and in kubectl's copy.
func (p *plants) deploymentKind() workload.Kind {
	kind := workload.Deployments
	kind.Object = func() *unstructured.Unstructured {
		o := workload.Deployments.Object()
		container := map[string]any{"name": "c", "image": "example.invalid/c:1", "env": []any{map[string]any{"name": "PASSWORD", "value": p.value()}}}
		if err := unstructured.SetNestedSlice(o.Object, []any{container}, "spec", "template", "spec", "containers"); err != nil {
			panic(err)
		}
		copied, err := json.Marshal(o.Object)
		if err != nil {
			panic(err)
		}
		o.SetAnnotations(map[string]string{"kubectl.kubernetes.io/last-applied-configuration": string(copied)})
		return o
	}
	return kind
}

// TestNoSecretIsSeenAnywhere plants values in Secrets, in kubectl's copies and in environment variables, lets one sink take
// everything and another refuse everything, and then looks for them wherever the exporter writes.
func TestNoSecretIsSeenAnywhere(t *testing.T) {
	for _, mode := range []string{"mask", "hmac"} {
		t.Run(mode, func(t *testing.T) { noSecretIsSeen(t, mode) })
	}
}

func noSecretIsSeen(t *testing.T, mode string) {
	var dir string
	s := newScene(t, nil, func(settings *exporter.Settings) {
		settings.Select, dir = []string{"*"}, settings.Dir
		settings.Rule = map[string]any{
			"redact": mode, "redactPaths": []string{"spec.template.spec.containers[*].env[*].value"}, "before": "full", "changed": "jsonPatch",
		}
		settings.Redaction = map[string]any{"key": "0123456789abcdef0123456789abcdef"}
	})
	s.refuseEverything()
	s.must(s.exporter.Start(t.Context()))
	var p plants
	last := s.plant(&p)
	s.await(s.buses[0], func(records []bus.Record) string {
		for _, r := range records {
			if r.Name == last {
				return ""
			}
		}
		return "the last object"
	})
	if len(p.values) < 500 {
		t.Fatalf("%d values are planted", len(p.values))
	}
	for _, path := range []string{"/metrics", "/", "/readyz?verbose"} {
		_, text, err := s.exporter.Get(t.Context(), path)
		s.must(err)
		s.nothingOf(&p, path, text)
	}
	s.must(s.exporter.Stop())
	s.listenAll()
	s.lookThrough(&p, dir)
}

// plant writes, changes and deletes objects with values, and returns the name of the one written last.
func (s *scene) plant(p *plants) string {
	s.t.Helper()
	secrets, deployments := p.secretKind(), p.deploymentKind()
	for i := range plantedSecrets {
		name := fmt.Sprintf("secret-%d", i)
		s.must(s.cluster.Create(s.t.Context(), secrets, s.name, name))
		if i%3 == 0 {
			s.must(s.cluster.Change(s.t.Context(), secrets, s.name, name, 1))
		}
		if i%5 == 0 {
			s.must(s.cluster.Delete(s.t.Context(), secrets, s.name, name))
		}
	}
	for i := range plantedDeployments {
		name := fmt.Sprintf("deployment-%d", i)
		s.must(s.cluster.Create(s.t.Context(), deployments, s.name, name))
		s.must(s.cluster.Change(s.t.Context(), deployments, s.name, name, 1))
	}
	s.must(s.cluster.Create(s.t.Context(), workload.ConfigMaps, s.name, "the-last"))
	return "the-last"
}

// refuseEverything makes a stream for the scene whose messages are too small for anything, so that all become dead letters.
func (s *scene) refuseEverything() {
	s.t.Helper()
	connection, err := nats.Connect(s.nats.URL())
	s.must(err)
	defer connection.Close()
	js, err := jetstream.New(connection)
	s.must(err)
	_, err = js.CreateStream(s.t.Context(), jetstream.StreamConfig{Name: s.name, Subjects: []string{s.name + ".>"}, MaxMsgSize: 64})
	s.must(err)
}

// nothingOf fails the test where a text holds a value.
func (s *scene) nothingOf(p *plants, where, text string) {
	s.t.Helper()
	if found := p.foundIn(text); found != nil {
		s.t.Errorf("%s holds %d values, among them %s", where, len(found), found[0])
	}
}

// lookThrough looks for values in the topics, in every file the exporter wrote, and in what its commands say of them.
func (s *scene) lookThrough(p *plants, dir string) {
	s.t.Helper()
	redacted := 0
	for _, b := range s.buses {
		for _, r := range b.records {
			s.nothingOf(p, b.Name(), fmt.Sprintf("%v %s", r, r.Payload))
			if r.Resource == "secrets" && strings.Contains(string(r.Payload), `"p":"`) || strings.Contains(string(r.Payload), "PASSWORD") {
				redacted++
			}
		}
	}
	if redacted < plantedDeployments {
		s.t.Error("the topics hold nothing of what was planted, so they show nothing at all")
	}
	s.must(filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		s.nothingOf(p, path, string(content))
		return err
	}))
	config := filepath.Join(dir, "config.yaml")
	s.nothingOf(p, "journal dump", s.ask("journal", "dump", "--config", config))
	s.nothingOf(p, "journal stat", s.ask("journal", "stat", "--config", config))
	letters := s.ask("deadletter", "list", "--sink", "nats", "--config", config, "-o", "json")
	s.nothingOf(p, "deadletter list", letters)
	shown := 0
	for line := range strings.Lines(letters) {
		var letter struct{ Offset uint64 }
		if json.Unmarshal([]byte(line), &letter) != nil || letter.Offset == 0 || !strings.Contains(line, "secrets") || shown == 20 {
			continue
		}
		shown++
		s.nothingOf(p, "deadletter show", s.ask("deadletter", "show", fmt.Sprint(letter.Offset), "--sink", "nats", "--config", config))
	}
	if shown == 0 {
		s.t.Errorf("there is no dead letter of a Secret:\n%.2000s", letters)
	}
}

// ask runs a command of the exporter and returns what it says.
func (s *scene) ask(args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), arriveWithin)
	defer cancel()
	out, err := exec.CommandContext(ctx, s.program, args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("exporter %v: %v\n%s", args, err, out)
	}
	return string(out)
}
