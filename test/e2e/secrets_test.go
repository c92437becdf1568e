package e2e

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// plantedIn returns how many objects of each kind the test makes; each holds two values.
const (
	plantedSecrets     = 150
	plantedDeployments = 50
	plantedAfterwards  = 10 // Secrets, once the journal is broken
)

// redactionKey is the key of hashes in tests. It has to be random: configurations with a key that is easily guessed are
// refused.
var redactionKey = rand.Text()

// plants are the values that must be seen nowhere.
type plants struct {
	word    string // how each value begins; "": planted-
	values  []string
	encoded []string // forms of values that are not base64
}

// forms are encodings in which a value is planted in unknown annotations.
var forms = []func(string) string{
	func(v string) string { return v },
	func(v string) string { return base64.StdEncoding.EncodeToString([]byte(v)) },
	func(v string) string { return base64.RawURLEncoding.EncodeToString([]byte("?" + v + ">")) },
	func(v string) string {
		return base64.StdEncoding.EncodeToString([]byte(base64.StdEncoding.EncodeToString([]byte(v))))
	},
	func(v string) string { return hex.EncodeToString([]byte(v)) },
	func(v string) string { return strings.ToUpper(hex.EncodeToString([]byte(v))) },
	zipped,
	func(v string) string { return strings.ReplaceAll(url.QueryEscape("="+v+"&"), "-", "%2D") },
	func(v string) string { return fmt.Sprintf(`{"token":%q}`, v) },
	func(v string) string { return fmt.Sprintf("%q", fmt.Sprintf(`{"token":%q}`, v)) },
}

// zipped packs a value as Rancher packs its copies.
func zipped(v string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(v)) // a buffer takes all
	_ = w.Close()
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// form returns a new value in one of the forms.
func (p *plants) form(i int) string {
	encoded := forms[i%len(forms)](p.value())
	p.encoded = append(p.encoded, encoded)
	return encoded
}

// value returns a new value. Nothing else looks like it.
func (p *plants) value() string {
	v := fmt.Sprintf("%s%04d-%016x", p.start(), len(p.values), 0x9e3779b97f4a7c15*uint64(len(p.values)+1))
	p.values = append(p.values, v)
	return v
}

func (p *plants) start() string { return cmp.Or(p.word, "planted-") }

// hasPart reports whether a text holds how each value begins, plain or in base64 at any alignment.
func (p *plants) hasPart(text string) bool {
	word := p.start()
	for before := range 3 {
		encoded := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("x", before) + word))
		if strings.Contains(text, encoded[(before*8+5)/6:(before+len(word))*8/6]) {
			return true
		}
	}
	return strings.Contains(text, word)
}

