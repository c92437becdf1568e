package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
)

// TestChecklistReportsWhatIsWrong asks real servers about a configuration: topics and a stream that a start would create,
// then what is there, then topics without a creator and a bus that is away.
func TestChecklistReportsWhatIsWrong(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Services}
	s := newFixture(t, kinds)
	checklist := func(code int, lines ...string) {
		t.Helper()
		s.awaitSaid(func() string {
			got, out := s.command("validate", "--online", "--config", s.exporter.Config())
			if got != code {
				return fmt.Sprintf("exit code %d, want %d:\n%s", got, code, out)
			}
			all := strings.Split(out, "\n")
			for _, line := range lines {
				if !slices.ContainsFunc(all, func(l string) bool { return strings.HasPrefix(l, line) }) {
					return fmt.Sprintf("no line begins with %q:\n%s", line, out)
				}
			}
			return ""
		})
	}
	topic := s.name + ".configmaps"
	checklist(0, "[+]cluster at ", "[+]resources[0]: 2 selections", "[!]sink/kafka/"+topic+" does not exist yet", "[!]sink/nats does not exist yet")
	s.must(s.exporter.Start(t.Context()))
	s.must(s.load(4, kinds).Wait())
	s.awaitAll()
	checklist(0, "[+]sink/kafka/"+topic+" ok", "[+]sink/nats ok")
	s.must(s.exporter.Stop())
	s.must(s.exporter.Configure(func(settings *exporter.Settings) {
		settings.Resources = []map[string]any{{
			"select":     []string{"configmaps", "services", "gadgets.example.com"},
			"namespaces": map[string]any{"include": []string{s.name, s.name + "-never"}},
		}}
		sinks := settings.WholeSinks()
		sinks[0]["kafka"] = map[string]any{"brokers": settings.KafkaBrokers, "topic": s.name + ".none.{resource}"}
		sinks[1]["nats"].(map[string]any)["url"] = "nats://127.0.0.1:1"
		settings.Sinks = sinks
	}))
	checklist(3, "[!]namespace/"+s.name+"-never there is no such namespace", "[!]resources[0].select[2] gadgets.example.com: ", "[-]sink/kafka/"+s.name+".none.configmaps topic", "[-]sink/nats ")
}

// awaitSaid waits until a command prints the expected text. It prints what is true: that a server does not answer, where it
// takes a busy one too long.
func (s *fixture) awaitSaid(wrong func() string) {
	s.t.Helper()
	for deadline := time.Now().Add(arriveWithin); ; await.Pause(s.t, lookEvery) {
		complaint := wrong()
		if complaint == "" {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatal(complaint)
		}
	}
}
