package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/require"
)

// cascadesEnv enables the test with a kube-controller-manager, whose build takes minutes.
const cascadesEnv = "KUBECDC_E2E_CASCADES"

// controllerUser is the user name of a controller.
func controllerUser(name string) string { return "system:serviceaccount:kube-system:" + name }

// possibleAuthors returns every possible author of a change of a workload; any other is wrong. The first writer creates, the
// second scales, the third and the fourth delete, and the fifth deletes the namespace.
func possibleAuthors(c map[string]any) []string {
	deployments, replicaSets := controllerUser("deployment-controller"), controllerUser("replicaset-controller")
	collector, namespaces := controllerUser("generic-garbage-collector"), controllerUser("namespace-controller")
	if strings.HasPrefix(fmt.Sprint(c["name"]), theEnd) {
		return nil
	}
	switch fmt.Sprint(c["type"], " ", c["resource"]) {
	case "added deployments":
		return []string{writer(0)}
	case "updated deployments":
		return []string{writer(1), writer(2), writer(3), deployments}
	case "deleted deployments":
		return []string{writer(2), collector, namespaces}
	case "added replicasets":
		return []string{deployments}
	case "updated replicasets":
		return []string{deployments, replicaSets, collector}
	case "deleted replicasets":
		return []string{collector, namespaces, deployments}
	case "added pods":
		return []string{replicaSets}
	case "updated pods", "deleted pods":
		return []string{replicaSets, collector, namespaces}
	}
	return nil
}

// TestCascadeIsAttributed lets a real controller manager roll out, scale and collect what users create, scale and delete.
func TestCascadeIsAttributed(t *testing.T) {
	require.Long(t)
	if os.Getenv(cascadesEnv) == "" {
		t.Skip("NOT TESTED: cascades by a real kube-controller-manager; " + cascadesEnv + "=1 builds it, as make attribution does")
	}
	a := newAudited(t)
	if err := a.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := a.plane.StartControllerManager(t.Context(), "deployment-controller", "replicaset-controller", "garbage-collector-controller",
		"namespace-controller", "serviceaccount-controller")
	if err != nil {
		t.Fatal(err)
	}
	const each = 5
	base := func(space, n int) string {
		return fmt.Sprintf("/apis/apps/v1/namespaces/busy-%d/deployments/d%d", space, n)
	}
	for space := range 2 {
		for n := range each {
			name := fmt.Sprintf("d%d", n)
			a.newUser(0).mustDo(t, "POST", strings.TrimSuffix(base(space, n), "/"+name), `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"`+name+
				`"},"spec":{"replicas":2,"selector":{"matchLabels":{"a":"`+name+`"}},"template":{"metadata":{"labels":{"a":"`+name+
				`"}},"spec":{"containers":[{"name":"c","image":"x"}]}}}}`)
		}
	}
	a.awaitPods(2 * each * 2)
	for n := range each {
		a.newUser(1).mustDo(t, "PATCH", base(0, n)+"/scale", `{"spec":{"replicas":3}}`)
	}
	a.awaitPods(2*each*2 + each)
	for n := range each {
		policy := []string{"Background", "Foreground"}[n%2]
		a.newUser(2+n%2).mustDo(t, "DELETE", base(0, n), `{"apiVersion":"v1","kind":"DeleteOptions","propagationPolicy":"`+policy+`"}`)
	}
	a.newUser(4).mustDo(t, "DELETE", "/api/v1/namespaces/busy-1", "")
	a.awaitPods(0)
	a.awaitSettled()
	a.judgeCascade()
}

// awaitPods waits until the stream has that many pods left.
func (a *audited) awaitPods(n int) {
	a.t.Helper()
	for deadline := time.Now().Add(arriveWithin); ; time.Sleep(lookEvery) {
		there := 0
		for _, c := range a.readRecords() {
			switch fmt.Sprint(c["type"], " ", c["resource"]) {
			case "added pods":
				there++
			case "deleted pods":
				there--
			}
		}
		if there == n {
			return
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("there are %d pods, not %d", there, n)
		}
	}
}

// judgeCascade compares every author with the possible ones.
func (a *audited) judgeCascade() {
	a.t.Helper()
	by, asked := map[any]string{}, 0
	records := a.readRecords()
	for _, c := range records {
		if c["type"] == "attributed" {
			who, _ := c["by"].(map[string]any)
			by[c["of"]], _ = who["user"].(string)
			if c["requestedBy"] != nil {
				asked++
			}
		}
	}
	changes, named := 0, 0
	unnamed := map[string]int{}
	for _, c := range records {
		allowed := possibleAuthors(c)
		if allowed == nil {
			continue
		}
		changes++
		switch name := by[c["id"]]; {
		case name == "":
			unnamed[fmt.Sprint(c["type"], " ", c["resource"], " ", c["class"])]++
		case !slices.Contains(allowed, name):
			a.t.Errorf("%v %v has author %s, and only %v are possible", c["resource"], c["id"], name, allowed)
			fallthrough
		default:
			named++
		}
	}
	a.t.Logf("%d changes, %d named (%.2f %%), %d deletes that others had asked for; not named: %v", changes, named, 100*float64(named)/float64(changes), asked, unnamed)
	if float64(named) < namesAtLeast*float64(changes) || asked == 0 {
		a.t.Error("too few authors")
	}
}
