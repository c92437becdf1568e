package tap

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/test/parts/ports"
)

// screen holds the output of a terminal. Safe for concurrent use.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// await waits until a text is seen.
func (s *screen) await(t *testing.T, text string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !strings.Contains(s.String(), text) {
		if time.Now().After(deadline) {
			t.Fatalf("%q is not seen, but\n%s", text, s.String())
		}
		time.Sleep(time.Millisecond)
	}
}

// freeAddress returns an address that no other test takes while no server listens on it.
func freeAddress(t *testing.T) string {
	t.Helper()
	free, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	return ports.Address(free[0])
}

// exporterAt runs an admin server and returns it and what stops it.
func exporterAt(t *testing.T, address string) (server *admin.Server, stop func()) {
	t.Helper()
	server = admin.New(admin.Options{Listen: address, Snapshot: func() admin.Snapshot { return admin.Snapshot{} }})
	if err := server.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	return server, sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func observe(s *admin.Server, c *event.Change) {
	write := func(b []byte) []byte { return format.AppendFacts(b, c) }
	s.ObserveChange(write, write)
}

func TestARunningExporterIsWatchedThroughItsRestart(t *testing.T) {
	address := freeAddress(t)
	server, stop := exporterAt(t, address)
	defer stop()
	var out, notes screen
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	options := AdminOptions{
		Address: address, Filter: `change.name != "quiet"`, Notes: &notes,
		Takes: func(c *event.Change) bool { return c.Resource.Resource == "deployments" },
	}
	go func() { done <- Admin(ctx, options, NewPrinter(&out, Diff, false, false)) }()
	notes.await(t, "watching the exporter")

	change := updated("", "")
	change.Changed = []byte(`["/spec/replicas"]`)
	other, quiet := *change, *change
	other.Resource.Resource, quiet.Name = "pods", "quiet"
	for _, c := range []*event.Change{&other, &quiet, change} {
		observe(server, c)
	}
	out.await(t, "~ deployments.apps shop/web  spec, by kubectl-edit\n    spec.replicas\n")
	if got := out.String(); strings.Contains(got, "pods") || strings.Contains(got, "quiet") {
		t.Errorf("it shows what was not asked for:\n%s", got)
	}

	stop()
	notes.await(t, "! the exporter is away")
	server, stop = exporterAt(t, address)
	defer stop()
	notes.await(t, "the exporter is back")
	change.Name = "later"
	observe(server, change)
	out.await(t, "shop/later")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAnExporterThatIsNotThereIsNamed(t *testing.T) {
	address := freeAddress(t)
	err := Admin(t.Context(), AdminOptions{Address: address, Notes: &screen{}}, NewPrinter(&screen{}, Diff, false, false))
	if code, _ := exit.CodeOf(err); code != exit.Environment || !strings.Contains(err.Error(), address) {
		t.Errorf("it ends with %v", err)
	}
}
