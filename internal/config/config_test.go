package config

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the messages of testdata/bad; review every one before you commit it")

// TestEveryBadFileGetsItsMessage compares the exact text that a user sees for each mistake. The file is named after the
// mistake.
func TestEveryBadFileGetsItsMessage(t *testing.T) {
	t.Chdir("testdata/bad")
	t.Setenv("KUBECONFIG", "none")
	files := listCorpus(t, 25)
	for _, file := range files {
		t.Run(strings.TrimSuffix(file, ".yaml"), func(t *testing.T) {
			cfg, err := Load(file)
			if err == nil || cfg != nil {
				t.Fatalf("a configuration with a known mistake was accepted (configuration %v, error %v)", cfg, err)
			}
			var problems *Error
			if !errors.As(err, &problems) || len(problems.Problems) == 0 {
				t.Fatalf("error is a %T without problems", err)
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *update {
				if err := os.WriteFile(golden, []byte(err.Error()+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, readErr := os.ReadFile(golden)
			if readErr != nil {
				t.Fatalf("no golden file with the message for this mistake: %v", readErr)
			}
			if got := err.Error() + "\n"; got != string(want) {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
	messages, err := filepath.Glob("*.txt")
	if err != nil || len(messages) != len(files) {
		t.Errorf("%d golden files for %d bad files", len(messages), len(files))
	}
}

// TestFilesOfEarlierReleasesLoad loads the reference file, with every key, of each release. A refusal belongs in
// docs/upgrading.md.
func TestFilesOfEarlierReleasesLoad(t *testing.T) {
	t.Chdir("testdata/earlier")
	t.Setenv("KUBECONFIG", "none")
	for _, file := range listCorpus(t, 1) {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if cfg, err := loadString(t, string(content)); err != nil {
			t.Errorf("%s: %v", file, err)
		} else if len(cfg.Resources) == 0 || len(cfg.Sinks) < 2 {
			t.Errorf("%s: %d rules, %d sinks", file, len(cfg.Resources), len(cfg.Sinks))
		}
	}
}

func listCorpus(t *testing.T, minimum int) []string {
	t.Helper()
	files, err := filepath.Glob("*.yaml")
	if err != nil || len(files) < minimum {
		t.Fatalf("%d files in the corpus, want at least %d (%v)", len(files), minimum, err)
	}
	return files
}

const minimal = `
resources: [{select: [pods]}]
sinks: [{name: console, stdout: {}}]
`

func loadString(t *testing.T, content string) (*Config, error) {
	t.Helper()
	return parseConfig("config.yaml", []byte(content))
}

func mustLoadString(t *testing.T, content string) *Config {
	t.Helper()
	cfg, err := loadString(t, content)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestOmittedKeysTakeDefaults(t *testing.T) {
	got := *mustLoadString(t, minimal)
	want := Default()
	want.Resources, want.Sinks, want.File, want.Hash = got.Resources, got.Sinks, got.File, got.Hash
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if r := got.Resources[0]; r.Before != "none" {
		t.Errorf("a rule has the default before %q", r.Before)
	}
	if s := got.Sinks[0]; s.Format != "json" || s.Stdout == nil || s.Kafka != nil || s.NATS != nil {
		t.Errorf("a sink has the defaults %+v", s)
	}
}

func TestNamesKeepTheirCapitalsAndDots(t *testing.T) {
	cfg := mustLoadString(t, `
cluster: {name: Prod.EU}
resources: [{select: [pods], labelSelector: "app.kubernetes.io/Part.Of.Name=X,Team=Blue"}]
sinks:
  - name: main
    kafka: {brokers: ["Kafka.Example:9092"], topic: "K8s.{resource}", createTopics: {enabled: true, configs: [{name: cleanup.policy, value: Compact}]}}
`)
	if got := cfg.Resources[0].LabelSelector; got != "app.kubernetes.io/Part.Of.Name=X,Team=Blue" {
		t.Errorf("label selector became %q", got)
	}
	if got := cfg.Cluster.Name; got != "Prod.EU" {
		t.Errorf("cluster name became %q", got)
	}
	k := cfg.Sinks[0].Kafka
	if k.Brokers[0] != "Kafka.Example:9092" || k.Topic != "K8s.{resource}" || k.CreateTopics.Configs[0].Name != "cleanup.policy" || k.CreateTopics.Configs[0].Value != "Compact" {
		t.Errorf("the Kafka sink became %+v", k)
	}
}

func TestVariablesOverrideSingleValues(t *testing.T) {
	t.Setenv("KUBECDC_JOURNAL_MAXBYTES", "2Gi")
	t.Setenv("KUBECDC_DELIVERY_RETRY_MIN", "2s")
	t.Setenv("KUBECDC_CLUSTER_NAME", "Env.Name")
	t.Setenv("KUBECDC_LOG_LEVEL", "") // empty counts as not set
	cfg := mustLoadString(t, minimal+"journal: {maxBytes: 1Gi, dir: ./here}\ncluster: {name: file}\nlog: {level: debug}\n")
	if cfg.Journal.MaxBytes != 2<<30 || cfg.Delivery.Retry.Min != 2*time.Second || cfg.Cluster.Name != "Env.Name" {
		t.Errorf("variables did not override: %+v", cfg)
	}
	if cfg.Journal.Dir != "./here" || cfg.Log.Level != "debug" || cfg.Delivery.Retry.Max != 30*time.Second || len(cfg.Sinks) != 1 {
		t.Errorf("variables changed what they do not name: %+v", cfg)
	}
}

func TestInvalidVariableIsReported(t *testing.T) {
	t.Setenv("KUBECDC_JOURNAL_MAXBYTES", "lots")
	_, err := loadString(t, minimal)
	want := `environment: journal.maxBytes: not a size: found KUBECDC_JOURNAL_MAXBYTES=lots, expected ` + expectBytes
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestReferencesStandForAnyString(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(" two lines\nand a blank \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TEST_TOPIC", "k8s.changes")
	cfg := mustLoadString(t, `
resources: [{select: [pods]}]
sinks:
  - name: main
    kafka:
      brokers: ["127.0.0.1:9092"]
      topic: {env: TEST_TOPIC}
      tls: {enabled: true}
      sasl: {mechanism: plain, username: me, password: {file: `+file+`}}
`)
	k := cfg.Sinks[0].Kafka
	if password, err := k.SASL.Password.Read(); err != nil || k.Topic != "k8s.changes" || password != " two lines\nand a blank " {
		t.Errorf("references became %+v, %q, %v", k, password, err)
	}
	if err := os.WriteFile(file, []byte("rotated\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if password, err := k.SASL.Password.Read(); err != nil || password != "rotated" {
		t.Errorf("after a rotation %q, %v", password, err)
	}
}

func TestReferenceValuesAreNeverShown(t *testing.T) {
	t.Setenv("TEST_TOPIC", "hunter2-{nonsense}")
	_, err := loadString(t, `
resources: [{select: [pods]}]
sinks: [{name: main, kafka: {brokers: ["127.0.0.1:9092"], topic: {env: TEST_TOPIC}}}]
`)
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v, want an error that hides the value", err)
	}
}

func TestPrintedConfigurationHidesPasswords(t *testing.T) {
	cfg := mustLoadString(t, `
resources: [{select: [pods]}]
sinks: [{name: main, kafka: {brokers: ["127.0.0.1:9092"], topic: k8s, sasl: {mechanism: plain, username: me, password: hunter2, allowCleartextCredentials: true}}}]
`)
	var b strings.Builder
	for _, handler := range []slog.Handler{slog.NewTextHandler(&b, nil), slog.NewJSONHandler(&b, nil)} {
		slog.New(handler).Info("x", "configuration", cfg, "value", *cfg, "sink", cfg.Sinks[0])
	}
	fmt.Fprintf(&b, "%v %+v %v %+v", cfg, *cfg, cfg.Sinks, cfg.Sinks[0])
	if strings.Contains(b.String(), "hunter2") || !strings.Contains(b.String(), "main") {
		t.Error(b.String())
	}
}

func TestMissingFileIsReported(t *testing.T) {
	for _, path := range []string{filepath.Join(t.TempDir(), "absent.yaml"), t.TempDir()} {
		_, err := Load(path)
		var problems *Error
		if !errors.As(err, &problems) || problems.Problems[0].File != path {
			t.Errorf("Load(%q): %v", path, err)
		}
	}
}

func TestSizesAreWrittenAsTheyAreRead(t *testing.T) {
	for text, want := range map[string]Bytes{"0": 0, "1000": 1000, "1Ki": 1 << 10, "1536Mi": 1536 << 20, "10Gi": 10 << 30, "2Ti": 2 << 40} {
		n, bad := parseBytes(text)
		if bad != nil || Bytes(n) != want || want.String() != text {
			t.Errorf("%q is read as %d and written as %q (%v)", text, n, want, bad)
		}
	}
}

func FuzzLoadNeverPanics(f *testing.F) {
	for _, pattern := range []string{"testdata/good/*.yaml", "testdata/bad/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(content)
		}
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		cfg, err := parseConfig("fuzz.yaml", content)
		if (cfg == nil) == (err == nil) {
			t.Fatalf("configuration %v and error %v", cfg, err)
		}
		if err != nil && strings.Contains(err.Error(), "\n\n") {
			t.Fatalf("an empty line in %q", err)
		}
	})
}

// TestSuspiciousSettingsAreWarnings holds settings that are legal and probably mean something else.
func TestSuspiciousSettingsAreWarnings(t *testing.T) {
	const sink = "sinks: [{name: console, stdout: {}}]\n"
	for name, c := range map[string]struct{ content, path string }{
		"every namespace excluded where some resources have none": {
			`resources: [{select: ["*"], namespaces: {exclude: ["?*"]}}]` + "\n" + sink, "resources[0].namespaces.exclude"},
		"a route of types that are not emitted": {
			"resources: [{select: [pods]}]\n" + sink + "routes: [{select: [pods], types: [sync], to: [{sink: console}]}]", "routes[0].types"},
		"a route of authors without a source of them": {
			"resources: [{select: [pods]}]\n" + sink + "routes: [{select: [pods], types: [attributed], to: [{sink: console}]}]", "routes[0].types"},
		"ignored changes that no object shows": {
			"resources: [{select: [pods], capture: metadata, ignoreChanges: [status]}]\n" + sink, "resources[0].ignoreChanges[0]"},
		"a filter that is always true": {
			"resources: [{select: [pods], namespaces: {include: [web]}, filter: 'change.namespace != \"kube-system\"'}]\n" + sink,
			"resources[0].filter"},
		"a filter that fails for a type": {
			"resources: [{select: [pods], filter: 'oldObject.spec != object.spec'}]\n" + sink, "resources[0].filter"},
		"a rule of which all is dropped": {
			"resources: [{select: [pods]}, {select: [services]}]\n" + sink + "routes: [{select: [pods], drop: true}]", "resources[0].select"},
		"a rule after one for another version": {
			"resources: [{select: [deployments.v1.apps]}, {select: [deployments.apps]}]\n" + sink, "resources[1].select[0]"},
		"redaction that does not reach an earlier rule": {
			`resources: [{select: [deployments.apps]}, {select: ["*"], redactPaths: ["spec.template.spec.containers[*].env"]}]` + "\n" + sink,
			"resources[1].redactPaths[0]"},
	} {
		cfg := mustLoadString(t, c.content)
		if len(cfg.Warnings) != 1 || cfg.Warnings[0].Path != c.path || cfg.Warnings[0].Found == "" || cfg.Warnings[0].Expected == "" {
			t.Errorf("%s: got %v, want one warning of %s", name, cfg.Warnings, c.path)
		}
	}
	cfg := mustLoadString(t, `
resources:
  - {select: [deployments.apps], redactPaths: [spec.template]}
  - {select: [pods]}
  - {select: ["*"], exclude: [pods], redactPaths: [spec.template]}
`+sink)
	if len(cfg.Warnings) != 0 {
		t.Errorf("paths that reach every rule or are excluded: %v", cfg.Warnings)
	}
}
