package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/require"
)

// TestNoOpWriterIsNotNamed lets all users write the same content to one object at once, again and again, while half of the
// audit events are lost. One of them changes it, and the API server signs that. The others find it changed, some of them
// after a conflict. Only the signer may be named.
func TestNoOpWriterIsNotNamed(t *testing.T) {
	require.Long(t)
	const path = "/api/v1/namespaces/busy-0/configmaps/same"
	rounds := max(40, writesOf(t)/50)
	l := &auditRelay{random: rand.New(rand.NewPCG(3, 4)), mangle: passAll}
	a := newAudited(t, l.connectTo)
	if err := a.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.newUser(0).mustDo(t, "POST", strings.TrimSuffix(path, "/same"), `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"same"}}`)
	a.applyPolicy("/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolic", signs,
		`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicyBinding","metadata":{"name":"signs"},"spec":{"policyName":"signs"}}`)
	l.setMangle(loseOneOf(2))
	authors := map[string]string{} // by version
	for round := 0; len(authors) < rounds; round++ {
		var all sync.WaitGroup
		for i := range auditedUsers {
			all.Go(func() {
				a.newUser(i).doRequest(t.Context(), http.MethodPatch, path, fmt.Sprintf(`{"data":{"round":"%d"}}`, round))
			})
		}
		all.Wait()
		h := a.newUser(0).mustDo(t, http.MethodGet, path, "")
		if by := h.Metadata.Annotations["by"]; by != "" { // the policy takes a moment to be active
			authors[h.Metadata.ResourceVersion] = by
		}
	}
	l.awaitDrained(a, "the-last")
	a.awaitSettled()
	named := 0
	for _, c := range a.readRecords() {
		version, _ := c["resourceVersion"].(string)
		if c["type"] != "attributed" || authors[version] == "" {
			continue
		}
		named++
		if by, _ := c["by"].(map[string]any); by["user"] != authors[version] {
			t.Errorf("version %s has author %v, want %s", version, by["user"], authors[version])
		}
	}
	if t.Logf("%d of %d changes named, %v unresolved", named, rounds, a.sumMetric("kubecdc_unresolved_total")); named == 0 || named == rounds {
		t.Error("nothing was lost, or no change has an author")
	}
}

// signs is a mutating policy by which the API server itself records the author of a change.
const signs = `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: signs}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [configmaps]}]
  matchConditions: [{name: changed, expression: "object.?data.?round.orValue('') != oldObject.?data.?round.orValue('')"}]
  mutations:
    - patchType: ApplyConfiguration
      applyConfiguration: {expression: "Object{metadata: Object.metadata{annotations: {'by': request.userInfo.username}}}"}
`
