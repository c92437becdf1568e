package admin

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

func standby() Snapshot {
	return Snapshot{Conditions: []condition.Status{{Component: "replica"}}, Replica: &ReplicaStatus{Identity: "exporter-1", Role: RoleStandby, Since: time.Now(), Holder: "exporter-0", Known: 7}}
}

func TestAStandbyIsReadyAndNamesTheActiveReplica(t *testing.T) {
	s := standby()
	ready := get(t, s, "/readyz?verbose")
	if ready.Code != http.StatusOK || !strings.Contains(ready.Body.String(), "[+]replica ok: standby, exporter-0 is active\n") {
		t.Errorf("%d %s", ready.Code, ready.Body)
	}
	metrics := get(t, s, "/metrics").Body.String()
	for _, line := range []string{"kubecdc_active 0", "kubecdc_ready 1", "kubecdc_state_known_objects 7", "kubecdc_takeovers_total 0"} {
		if !strings.Contains(metrics, "\n"+line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
}

// TestActiveWithoutProofIsNotCounted has an active exporter that is cut off from the API server: another one may be active.
func TestActiveWithoutProofIsNotCounted(t *testing.T) {
	for unproven, line := range map[bool]string{false: "kubecdc_active 1", true: "kubecdc_active 0"} {
		s := sample()
		s.Replica = &ReplicaStatus{Role: RoleActive, Unproven: unproven}
		if metrics := get(t, s, "/metrics").Body.String(); !strings.Contains(metrics, "\n"+line+"\n") {
			t.Errorf("unproven %v: no line %q", unproven, line)
		}
	}
}

func TestThePageOfAStandbyShowsNoEmptyPipeline(t *testing.T) {
	body := get(t, standby(), "/").Body.String()
	if !strings.Contains(body, "This process is a standby") || strings.Contains(body, "Pipeline") || strings.Contains(body, "Resource</th>") {
		t.Error(body)
	}
	works := sample()
	works.Replica = &ReplicaStatus{Role: RoleActive}
	if body := get(t, works, "/").Body.String(); strings.Contains(body, "is a standby") || !strings.Contains(body, "Pipeline") {
		t.Error(body)
	}
}

func TestWithoutAReplicatedStateThereIsNoRole(t *testing.T) {
	s := Snapshot{}
	metrics := get(t, s, "/metrics").Body.String()
	if !strings.Contains(metrics, "\nkubecdc_active 1\n") || strings.Contains(metrics, "kubecdc_takeover") || strings.Contains(metrics, "kubecdc_state") {
		t.Errorf("metrics: %s", metrics)
	}
	if ready := get(t, s, "/readyz?verbose").Body.String(); strings.Contains(ready, "replica") {
		t.Error(ready)
	}
}
