package app

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/test/parts/ports"
)

// An empty journal says nothing about the past, and a bus that is away does not either: what may be lost is marked.
func TestAPastThatCannotBeKnownIsMarkedAsLost(t *testing.T) {
	t.Parallel()
	free, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(writeTemp(t, "config.yaml", fmt.Sprintf(`
resources: [{select: [pods]}]
sinks: [{name: main, nats: {url: "nats://%s", stream: k8s, subject: "k8s.{name}"}}]
journal: {dir: /tmp}
`, ports.Address(free[0]))))
	if err != nil {
		t.Fatal(err)
	}
	j, stop := runJournal(t, t.TempDir(), "main")
	defer stop()
	if err := recordForgottenPast(t.Context(), cfg, j, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if reason, err := j.ResetReason(); reason != unknownPast || err != nil {
		t.Errorf("each resource begins with a gap because of %q (%v), want %q", reason, err, unknownPast)
	}
}
