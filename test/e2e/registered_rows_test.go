package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// TestRowsWaitForTheirRegistryAlone: while a registry is away its sink says so and waits, and the others go on; nothing is
// lost, and what the registry has once said outlives a restart without it.
func TestRowsWaitForTheirRegistryAlone(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	registry := srfake.New()
	t.Cleanup(registry.Close)
	away := func() {
		registry.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		})
	}
	s := newFixture(t, kinds, func(settings *exporter.Settings) {
		prefix := settings.TopicPrefix
		settings.Sinks = settings.WholeSinks()
		settings.TopicPrefix, settings.Kafka = prefix+"-rows", map[string]any{"registry": map[string]any{
			"url": registry.URL(), "username": "exporter", "password": "hunter2"}}
		given := *settings
		given.Sinks = nil
		rows := given.WholeSinks()[0]
		rows["name"], rows["format"], rows["schema"] = "rows", "debezium", "registry"
		settings.Sinks = append(settings.Sinks, rows)
		settings.TopicPrefix, settings.Kafka = prefix, nil
	})
	topic := s.name + "-rows.configmaps"
	away()
	s.must(s.exporter.Launch(t.Context()))
	s.must(s.load(20, kinds).Wait())
	s.awaitAll()
	s.awaitAnswer("/readyz", http.StatusServiceUnavailable, "[-]sink/rows SinkBusy: the schema registry: it answers 503")
	s.awaitSaid(func() string {
		code, out := s.command("validate", "--online", "--config", s.exporter.Config())
		if code != 3 || !strings.Contains(out, "the schema registry: it answers 503") {
			return fmt.Sprintf("validate --online: %d\n%s", code, out)
		}
		return ""
	})

	registry.ClearInterceptors()
	s.awaitAnswer("/readyz", http.StatusOK, "")
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "there-now"))
	s.awaitRows(topic, registry, "there-now")
	if code, v, stderr := s.verify(s.exporter.Config(), "rows", "--stream-only"); code == 4 || v.Records == 0 {
		t.Errorf("verify --stream-only: exit code %d, %+v\n%s", code, v, stderr)
	}

	s.must(s.exporter.Stop())
	away()
	s.must(s.exporter.Start(t.Context()))
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "behind-it"))
	s.awaitRows(topic, registry, "behind-it")
	log, err := os.ReadFile(s.exporter.Log())
	s.must(err)
	if bytes.Contains(log, []byte("hunter2")) || !bytes.Contains(log, []byte("the schema registry: it answers 503")) {
		t.Errorf("the log:\n%s", log)
	}
}

// awaitRows waits until a topic has a row of an object, and one of each change that the other topic has. Each begins with
// the ID of its schema.
func (s *fixture) awaitRows(topic string, registry *srfake.Registry, name string) {
	s.t.Helper()
	s.awaitSaid(func() string {
		rows, missing := make(map[string]bool), "of "+name
		for _, r := range slices.Concat(s.readTopic(topic)...) {
			for part, text := range map[string][]byte{"-key": r.key, "-value": r.value} {
				schema, _ := registry.GetSchema(topic+part, 1)
				if start := binary.BigEndian.AppendUint32([]byte{0}, uint32(schema.ID)); !bytes.HasPrefix(text, start) {
					s.t.Fatalf("%q does not begin as %q", text, start)
				}
			}
			stored := r.identify().stored
			if rows[stored.ID] = true; stored.EmittedRecord.Key == s.name+"/"+name {
				missing = ""
			}
		}
		for _, r := range slices.Concat(s.readTopic(s.name + ".configmaps")...) {
			if stored := r.identify().stored; !stored.Type.IsControl() && !rows[stored.ID] {
				missing = stored.ID
			}
		}
		if missing != "" {
			return fmt.Sprintf("%d rows, and none %s", len(rows), missing)
		}
		return ""
	})
}
