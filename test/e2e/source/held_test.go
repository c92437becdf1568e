package source

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/proxy"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// plaintext is a part of every value that these tests write to a member that is to be redacted.
const plaintext = "plaintext"

// vault is a custom resource with a protected member. Tests edit its definition.
type vault struct {
	*fixture
	definition workload.Definition
	kind       workload.Kind
}

// membersSchema is the schema of a type that has these members in its spec, and no others.
func membersSchema(members ...string) map[string]any {
	text := map[string]any{}
	for _, name := range members {
		text[name] = map[string]any{"type": "string"}
	}
	return map[string]any{"type": "object", "properties": map[string]any{"spec": map[string]any{"type": "object", "properties": text}}}
}

// newVault defines a type with the members token and name, and makes a fixture that protects token. more are further rules.
func newVault(t *testing.T, group string, strict bool, more ...rule) *vault {
	t.Helper()
	v := &vault{fixture: newFixture(t, sharedControlPlane(t), nil, func(settings *exporter.Settings) {
		settings.Redaction = map[string]any{"strict": strict}
	})}
	v.definition = workload.Definition{Group: group, Plural: "vaults", Kind: "Vault", Schema: membersSchema("token", "name")}
	v.kind = v.installDefinition(v.definition)
	v.setRules(append([]rule{v.protect("token")}, more...)...)
	return v
}

// protect returns a rule that selects the type and redacts a member of its spec.
func (v *vault) protect(member string) rule {
	return rule{"select": []string{"vaults." + v.definition.Group}, "redactPaths": []string{"spec." + member}}
}

// edit edits the definition.
func (v *vault) edit(change func(*workload.Definition)) {
	v.t.Helper()
	change(&v.definition)
	v.requireNoError(v.cluster.Redefine(v.t.Context(), v.definition))
}

// rename gives the members of the type other names, in its only version.
func (v *vault) rename(members ...string) {
	v.t.Helper()
	v.edit(func(d *workload.Definition) { d.Schema = membersSchema(members...) })
}

// store writes an object with a value in a member, until the API server knows the member and has stored the value.
func (v *vault) store(name, member string) {
	v.t.Helper()
	kind, value := v.kind, fmt.Sprintf("%s of %s", plaintext, name)
	kind.Object = func() *unstructured.Unstructured {
		o := v.kind.Object()
		o.Object["spec"] = map[string]any{member: value}
		return o
	}
	v.requireNoError(v.cluster.Create(v.t.Context(), kind, v.name, name))
	v.awaitCondition(func() string {
		all, err := v.cluster.List(v.t.Context(), kind)
		v.requireNoError(err)
		for _, o := range all {
			if stored, _, _ := unstructured.NestedString(o.Object, "spec", member); o.GetName() == name && stored == value {
				return ""
			}
		}
		v.requireNoError(v.cluster.Patch(v.t.Context(), kind, v.name, name, fmt.Sprintf(`{"spec":{%q:%q}}`, member, value)))
		return "the API server to store the member " + member
	})
}

// requireMasked ends the test if a value was emitted.
func (v *vault) requireMasked() {
	v.t.Helper()
	text, err := os.ReadFile(v.settings.File)
	v.requireNoError(err)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, plaintext) {
			v.t.Fatalf("a value left unmasked:\n%s", line)
		}
	}
}

// stateOf is a state of a resource on the page of metrics.
var stateOf = regexp.MustCompile(`(?m)^kubecdc_resource_state\{resource="([^"]+)",state="(\w+)"\} 1$`)

// heldTypes returns the resources that are held, and whether all others are live.
func (v *vault) heldTypes() (held []string, othersLive bool) {
	v.t.Helper()
	_, text := v.getPage("/metrics")
	all := stateOf.FindAllStringSubmatch(text, -1)
	othersLive = len(all) > 0
	for _, state := range all {
		if state[2] == "waiting" {
			held = append(held, state[1])
		} else if state[2] != "live" {
			othersLive = false
		}
	}
	slices.Sort(held)
	return held, othersLive
}