// foundIn returns the values that a text holds, plain or in base64 at any alignment.
func (p *plants) foundIn(text string) []string {
	var found []string
	for _, form := range p.encoded {
		if strings.Contains(text, form) {
			found = append(found, form)
		}
	}
	if found == nil && !p.hasPart(text) {
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

// copies are annotations that hold a Secret, or something of one, and others that hold values.
func (p *plants) copies() map[string]any {
	of := func() string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","data":{"p":%q}}`, base64.StdEncoding.EncodeToString([]byte(p.value())))
	}
	packed := func() string {
		text := zipped(of())
		p.encoded = append(p.encoded, text)
		return text
	}
	return map[string]any{
		"kubectl.kubernetes.io/last-applied-configuration": of(), "kapp.k14s.io/original": of(), "kapp.k14s.io/original-diff": p.value(),
		"objectset.rio.cattle.io/applied": packed(), "banzaicloud.com/last-applied": packed(), "openshift.io/token-secret.value": p.value(),
	}
}

// configMapKind makes ConfigMaps that carry copies of Secrets.
func (p *plants) configMapKind() workload.Kind {
	kind := workload.ConfigMaps
	kind.Object = func() *unstructured.Unstructured {
		o := workload.ConfigMaps.Object()
		if err := unstructured.SetNestedMap(o.Object, p.copies(), "metadata", "annotations"); err != nil {
			panic(err)
		}
		return o
	}
	return kind
}

// secretKind makes Secrets that hold values in data, in stringData, in copies and in other annotations, and an update
// brings new ones.
func (p *plants) secretKind() workload.Kind {
	return workload.Kind{
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "secrets"},
		Object: func() *unstructured.Unstructured {
			annotations := p.copies()
			for i := range 2 {
				annotations[fmt.Sprintf("example.com/unknown-%d", i)] = p.form(len(p.encoded))
			}
			return &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "v1", "kind": "Secret",
				"metadata":   map[string]any{"annotations": annotations, "labels": map[string]any{"planted": p.value()}},
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

// TestSecretsAreNeverShown plants values in Secrets, in kubectl's copies and in environment variables, lets one sink take
// everything and another refuse everything, and then looks for them wherever the exporter writes. Then it breaks the
// journal, and looks again at what the next process makes of it.
func TestSecretsAreNeverShown(t *testing.T) {
	servers(t)
	for _, mode := range []string{"mask", "hmac"} {
		t.Run(mode, func(t *testing.T) {
			if mode == "hmac" { // pkg/shape has all modes
				require.Long(t)
			}
			noSecretIsSeen(t, mode)
		})
	}
}

func noSecretIsSeen(t *testing.T, mode string) {
	var dir, journal string
	s := newFixture(t, nil, func(settings *exporter.Settings) {
		settings.Select, dir, journal = []string{"*"}, settings.Dir, settings.JournalDir()
		settings.Rule = map[string]any{
			"redact": mode, "redactPaths": []string{"spec.template.spec.containers[*].env[*].value"}, "before": "full", "changed": "values",
		}
		settings.Redaction = map[string]any{"key": redactionKey}
	})
	s.refuseHeavy()
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
	if len(p.values) < 1500 {
		t.Fatalf("%d values are planted", len(p.values))
	}
	s.lookAtPages(&p)
	explained := s.ask("explain", "--config", filepath.Join(dir, "config.yaml"))
	s.nothingOf(&p, "explain", explained)
	_, counted, _ := strings.Cut(explained, "env[*].value matches ")
	var matched int
	if _, err := fmt.Sscan(counted, &matched); err != nil || matched < plantedDeployments {
		t.Errorf("explain counts %d objects that the path matches (%v)", matched, err)
	}
	s.must(s.exporter.Stop())
	s.receiveAll()
	s.lookThrough(&p, dir)

	corruptJournal(t, journal)
	s.must(s.exporter.Start(t.Context()))
	secrets := heavy(p.secretKind())
	for i := range plantedAfterwards {
		s.must(s.cluster.Create(t.Context(), secrets, s.name, fmt.Sprintf("secret-afterwards-%d", i)))
	}
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "the-last-afterwards"))
	s.awaitNamed("the-last-afterwards")
	s.awaitMetric(`kubecdc_condition{code="JournalRecovered",component="journal",severity="degraded"}`, "1")
	s.lookAtPages(&p)
	s.must(s.exporter.Stop())
	s.receiveAll()
	s.lookThrough(&p, dir)
}

// lookAtPages looks for values in what the exporter shows while it runs.
func (s *fixture) lookAtPages(p *plants) {
	s.t.Helper()
	for _, path := range []string{"/metrics", "/", "/readyz?verbose"} {
		_, text, err := s.exporter.Get(s.t.Context(), path)
		s.must(err)
		s.nothingOf(p, path, text)
	}
}

// plant writes, changes and deletes objects with values, and returns the name of the one written last.
func (s *fixture) plant(p *plants) string {
	s.t.Helper()
	secrets, deployments, configMaps := heavy(p.secretKind()), p.deploymentKind(), p.configMapKind()
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
		s.must(s.cluster.Create(s.t.Context(), configMaps, s.name, fmt.Sprintf("configmap-%d", i)))
		name := fmt.Sprintf("deployment-%d", i)
		s.must(s.cluster.Create(s.t.Context(), deployments, s.name, name))
		s.must(s.cluster.Change(s.t.Context(), deployments, s.name, name, 1))
	}
	s.must(s.cluster.Create(s.t.Context(), workload.ConfigMaps, s.name, "the-last"))
	return "the-last"
}

// refuseHeavy makes a stream for the fixture that takes no heavy objects, in whatever form, so that their changes become
// dead letters. It takes everything else: a stream that takes nothing is away.
func (s *fixture) refuseHeavy() {
	s.t.Helper()
	js, hangUp, err := bus.Operate(s.nats.URL())
	s.must(err)
	defer hangUp()
	_, err = js.CreateStream(s.t.Context(), jetstream.StreamConfig{Name: s.name, Subjects: []string{s.name + ".>"}, MaxMsgSize: 4096})
	s.must(err)
}

// heavy makes objects of a kind so large that they are in every form larger than [fixture.refuseHeavy] allows: the names of
// labels are never left out.
func heavy(kind workload.Kind) workload.Kind {
	object := kind.Object
	kind.Object = func() *unstructured.Unstructured {
		o := object()
		labels := o.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		for i := range 64 {
			labels[fmt.Sprintf("ballast.example.com/%060d", i)] = "x"
		}
		o.SetLabels(labels)
		return o
	}
	return kind
}

