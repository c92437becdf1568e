package source

import (
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// TestAHangingAPIServerIsNoticedWithoutAChange stops a real API server: its connections stay open, and an idle watch is
// silent anyway. client-go alone takes 45 seconds to check a connection.
func TestAHangingAPIServerIsNoticedWithoutAChange(t *testing.T) {
	p := startControlPlane(t)
	st, f := newStore(), newFakeAPI(t) // startSource needs a fake
	s, _, stop := startSource(t, f, st, p.sourceConfig("secrets"))
	defer stop()
	awaitState(t, st, s, Live)
	server := p.APIServerProcess()
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Resume() })
	stopped := time.Now()
	awaitState(t, st, s, Unreachable)
	if took := time.Since(stopped); took > 40*time.Second {
		t.Errorf("it took %v, as with the bounds of client-go", took)
	} else {
		t.Logf("it took %v", took)
	}
	failing := condition.Summarize(s.Conditions())
	if s.Ready() || len(failing) != 1 || failing[0].Code != condition.APIServerUnreachable || failing[0].Deadline.IsZero() {
		t.Errorf("ready %v, %+v", s.Ready(), failing)
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	awaitState(t, st, s, Live)
	if relists := s.Status()[0].Relists; relists != 0 {
		t.Errorf("%d relists", relists)
	}
}