// awaitHeld changes an object until the type is held, with a cause that has all parts. Nothing is emitted unmasked until
// then. The changes are necessary: an open watch shows what was written after the edit without the members that are new.
func (v *vault) awaitHeld(changed string, parts ...string) {
	v.t.Helper()
	step := 0
	v.awaitCondition(func() string {
		step++
		v.requireNoError(v.cluster.Patch(v.t.Context(), v.kind, v.name, changed, fmt.Sprintf(`{"metadata":{"labels":{"step":"%d"}}}`, step)))
		v.requireMasked()
		if held, _ := v.heldTypes(); len(held) > 0 {
			return ""
		}
		return "the type to be held"
	})
	v.awaitPage("/readyz", http.StatusServiceUnavailable, append(parts, "RedactionHeld")...)
}

// awaitMasked waits for the record of an object in which a member is masked.
func (v *vault) awaitMasked(name, member string) {
	v.t.Helper()
	v.awaitCondition(func() string {
		v.requireMasked()
		for _, r := range v.readRecords() {
			if isAbout(r, v.kind) && r.Name == name && strings.Contains(string(r.Payload), fmt.Sprintf("%q:%q", member, "***")) {
				return ""
			}
		}
		return fmt.Sprintf("%s with a masked %s", name, member)
	})
}

// requireEqualAfterRestart requires that exactly these resources are held, and the same ones after a restart.
func (v *vault) requireEqualAfterRestart(resources ...string) {
	v.t.Helper()
	slices.Sort(resources)
	awaitExactly := func() {
		v.awaitCondition(func() string {
			v.requireMasked()
			if held, othersLive := v.heldTypes(); !othersLive || !slices.Equal(held, resources) {
				return fmt.Sprintf("%q to be held and the others live; held are %q", resources, held)
			}
			return ""
		})
	}
	awaitExactly()
	v.stopExporter()
	v.launchExporter()
	awaitExactly()
}

// TestRenamedMemberHoldsItsType renames the protected member of a type that is being watched. No value of the new member is
// emitted before the type is held, while others go on; a restart holds the same; a corrected path releases the type, with
// what was written meanwhile.
func TestRenamedMemberHoldsItsType(t *testing.T) {
	t.Parallel()
	v := newVault(t, "renamed.kubecdc.io", true, rule{"select": []string{"configmaps"}})
	v.store("one", "token")
	v.startExporter()
	v.awaitMasked("one", "token")

	v.rename("tokens", "name")
	v.store("two", "tokens")
	v.awaitHeld("two", `resources[0].redactPaths[0]: no selected type has "spec.token", did you mean "spec.tokens"?`)
	v.requireNoError(v.cluster.Create(t.Context(), workload.ConfigMaps, v.name, "free"))
	v.awaitEmitted(workload.ConfigMaps, v.name, "free", "added")
	v.requireEqualAfterRestart("vaults." + v.definition.Group)
	v.store("three", "tokens")
	v.setRules(v.protect("tokens"), rule{"select": []string{"configmaps"}})
	v.awaitMasked("three", "tokens")
	v.awaitPage("/readyz", http.StatusOK)
}

// TestMendedDefinitionReleasesItsType takes the protected member out of a definition and back, more than once, while both
// members are written all the time. Everything stored in the protected member arrives, and no value of the other one.
func TestMendedDefinitionReleasesItsType(t *testing.T) {
	t.Parallel()
	v := newVault(t, "mended.kubecdc.io", true)
	v.store("first", "token")
	v.startExporter()
	v.awaitMasked("first", "token")
	for round := range 3 {
		held, free := fmt.Sprintf("held-%d", round), fmt.Sprintf("free-%d", round)
		v.rename("credential")
		v.store(held, "credential")
		v.rename("token", "name")
		v.store(free, "token")
		v.awaitMasked(free, "token")
	}
	v.rename("credential")
	v.store("last", "credential")
	v.awaitHeld("last")
	v.rename("token", "name")
	v.store("mended", "token")
	v.awaitMasked("mended", "token")
	v.awaitPage("/readyz", http.StatusOK)
}