// verifyAbsent fails the test where a text holds a value.
func (s *fixture) nothingOf(p *plants, where, text string) {
	s.t.Helper()
	if found := p.foundIn(text); found != nil {
		s.t.Errorf("%s holds %d values, among them %s", where, len(found), found[0])
	}
}

// nothingInFiles fails the test where a file below a directory holds a value.
func (s *fixture) nothingInFiles(p *plants, dir string) {
	s.t.Helper()
	s.must(filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		s.nothingOf(p, path, string(content))
		return err
	}))
}

// lookThrough looks for values in the topics, in every file the exporter wrote, and in the output of its commands.
func (s *fixture) lookThrough(p *plants, dir string) {
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
	s.nothingInFiles(p, dir)
	config := filepath.Join(dir, "config.yaml")
	s.nothingOf(p, "journal dump", s.ask("journal", "dump", "--config", config))
	s.nothingOf(p, "journal stat", s.ask("journal", "stat", "--config", config))
	letters := s.ask("deadletters", "list", "--sink", "nats", "--config", config, "-o", "json")
	s.nothingOf(p, "deadletters list", letters)
	shown := 0
	for line := range strings.Lines(letters) {
		var letter struct{ Offset uint64 }
		if json.Unmarshal([]byte(line), &letter) != nil || letter.Offset == 0 || !strings.Contains(line, "secrets") || shown == 20 {
			continue
		}
		shown++
		s.nothingOf(p, "deadletters show", s.ask("deadletters", "show", fmt.Sprint(letter.Offset), "--sink", "nats", "--config", config))
	}
	if shown == 0 {
		s.t.Errorf("there is no dead letter of a Secret:\n%.2000s", letters)
	}
}

// ask runs a command of the exporter and returns its output.
func (s *fixture) ask(args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), arriveWithin)
	defer cancel()
	out, err := exec.CommandContext(ctx, s.program, args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("exporter %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// TestChangedRedactionLeavesNoPlaintext journals Secrets in plain, undelivered, as dead letters and as kept states, and
// then starts with other rules: what is delivered then, and every file, holds nothing of them. The next change of an
// object describes the change correctly.
func TestChangedRedactionLeavesNoPlaintext(t *testing.T) {
	var settings exporter.Settings
	s := newFixture(t, nil, func(given *exporter.Settings) {
		given.Resources = []map[string]any{
			{"select": []string{"secrets"}, "redact": "none", "before": "full", "changed": "values"}, {"select": []string{"configmaps"}},
		}
		settings = *given
	})
	s.refuseHeavy()
	s.must(s.exporter.Start(t.Context()))
	var p plants
	secrets := heavy(p.secretKind())
	for i := range plainSecrets {
		s.must(s.cluster.Create(t.Context(), secrets, s.name, fmt.Sprintf("secret-%d", i)))
		s.must(s.cluster.Change(t.Context(), secrets, s.name, fmt.Sprintf("secret-%d", i), 1))
	}
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "the-last"))
	s.awaitNamed("the-last")
	s.must(s.exporter.Stop())
	config := filepath.Join(settings.Dir, "config.yaml")
	if p.foundIn(s.ask("journal", "dump", "--config", config)) == nil {
		t.Fatal("the journal holds nothing in plain, so nothing is proved")
	}
	s.receiveAll()
	before := len(s.buses[0].records)

	settings.Resources = []map[string]any{
		{"select": []string{"secrets"}, "redact": "hmac", "before": "full", "changed": "values"}, {"select": []string{"configmaps"}},
	}
	settings.Redaction = map[string]any{"key": redactionKey}
	s.acceptEverything() // what is left goes there, too
	var err error
	s.exporter, err = exporter.New(s.program, settings)
	s.must(err)
	s.must(s.exporter.Start(t.Context()))
	label := func(i, step int) {
		s.must(s.cluster.Patch(t.Context(), secrets, s.name, fmt.Sprintf("secret-%d", i), fmt.Sprintf(`{"metadata":{"labels":{"step":"%d"}}}`, step)))
	}
	for i := range plainSecrets {
		label(i, 1)
		label(i, 2)
	}
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "the-next"))
	s.awaitNamed("the-next")
	s.must(s.exporter.Stop()) // what is remembered of the Secrets outlives the process: there is a key
	s.must(s.exporter.Start(t.Context()))
	for i := range plainSecrets {
		label(i, 3)
	}
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "the-very-last"))
	s.awaitNamed("the-very-last")
	s.must(s.exporter.Stop())
	s.receiveAll()
	s.judgeRedactionChanges(s.buses[0].records[before:])
	for _, b := range s.buses {
		for _, r := range b.records[min(before, len(b.records)):] {
			s.nothingOf(&p, b.Name(), string(r.Payload))
		}
	}
	s.nothingInFiles(&p, settings.JournalDir())
	s.nothingOf(&p, "journal dump", s.ask("journal", "dump", "--config", config))
	s.nothingOf(&p, "deadletters list", s.ask("deadletters", "list", "--sink", "nats", "--config", config, "-o", "json"))
}

