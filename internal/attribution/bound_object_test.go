package attribution_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution"
	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// appendPod journals a change of the pod with a name, which was created an hour ago by the clock of its API server.
func (p *process) appendPod(typ event.Type, name, uid, version, previous, more string) {
	p.t.Helper()
	c := &event.Change{
		Type: typ, Cluster: "c", Resource: pods, Namespace: "n", Name: name, UID: uid, ResourceVersion: version, Previous: previous, ObservedAt: time.Now(),
		After: fmt.Appendf(nil, `{"metadata":{"creationTimestamp":%q}%s}`, time.Now().Add(-time.Hour).UTC().Format(time.RFC3339), more),
	}
	if err := p.journal.Append(p.t.Context(), event.Observation{Resource: pods, Scope: "pods", Changes: []*event.Change{c}}); err != nil {
		p.t.Fatal(err)
	}
}

const evictedStatus = `,"status":{"conditions":[{"type":"DisruptionTarget","reason":"EvictionByEvictionAPI"}]}`

// TestEvictionByNameEndsWithItsPod restarts the process before the first pod is deleted, and after. The clock of the API
// server that creates the pods is an hour behind, so that times prove nothing.
func TestEvictionByNameEndsWithItsPod(t *testing.T) {
	dir, limits := t.TempDir(), attribution.Limits{Window: time.Hour, Settle: time.Second, Bytes: 1 << 20}
	p := startProcess(t, dir, limits)
	p.appendPod(event.Added, "web", "u1", "1", "", "")
	received := time.Now()
	p.appendPod(event.Updated, "web", "u1", "2", "1", evictedStatus)
	if err := p.StoreEvents(t.Context(), "origin", []audit.Event{{
		ID: "e", Stage: audit.Complete, Verb: "create", Code: 201, Outcome: audit.Stored, User: "ann", Resource: "pods", Subresource: "eviction",
		Namespace: "n", Name: "web", Received: audit.Time(received.UnixNano()), Done: audit.Time(time.Now().UnixNano()),
	}}, "", ""); err != nil {
		t.Fatal(err)
	}
	if by := p.awaitRecord(event.Attributed, 0).Change.Attribution.By.User; by != "ann" {
		t.Errorf("evicted by %s", by)
	}
	p.shutDown()
	p = startProcess(t, dir, limits)
	p.appendPod(event.Added, "web", "u2", "4", "", "")
	if n := p.countEvidence(); n != 1 {
		t.Errorf("%d pieces of evidence", n)
	}
	p.appendPod(event.Updated, "web", "u2", "5", "4", evictedStatus)
	p.appendPod(event.Deleted, "web", "u1", "3", "2", evictedStatus)
	p.storeRequest("ann", "delete", 200, "u1", "3")
	gone := p.awaitRecord(event.Attributed, 0)
	for gone.Change.UID != "u1" || gone.Change.ResourceVersion != "3" {
		gone = p.awaitRecord(event.Attributed, gone.Offset)
		if gone.Change.UID == "u2" {
			t.Fatalf("%s is named for the eviction of the next pod", gone.Change.Attribution.By.User)
		}
	}
	p.awaitNoEvidence()
	p.shutDown()
	limits.Settle, limits.Window = 0, time.Millisecond
	p = startProcess(t, dir, limits)
	defer p.shutDown()
	p.awaitStats("a change is left without an event", func(s attribution.Stats) bool { return s.Unresolved[attribution.NoEvent] > 0 })
	if s := p.Stats(); s.Attributed != 0 {
		t.Errorf("%+v", s)
	}
}
