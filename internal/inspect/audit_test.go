package inspect

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
)

func auditConfig(t *testing.T, rules string) *config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.yaml")
	text := "resources: " + rules + "\nsinks: [{name: out, stdout: {}}]\n" +
		"audit: {webhook: {listen: \":9443\", cert: c, key: k, clientCA: ca, clients: [kube-apiserver]}}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.LoadWithoutSinkFiles(path)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func auditText(t *testing.T, part, rules string) string {
	t.Helper()
	cfg := auditConfig(t, rules)
	out, err := AuditPolicy(t.Context(), cfg, "dev", AuditOptions{Part: part, Server: "kubecdc.example", Dir: "/d"})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// resourcesByLevel returns the resources that a policy has at each level, as written.
func resourcesByLevel(policy string) map[string]string {
	all := map[string]string{}
	level := ""
	for line := range strings.Lines(policy) {
		if after, found := strings.CutPrefix(line, "  - level: "); found {
			level = strings.TrimSpace(after)
		}
		if _, after, found := strings.Cut(line, "resources: ["); found {
			all[level] += strings.TrimRight(after, "]\n") + " "
		}
	}
	return all
}

func TestBodiesOfRedactedResourcesAreNotLogged(t *testing.T) {
	got := resourcesByLevel(auditText(t, "policy", `[{select: [secrets, configmaps, serviceaccounts, pods]}, {select: [things.example.io], redactPaths: ["spec.password"]}]`))
	for _, hidden := range []string{"secrets", "things"} {
		if !strings.Contains(got["Metadata"], `"`+hidden+`"`) || strings.Contains(got["RequestResponse"], hidden) {
			t.Errorf("%s: %v", hidden, got)
		}
	}
	for _, never := range []string{"token", "exec", "attach", "portforward", "proxy", "*"} {
		if strings.Contains(got["RequestResponse"], never) {
			t.Errorf("%s is asked for: %v", never, got)
		}
	}
	if !strings.Contains(got["RequestResponse"], `"configmaps"`) || !strings.Contains(got["RequestResponse"], `"pods/binding"`) {
		t.Errorf("%v", got)
	}
}

// TestAdmissionPolicyAnnotatesMissingFacts: of all updates whether they changed anything, and of what has no bodies
// the UID at each write.
func TestAdmissionPolicyAnnotatesMissingFacts(t *testing.T) {
	text := auditText(t, "admission", "[{select: [configmaps, secrets]}]")
	for _, want := range []string{
		`operations: [UPDATE, DELETE], resources: ["configmaps"]`, `operations: [CREATE, UPDATE, DELETE], resources: ["secrets"]`, "failurePolicy: Ignore",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

func TestTheWebhookIsReachedWhereTheExporterListens(t *testing.T) {
	if text := auditText(t, "kubeconfig", "[{select: [pods]}]"); !strings.Contains(text, "server: https://kubecdc.example:9443/\n") {
		t.Errorf("got\n%s", text)
	}
	if text := auditText(t, "flags", "[{select: [pods]}]"); !strings.Contains(text, "--audit-webhook-config-file=/d/audit-webhook.kubeconfig\n") ||
		strings.Contains(text, "initial-backoff") {
		t.Errorf("got\n%s", text)
	}
}

// TestStampPolicySelectsTheResourcesOfTheRules, Secrets and those with redactPaths included: a stamp has no value of them.
func TestStampPolicySelectsTheResourcesOfTheRules(t *testing.T) {
	cfg := auditConfig(t, `[{select: [secrets, pods]}, {select: [things.example.io], redactPaths: ["spec.password"]}]`)
	text, err := StampPolicy(t.Context(), cfg, "dev")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`["pods", "pods/*"]`, `["secrets", "secrets/*"]`, `{apiGroups: ["example.io"], apiVersions: ["*"]`, "failurePolicy: Fail"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

// TestStampPolicySaysWhatItLeavesOut, and prints none that selects nothing.
func TestStampPolicySaysWhatItLeavesOut(t *testing.T) {
	policyOf := func(selected string) (string, error) {
		return StampPolicy(t.Context(), auditConfig(t, `[{select: [`+selected+`]}]`), "dev")
	}
	text, err := policyOf("deployments.apps, horizontalpodautoscalers.autoscaling, events")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"# Not stamped: horizontalpodautoscalers.autoscaling: ", "# Not stamped: events: ", `{apiGroups: ["apps"], apiVersions: ["v1"]`} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in:\n%s", part, text)
		}
	}
	if strings.Contains(text, `["autoscaling"]`) || strings.Contains(text, `"events"`) {
		t.Errorf("it selects a type that must not be stamped:\n%s", text)
	}
	text, err = policyOf("horizontalpodautoscalers.v2.autoscaling")
	if code, _ := exit.CodeOf(err); code != exit.Usage || !strings.Contains(err.Error(), "autoscaling/v1") {
		t.Errorf("nothing to stamp: %v\n%s", err, text)
	}
}