// plainSecrets is how many Secrets are journaled in plain.
const plainSecrets = 20

// awaitNamed waits for an object to arrive on Kafka.
func (s *fixture) awaitNamed(name string) {
	s.t.Helper()
	s.await(s.buses[0], func(records []bus.Record) string {
		for _, r := range records {
			if r.Name == name {
				return ""
			}
		}
		return name
	})
}

// judgeRedactionChanges holds that of the updates of each Secret the first reports a changed redaction, and compares
// with nothing, and that the others name the change: a label, and nothing of data.
func (s *fixture) judgeRedactionChanges(records []bus.Record) {
	s.t.Helper()
	seen := map[string]int{}
	for _, r := range records {
		if r.Resource != "secrets" || r.Type != "updated" {
			continue
		}
		var c struct {
			RedactionChanged bool
			Class            string
			Changed, Before  json.RawMessage
		}
		s.must(json.Unmarshal(r.Payload, &c))
		seen[r.Name]++
		first := seen[r.Name] == 1
		if c.RedactionChanged != first || (c.Before == nil) != first || (c.Changed == nil) != first {
			s.t.Errorf("update %d of %s: redactionChanged %v, before %s, changed %s", seen[r.Name], r.Name, c.RedactionChanged, c.Before, c.Changed)
		}
		if !first && (c.Class != "metadata" || strings.Contains(string(c.Changed), "/data")) {
			s.t.Errorf("a label of %s changed, and class is %q, changed %s", r.Name, c.Class, c.Changed)
		}
	}
	if len(seen) != plainSecrets {
		s.t.Errorf("updates of %d Secrets arrived", len(seen))
	}
}

// TestARotatedValueStaysHiddenInAnAnnotation: one that holds a value of its object stays redacted when the value is rotated
// while the exporter runs, while it does not, and after an edit of its rules. Nothing of the old value is emitted or stored.
func TestARotatedValueStaysHiddenInAnAnnotation(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stream.jsonl")
	var settings exporter.Settings
	rules := func(paths ...string) func(*exporter.Settings) {
		return func(given *exporter.Settings) {
			given.File = file
			given.Resources = []map[string]any{
				{"select": []string{"configmaps"}, "redactPaths": append(paths, "data.password"), "before": "full", "changed": "values"},
			}
			settings = *given
		}
	}
	s := newFixture(t, nil, rules())
	s.must(s.exporter.Start(t.Context()))
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "rotated"))
	step := 0
	rotate := func(more string) {
		step++
		s.must(s.cluster.Patch(t.Context(), workload.ConfigMaps, s.name, "rotated",
			fmt.Sprintf(`{"data":{"password":"turned-%04d-rotated","step":"of-rotation-%d"}%s}`, step, step, more)))
	}
	p := plants{values: []string{"turned-0001-rotated"}}
	rotate(`,"metadata":{"annotations":{"example.com/state":"{\"was\":\"turned-0001-rotated\"}"}}`)
	rotate("")
	awaitText(s, file, "of-rotation-2")
	s.must(s.exporter.Stop())
	rotate("")
	s.must(s.exporter.Start(t.Context()))
	awaitText(s, file, "of-rotation-3")
	s.must(s.exporter.Configure(rules("data.added")))
	rotate("")
	awaitText(s, file, "of-rotation-4")
	rotate(`,"metadata":{"annotations":{"example.com/state":"{\"was\":\"shown-again\"}"}}`)
	awaitText(s, file, "shown-again")
	s.must(s.exporter.Stop())
	text, err := os.ReadFile(file)
	s.must(err)
	s.nothingOf(&p, "the file", string(text))
	s.nothingInFiles(&p, settings.JournalDir())
}

// awaitText waits until a file holds a text.
func awaitText(s *fixture, file, part string) {
	s.t.Helper()
	await.Condition(s.t, file, arriveWithin, lookEvery, func() string {
		text, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(text), part) {
			return ""
		}
		return fmt.Sprintf("%s (%v)", part, err)
	})
}
