package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// holdRoles makes the route of Roles wait for authors, and (re)starts the exporter.
func (a *audited) holdRoles(wait string) {
	a.t.Helper()
	if err := a.exporter.Stop(); err != nil {
		a.t.Fatal(err)
	}
	err := a.exporter.Configure(func(s *exporter.Settings) {
		s.Routes = []map[string]any{{"select": []string{"roles.rbac.authorization.k8s.io"}, "awaitAuthor": wait, "to": []any{map[string]any{"sink": "file"}}}}
	})
	if err == nil {
		err = a.exporter.Start(a.t.Context())
	}
	if err != nil {
		a.t.Fatal(err)
	}
}

// createRole has a user create a Role, and returns its name.
func (a *audited) createRole(user, n int) string {
	a.t.Helper()
	name := fmt.Sprint("role-", n)
	a.newUser(user).mustDo(a.t, "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/busy-0/roles",
		`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"`+name+`"},"rules":[]}`)
	return name
}

// awaitRecords waits for this many records of an object.
func (a *audited) awaitRecords(name string, n int) (all []map[string]any) {
	a.t.Helper()
	for deadline := time.Now().Add(arriveWithin); ; await.Pause(a.t, lookEvery) {
		all = nil
		for _, c := range a.readRecords() {
			if c["name"] == name {
				all = append(all, c)
			}
		}
		if len(all) >= n {
			return all
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("%d records of %s, want %d: %v", len(all), name, n, all)
		}
	}
}

// TestAChangeOfRBACComesWithItsAuthor in one record, where a route waits for that. When the time is over it comes without,
// and the author follows. While no audit events arrive it comes without, too. Other changes do not wait. A kill while it
// waits neither loses nor repeats it.
func TestAChangeOfRBACComesWithItsAuthor(t *testing.T) {
	relay := &auditRelay{mangle: passAll}
	a := newAudited(t, relay.connectTo)
	a.holdRoles(concludesIn)
	role := a.createRole(1, 1)
	named := a.awaitRecords(role, 1)[0]
	if by, _ := named["by"].(map[string]any); named["type"] != "added" || by["user"] != writer(1) || named["certainty"] != "exact" {
		t.Errorf("%v", named)
	}

	relay.setMangle(func(*auditRelay, []json.RawMessage) []json.RawMessage { return nil })
	waiting := a.createRole(2, 2)
	a.newUser(2).mustDo(t, "POST", "/api/v1/namespaces/busy-0/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"free"}}`)
	a.awaitRecords("free", 1)
	if n := a.sumMetric(held); n != 1 {
		t.Errorf("%v records are held, want 1", n)
	}
	if err := a.exporter.Kill(); err != nil {
		t.Fatal(err)
	}
	a.holdRoles("1s") // what waits already keeps its time, which begins again
	late := a.createRole(3, 3)
	if by := a.awaitRecords(late, 1)[0]["by"]; fmt.Sprint(by) != "map[unknown:wait]" {
		t.Errorf("%v", by)
	}

	relay.setMangle(passAll)
	a.holdRoles("1ms")
	relay.setMangle(func(l *auditRelay, all []json.RawMessage) []json.RawMessage { // so that its event is not there before it
		l.held = append(l.held, all...)
		return nil
	})
	role = a.createRole(4, 4)
	a.awaitRecords(role, 1)
	relay.setMangle(passAll)
	a.newUser(2).mustDo(t, "POST", "/api/v1/namespaces/busy-0/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"after"}}`)
	followed := a.awaitRecords(role, 2)
	by, _ := followed[1]["by"].(map[string]any)
	if fmt.Sprint(followed[0]["by"]) != "map[unknown:wait]" || followed[1]["type"] != "attributed" || by["user"] != writer(4) {
		t.Errorf("%v", followed)
	}
	// The first Role may be there twice: a kill right after a file has taken a change is before that is stored.
	for name, want := range map[string]int{waiting: 1, late: 1} {
		if all := a.awaitRecords(name, want); len(all) != want {
			t.Errorf("%d records of %s, want %d: %v", len(all), name, want, all)
		}
	}
}

// TestAFailoverWhileChangesWaitForAuthors loses, repeats and reorders nothing: the active one of two is killed with its
// volume while changes wait, and the other one has only the state.
func TestAFailoverWhileChangesWaitForAuthors(t *testing.T) {
	require.Long(t)
	kinds := []workload.Kind{workload.ConfigMaps, workload.Deployments}
	dir := t.TempDir()
	certificates.New(t).IssueTo(t, dir)
	forEachStateBus(t, kinds, func(p *replicas, _ stateBus) {
		p.start()
		for range 3 {
			load := p.run(workload.Plan{Objects: 1 << 30, Updates: 3, Rate: failoverRate}, kinds)
			killed := p.active()
			p.awaitHeld(killed)
			p.kill(killed)
			p.down[killed] = true
			next := p.active()
			p.awaitHeld(next)
			load.Stop()
			p.awaitAll()
			p.awaitCovered(next)
			p.must(killed.Start(p.t.Context()))
			p.down[killed] = false
		}
		p.judge(oracle.Rules{})
	}, func(s *exporter.Settings) {
		s.Audit = map[string]any{"countersEvery": "0s", "webhook": map[string]any{ // no audit event comes
			"listen": "127.0.0.1:0", "cert": filepath.Join(dir, "cert.pem"), "key": filepath.Join(dir, "key.pem"),
			"clientCA": filepath.Join(dir, "ca.pem"), "clients": []string{apiServer},
		}}
		s.Routes = []map[string]any{
			{"select": []string{"configmaps"}, "awaitAuthor": "2s", "to": []any{map[string]any{"sink": "kafka"}, map[string]any{"sink": "nats"}}},
			{"select": []string{"deployments.apps"}, "to": []any{map[string]any{"sink": "kafka"}, map[string]any{"sink": "nats"}}},
		}
	})
}

// held is the metric of the records that wait for their authors.
const held = "kubecdc_attribution_held_records"

// awaitHeld waits until changes wait for their authors.
func (p *replicas) awaitHeld(e *exporter.Exporter) {
	p.t.Helper()
	for deadline := time.Now().Add(arriveWithin); series(metricsOf(p.t, e), held)[held] == 0; await.Pause(p.t, lookEvery) {
		if time.Now().After(deadline) {
			p.t.Fatalf("nothing waits for an author after %v", arriveWithin)
		}
	}
}
