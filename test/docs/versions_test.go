package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pinned is where the version of a system is that tests run, or that something needs.
var pinned = []struct{ system, file, version string }{
	{"Kubernetes", "test/controlplane/go.mod", `k8s\.io/kubernetes v([\d.]+)\n`},
	{"Kubernetes", "test/e2e/older_apiserver_test.go", `--emulated-version=([\d.]+)`},
	{"Kubernetes", "internal/attribution/stamp/builtin_test.go", `--emulated-version=([\d.]+)`},
	{"Kubernetes", "deploy/helm/kubecdc/Chart.yaml", `kubeVersion: ">=([\d]+\.[\d]+)\.`},
	{"Kafka", "test/kafka/pom.xml", `<kafka\.version>([\d.]+)<`},
	{"NATS", "test/natsserver/go.mod", `nats-server/v2 v([\d.]+)\n`},
	{"Helm, kustomize", "tools/deploy/go.mod", `helm\.sh/helm/v4 v([\d.]+) `},
	{"Helm, kustomize", "tools/deploy/go.mod", `kustomize/kustomize/v5 v([\d.]+) `},
	{"Go, to build", "go.mod", `(?m)^go ([\d.]+)$`},
}

// TestTheVersionsOfThePageAreThoseOfTheTests, system by system.
func TestTheVersionsOfThePageAreThoseOfTheTests(t *testing.T) {
	lines := strings.Split(textOf(t, "docs/versions.md"), "\n")
	for _, p := range pinned {
		row := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "| "+p.system+" |") })
		found := regexp.MustCompile(p.version).FindStringSubmatch(textOf(t, p.file))
		if row < 0 || found == nil {
			t.Errorf("%s: row %d, and %q in %s", p.system, row, found, p.file)
			continue
		}
		if version := regexp.MustCompile(`(^|[^\d.])` + regexp.QuoteMeta(found[1]) + `([^\d]|$)`); !version.MatchString(lines[row]) {
			t.Errorf("docs/versions.md: %s is %s in %s", p.system, found[1], p.file)
		}
	}
}
