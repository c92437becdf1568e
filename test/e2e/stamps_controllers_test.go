package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// TestStampsDoNotKeepControllersFromTheirWork lets a real controller manager roll Deployments out and back, with the policy
// of stamps and without it. It copies the annotations of a Deployment to its ReplicaSet, and does nothing else while they
// differ. The copies name no author, and are one write for each of the Deployment.
func TestStampsDoNotKeepControllersFromTheirWork(t *testing.T) {
	require.Long(t)
	if os.Getenv(cascadesEnv) == "" {
		t.Skip("NOT TESTED: stamps beside a real kube-controller-manager; " + cascadesEnv + "=1 builds it, as make attribution does")
	}
	a := newStamped(t, false)
	if err := a.plane.StartControllerManager(t.Context(), "deployment-controller", "replicaset-controller", "serviceaccount-controller"); err != nil {
		t.Fatal(err)
	}
	a.rollOut("busy-0")
	with := a.countVersions("busy-0")
	a.awaitSettled()
	a.verifyOnlyUsersAreNamed()

	a.newUser(0).mustDo(t, http.MethodDelete, stampBinding, "")
	a.awaitNothingStamped()
	a.rollOut("busy-1")
	without := a.countVersions("busy-1")
	t.Logf("versions with stamps %v; without %v", with, without)
	if with["replicasets"] > without["replicasets"]+rolledOutDeployments*(furtherEdits+2) {
		t.Error("there are more copies of stamps than writes of Deployments")
	}
}

// verifyOnlyUsersAreNamed verifies that Deployments have the author that wrote them, and ReplicaSets none.
func (a *audited) verifyOnlyUsersAreNamed() {
	a.t.Helper()
	records, named := a.readRecords(), 0
	by := a.authorsByID(records)
	for _, c := range records {
		id, _ := c["id"].(string)
		switch name := by[id]; {
		case name == "" || c["type"] == "attributed":
		case c["resource"] == "replicasets" || name != writer(1) && c["resource"] == "deployments":
			a.t.Errorf("%v %s has author %s", c["resource"], id, name)
		default:
			named++
		}
	}
	if named < rolledOutDeployments*furtherEdits {
		a.t.Errorf("only %d changes have an author", named)
	}
}

// awaitNothingStamped waits until the API server has noticed that the binding is gone.
func (a *audited) awaitNothingStamped() {
	a.t.Helper()
	u, deadline := a.newUser(0), time.Now().Add(arriveWithin)
	for i := 0; u.createConfigMap(a.t, fmt.Sprintf("probe-%d", i), "").Metadata.Annotations[stampAnnotation] != ""; i++ {
		if time.Now().After(deadline) {
			a.t.Fatal("objects are still stamped")
		}
		await.Pause(a.t, lookEvery)
	}
}

const (
	rolledOutDeployments = 3
	furtherEdits         = 5
)

// rollOut creates Deployments in a namespace, rolls them out and back, and edits them, each after the controller has noticed
// the one before.
func (a *audited) rollOut(namespace string) {
	a.t.Helper()
	u, all := a.newUser(1), fmt.Sprintf(attributedKinds[2].path, namespace)
	for n := range rolledOutDeployments {
		name := fmt.Sprintf("d%d", n)
		u.mustDo(a.t, http.MethodPost, all, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"`+name+`"},"spec":{"replicas":0,`+
			`"selector":{"matchLabels":{"a":"`+name+`"}},"template":{"metadata":{"labels":{"a":"`+name+`"}},"spec":{"containers":[{"name":"c","image":"first"}]}}}}`)
		a.awaitRevision(all+"/"+name, "1")
		for i, image := range []string{"second", "first"} {
			u.mustDo(a.t, http.MethodPatch, all+"/"+name, `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"`+image+`"}]}}}}`)
			a.awaitRevision(all+"/"+name, fmt.Sprint(i+2))
		}
		for i := range furtherEdits {
			u.mustDo(a.t, http.MethodPatch, all+"/"+name, fmt.Sprintf(`{"spec":{"revisionHistoryLimit":%d}}`, i+20))
			a.awaitRevision(all+"/"+name, "3")
		}
	}
}

// awaitRevision waits until the controller has noticed the newest write of a Deployment, and its revision is this one.
func (a *audited) awaitRevision(path, revision string) {
	a.t.Helper()
	for deadline := time.Now().Add(arriveWithin / 4); ; await.Pause(a.t, lookEvery) {
		h := a.newUser(0).mustDo(a.t, http.MethodGet, path, "")
		var d struct {
			Metadata struct{ Generation int }
			Status   struct{ ObservedGeneration int }
		}
		if err := json.Unmarshal(h.text, &d); err != nil {
			a.t.Fatal(err)
		}
		got := h.Metadata.Annotations["deployment.kubernetes.io/revision"]
		if got == revision && d.Status.ObservedGeneration == d.Metadata.Generation {
			return
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("%s has revision %q, want %s; %s", path, got, revision, h.text)
		}
	}
}

// countVersions counts the versions of objects in a namespace, by resource, in the answers that the API server has logged.
func (a *audited) countVersions(namespace string) map[string]int {
	a.t.Helper()
	versions, seen := map[string]int{}, map[string]bool{}
	for line := range bytes.Lines(must(os.ReadFile(a.logPath()))) {
		var e acceptedEvent
		if json.Unmarshal(line, &e) != nil || !strings.Contains(string(line), `"namespace":"`+namespace+`"`) {
			continue
		}
		m := e.ResponseObject.Metadata
		if version := m.UID + "@" + m.ResourceVersion; m.UID != "" && !seen[version] {
			seen[version] = true
			versions[e.ObjectRef.Resource]++
		}
	}
	return versions
}
