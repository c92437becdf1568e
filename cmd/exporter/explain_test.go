package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/source"
)

// address stands for the API server's, which is another in each run.
const address = "http://SERVER"

func explained(t *testing.T, config string, args ...string) string {
	t.Helper()
	kubeconfig := cluster(t, "list configmaps web", "watch configmaps web", "list pods", "list deployments", "watch deployments")
	t.Setenv("KUBECONFIG", kubeconfig)
	code, stdout, stderr := try(t, append([]string{"explain", "--config", filepath.Join("testdata", config)}, args...)...)
	if code != exitOK || stderr != "" {
		t.Fatalf("exit %d, stderr %q", code, stderr)
	}
	_, rest, _ := strings.Cut(stdout, "http://")
	host, _, _ := strings.Cut(rest, "\n")
	host, _, _ = strings.Cut(host, `"`)
	return strings.ReplaceAll(stdout, "http://"+host, address)
}

func TestExplainSaysWhatGoesWhereAndWhatIsForbidden(t *testing.T) {
	golden(t, "explain.golden.txt", explained(t, "rbac-wildcards.yaml"))
}

func TestExplainFollowsRoutes(t *testing.T) {
	golden(t, "explain-routes.golden.txt", explained(t, "explain-routes.yaml"))
}

func TestExplainSpeaksJSON(t *testing.T) {
	text := explained(t, "rbac-wildcards.yaml", "-o", "json")
	if !json.Valid([]byte(text)) {
		t.Errorf("no JSON: %s", text)
	}
	golden(t, "explain.golden.json", text)
}

func TestExplainRefusesWhatItCannotDo(t *testing.T) {
	path := filepath.Join("testdata", "rbac-literal.yaml")
	for _, args := range [][]string{{"-o", "yaml"}, {"--for", "-1s"}, {"--for", "soon"}} {
		code, stdout, stderr := try(t, append([]string{"explain", "--config", path}, args...)...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, strings.TrimLeft(args[1], "-")) {
			t.Errorf("%q: exit %d, stdout %q, stderr %q; want exit 2 and the value named", args, code, stdout, stderr)
		}
	}
}

func TestRatesAreToldTheBusiestFirst(t *testing.T) {
	scope := func(id string, m *measureReport) *scopeReport { return &scopeReport{ID: id, Measured: m} }
	ten := duration(10 * time.Second)
	r := &report{Window: ten, Rules: []ruleReport{{Resources: []resourceReport{{Scopes: []*scopeReport{
		scope("nodes", &measureReport{Window: ten}),
		scope("secrets", nil), // forbidden
		scope("jobs.batch", &measureReport{Window: duration(time.Second), Changes: 1, Bytes: 900, Error: "the API server ended the watch"}),
		scope("pods", &measureReport{Window: ten, Changes: 25, Bytes: 50_000}),
	}}}}}}
	var b bytes.Buffer
	r.writeMeasured(&b)
	golden(t, "measured.golden.txt", b.String())
}

func TestAccessIsToldWhereItDiffers(t *testing.T) {
	scope := func(namespace string, list, watch source.Permission) *scopeReport {
		return &scopeReport{Namespace: namespace, List: list, Watch: watch}
	}
	for want, scopes := range map[string][]*scopeReport{
		"allowed":                      {scope("a", source.Allowed, source.Allowed)},
		"forbidden":                    {scope("a", source.Denied, source.Denied), scope("b", source.Denied, source.Denied)},
		"forbidden (watch)":            {scope("", source.Allowed, source.Denied)},
		"unknown":                      {scope("", source.Unknown, source.Unknown)},
		"forbidden in b":               {scope("a", source.Allowed, source.Allowed), scope("b", source.Denied, source.Allowed)},
		"forbidden in a; unknown in b": {scope("a", source.Denied, source.Allowed), scope("b", source.Unknown, source.Allowed)},
	} {
		if got := (resourceReport{Scopes: scopes}).accessText(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAClusterNameThatKafkaEscapesStaysAPlaceholder(t *testing.T) {
	if got := string(appendPlain(nil, "prod eu")); got != "{cluster}" {
		t.Errorf("got %q", got)
	}
	if got := string(appendPlain([]byte("k8s."), "cert-manager.io")); got != "k8s.cert-manager.io" {
		t.Errorf("got %q", got)
	}
}
