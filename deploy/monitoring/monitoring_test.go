package monitoring_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kubecdc/kubecdc/deploy/monitoring"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

const root = "../.."

func TestFilesAreUpToDate(t *testing.T) {
	files, err := monitoring.Files()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(root, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s differs from the code (%v); run: go generate ./deploy/monitoring", name, err)
		}
	}
}

// promtool runs promtool and fails the test where it finds fault.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	require.Integration(t)
	program, err := build.Promtool(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestRulesAreValid(t *testing.T) { promtool(t, "check", "rules", "--lint-fatal", "rules.yaml") }

// unitTests is a file for "promtool test rules".
type unitTests struct {
	Files []string   `yaml:"rule_files"`
	Tests []unitTest `yaml:"tests"`
}

type unitTest struct {
	Name     string      `yaml:"name"`
	Interval string      `yaml:"interval"`
	Series   []series    `yaml:"input_series"`
	Alerts   []alertTest `yaml:"alert_rule_test,omitempty"`
	Exprs    []exprTest  `yaml:"promql_expr_test,omitempty"`
}

type series struct {
	Series string `yaml:"series"`
	Values string `yaml:"values"`
}

type alertTest struct {
	At       string `yaml:"eval_time"`
	Name     string `yaml:"alertname"`
	Expected []any  `yaml:"exp_alerts"`
}

type exprTest struct {
	Expr    string   `yaml:"expr"`
	At      string   `yaml:"eval_time"`
	Samples []sample `yaml:"exp_samples"`
}

type sample struct {
	Labels string  `yaml:"labels"`
	Value  float64 `yaml:"value"`
}

// TestEachFaultIsExactlyOneAlert gives promtool the series of a healthy exporter, and then with each fault: its alert fires,
// and no other one.
func TestEachFaultIsExactlyOneAlert(t *testing.T) {
	rules, err := filepath.Abs("rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	tests := unitTests{Files: []string{rules}, Tests: []unitTest{firing("healthy", nil, "")}}
	for _, a := range monitoring.Alerts {
		if len(a.Series) == 0 {
			t.Errorf("%s has no series to be tested with", a.Name)
		}
		tests.Tests = append(tests.Tests, firing(a.Name, a.Series, a.Name))
	}
	text, err := yaml.Marshal(tests)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "tests.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "test", "rules", file)
}

// firing expects one alert, or none, at the time when what lasts has lasted and what has happened is not forgotten.
func firing(name string, fault map[string]string, want string) unitTest {
	all := maps.Clone(monitoring.Healthy)
	maps.Copy(all, fault)
	at := "18m"
	for _, a := range monitoring.Alerts {
		if a.Name == want && a.For == "1h" {
			at = "75m"
		}
	}
	test := unitTest{Name: name, Interval: "1m"}
	for _, s := range slices.Sorted(maps.Keys(all)) {
		test.Series = append(test.Series, series{s, all[s]})
	}
	expected := []sample{}
	if want != "" {
		expected = append(expected, sample{fmt.Sprintf(`{alertname=%q}`, want), 1})
	}
	test.Exprs = []exprTest{{`count by (alertname) (ALERTS{alertstate="firing"})`, at, expected}}
	return test
}

// TestEveryConditionHasAnAlert: what is wrong for long must not depend on a person who looks.
func TestEveryConditionHasAnAlert(t *testing.T) {
	alerted := map[condition.Code]bool{}
	for _, a := range monitoring.Alerts {
		for _, code := range a.Codes {
			alerted[code] = true
		}
	}
	for _, kind := range condition.Kinds() {
		if !alerted[kind.Code] {
			t.Errorf("%s has no alert", kind.Code)
		}
	}
}

// TestEveryMetricExists: a name that the exporter does not serve makes an alert that never fires and an empty panel.
func TestEveryMetricExists(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := monitoring.Files()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, name := range metricName.FindAllString(string(page), -1) {
		known[name] = true
	}
	for _, file := range []string{"deploy/monitoring/rules.yaml", "deploy/monitoring/dashboard.json"} {
		for _, name := range metricName.FindAllString(string(files[file]), -1) {
			if !known[name] && !known[strings.TrimSuffix(name, "_bucket")] {
				t.Errorf("%s: %s is not on the page of metrics", file, name)
			}
		}
	}
}

var metricName = regexp.MustCompile(`\bkubecdc_[a-z_]+`)

// TestEveryAlertSaysWhatToDo holds each alert to its section of the page.
func TestEveryAlertSaysWhatToDo(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range monitoring.Alerts {
		if seen[a.Name] || !strings.HasPrefix(a.Name, "Kubecdc") {
			t.Errorf("%s: twice, or without the prefix that tells whose it is", a.Name)
		}
		seen[a.Name] = true
		if a.Summary == "" || a.Meaning == "" || len(a.Codes) == 0 && (len(a.Look) == 0 || len(a.Do) == 0) {
			t.Errorf("%s lacks a part of its section", a.Name)
		}
		if !slices.Contains([]monitoring.Severity{monitoring.Critical, monitoring.Warning, monitoring.Info}, a.Severity) {
			t.Errorf("%s: severity %q", a.Name, a.Severity)
		}
	}
}
