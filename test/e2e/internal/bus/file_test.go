package bus

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
)

// TestTornLineIsNotRead cuts a torn line off, as the exporter does at its next start, and writes others there.
func TestTornLineIsNotRead(t *testing.T) {
	first, second, third := line("1"), line("200000000"), line("3")
	path := filepath.Join(t.TempDir(), "changes")
	f := NewFile(path)
	defer f.Close()
	for _, step := range []struct{ content, read string }{
		{first + third[:len(third)/2], "1"},
		{first, ""},
		{first + second + third, "2000000003"},
		{first + second + third, ""},
	} {
		if err := os.WriteFile(path, []byte(step.content), 0o600); err != nil {
			t.Fatal(err)
		}
		records, err := f.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, r := range records {
			got += r.ResourceVersion
		}
		if got != step.read {
			t.Errorf("of %q the lines %q were read, want %q", step.content, got, step.read)
		}
	}
}

func line(resourceVersion string) string {
	return string(format.AppendJSON(nil, &event.Change{
		Type: event.Added, Cluster: "c", Resource: event.Resource{Version: "v1", Resource: "things", Kind: "Thing"}, Name: "a", UID: "u",
		ResourceVersion: resourceVersion, ObservedAt: time.Unix(1, 0), Delta: event.DeltaAdded, After: []byte(`{}`),
	})) + "\n"
}