// TestOtherVersionHoldsItsType adds a version without the protected member, which a restart would watch, and then stops
// serving the version that has it.
func TestOtherVersionHoldsItsType(t *testing.T) {
	t.Parallel()
	v := newVault(t, "versions.kubecdc.io", true)
	v.store("one", "token")
	v.startExporter()
	v.awaitMasked("one", "token")
	v.edit(func(d *workload.Definition) {
		d.Versions = []string{"v2", "v1"}
		d.Schemas = map[string]map[string]any{"v2": membersSchema("credential")}
	})
	v.awaitHeld("one", `resources[0].redactPaths[0]: no selected type has "spec.token"`)
	v.requireEqualAfterRestart("vaults." + v.definition.Group)
	v.edit(func(d *workload.Definition) { d.Unserved = []string{"v1"} })
	v.kind = customKind(v.definition.Group, "v2", "vaults", "Vault")
	v.store("two", "credential")
	v.awaitHeld("two")
	v.requireEqualAfterRestart("vaults." + v.definition.Group)
	v.setRules(v.protect("credential"))
	v.store("three", "credential")
	v.awaitMasked("three", "credential")
}

// TestEditHoldsTheTypesOfOneRule has two rules. An edit of one type holds both types of its rule, because a path of the rule
// matches neither, and none of the other rule; a schema that takes any content releases them.
func TestEditHoldsTheTypesOfOneRule(t *testing.T) {
	t.Parallel()
	v := newVault(t, "several.kubecdc.io", true)
	v.setRules(
		rule{"select": []string{"vaults." + v.definition.Group, "configmaps"}, "redactPaths": []string{"spec.token", "data.secret"}},
		rule{"select": []string{"services"}, "redactPaths": []string{"spec.clusterIP"}},
	)
	v.store("one", "token")
	v.startExporter()
	v.awaitMasked("one", "token")
	v.rename("credential")
	v.awaitHeld("one")
	v.requireEqualAfterRestart("vaults."+v.definition.Group, "configmaps")
	v.requireNoError(v.cluster.Create(t.Context(), workload.ConfigMaps, v.name, "kept"))
	v.edit(func(d *workload.Definition) { d.Schema = nil })
	v.awaitCondition(func() string {
		for _, r := range v.readRecords() {
			if r.Name == "kept" {
				return ""
			}
		}
		return "what was written while its type was held"
	})
}

// TestEditIsReportedWithoutStrict has the condition of a path from the edit that makes it match nothing to the edit that
// mends it.
func TestEditIsReportedWithoutStrict(t *testing.T) {
	t.Parallel()
	v := newVault(t, "lenient.kubecdc.io", false)
	v.startExporter()
	v.rename("tokens")
	v.awaitPage("/readyz", http.StatusOK, "RedactionUnmatched", `did you mean "spec.tokens"?`)
	v.rename("token")
	v.awaitCondition(func() string {
		if _, text := v.getPage("/readyz"); strings.Contains(text, "RedactionUnmatched") {
			return "the end of the condition"
		}
		return ""
	})
}

// TestUnreadableDefinitionHoldsNewConnections lets a definition, and the OpenAPI documents, hang. Open watches go on,
// because the API server ends a watch when the definition is edited. After the connections are cut nothing is emitted until
// the definitions can be read; then nothing is missing.
func TestUnreadableDefinitionHoldsNewConnections(t *testing.T) {
	t.Parallel()
	v := newVault(t, "unread.kubecdc.io", true)
	gateway, kubeconfig := v.newGateway(t)
	v.requireNoError(v.exporter.Configure(func(settings *exporter.Settings) {
		settings.Kubeconfig = kubeconfig
		settings.Resources = []rule{v.protect("token"), {"select": []string{"services"}, "redactPaths": []string{"spec.clusterIP"}}}
	}))
	v.store("one", "token")
	v.startExporter()
	v.awaitMasked("one", "token")
	heal := gateway.Fault(func(r proxy.Request) bool {
		return r.Resource == "customresourcedefinitions" || strings.HasPrefix(r.Path, "/openapi/")
	}, gateway.Hang)
	v.store("two", "token")
	v.awaitMasked("two", "token")
	gateway.Cut()
	v.awaitHeld("one", "cannot be read")
	v.awaitPage("/metrics", http.StatusOK, `kubecdc_resource_state{resource="services",state="waiting"} 1`)
	v.requireNoError(v.cluster.Create(t.Context(), workload.Services, v.name, "kept"))
	heal()
	v.store("three", "token")
	v.awaitMasked("three", "token")
	v.awaitEmitted(workload.Services, v.name, "kept", "added")
	v.awaitPage("/readyz", http.StatusOK)
}
