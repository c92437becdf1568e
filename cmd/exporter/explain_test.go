package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/exit"
)

// address stands for the API server's, which is another in each run.
const address = "http://SERVER"

func explained(t *testing.T, config string, args ...string) string {
	t.Helper()
	kubeconfig := cluster(t, "list configmaps web", "watch configmaps web", "list pods", "list deployments", "watch deployments")
	t.Setenv("KUBECONFIG", kubeconfig)
	code, stdout, stderr := try(t, append([]string{"explain", "--config", filepath.Join("testdata", config)}, args...)...)
	if code != exit.OK || stderr != "" {
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
	for _, args := range [][]string{{"-o", "yaml"}, {"-o", "text=1"}} {
		code, stdout, stderr := try(t, append([]string{"explain", "--config", path}, args...)...)
		if code != exit.Usage || stdout != "" || !strings.Contains(stderr, strings.TrimLeft(args[1], "-")) {
			t.Errorf("%q: exit %d, stdout %q, stderr %q; want exit 2 and the value named", args, code, stdout, stderr)
		}
	}
}
