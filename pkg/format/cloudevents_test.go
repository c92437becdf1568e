package format

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

var update = flag.Bool("update", false, "write the samples of testdata anew; read every one before you commit it")

// samples are one change of each type, as docs/events.md shows them.
func samples() map[string]*event.Change {
	added, updated, deleted, snapshot := sample(), sample(), sample(), sample()
	added.Type, added.Delta, added.Generation = event.Added, event.DeltaAdded, 1
	updated.ResourceVersion = "43"
	deleted.Type, deleted.Delta, deleted.FinalStateUnknown = event.Deleted, event.DeltaDeleted, true
	deleted.Before, deleted.After = deleted.After, nil
	snapshot.Type, snapshot.Delta = event.Snapshot, event.DeltaReplaced
	node := sample()
	node.Resource, node.Namespace, node.Name = event.Resource{Version: "v1", Resource: "nodes", Kind: "Node"}, "", "node-1"
	node.Coalesced, node.Delta, node.After = true, event.DeltaReplaced, []byte(`{"kind":"Node"}`)
	return map[string]*event.Change{
		"added": added, "updated": updated, "deleted": deleted, "snapshot": snapshot, "coalesced-without-namespace": node,
		"gap": {
			Type: event.Gap, Cluster: "prod", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
			ResourceVersion: "9", ObservedAt: added.ObservedAt, Gap: &event.GapInfo{From: "3", To: "9", Reason: `history "expired"`},
		},
	}
}

// binary writes what a binding puts beside each other, one header a line, with the data below.
func binary(c *event.Change) string {
	var b strings.Builder
	for _, a := range Attributes() {
		if value := a.Append(nil, c); len(value) > 0 {
			b.WriteString(a.Name + ": " + string(value) + "\n")
		}
	}
	b.WriteString("content-type: " + CloudEvents.ContentType() + "\n\n")
	b.Write(CloudEvents.AppendValue(nil, c))
	return b.String() + "\n"
}

func TestCloudEventsAreTheDocumentedForm(t *testing.T) {
	for name, c := range samples() {
		for file, got := range map[string]string{
			name + ".binary.txt":      binary(c),
			name + ".structured.json": string(CloudEventsStructured.AppendValue(nil, c)) + "\n",
		} {
			golden := filepath.Join("testdata", "cloudevents", file)
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("%s: got\n%swant\n%s", file, got, want)
			}
		}
	}
}

// TestTheDocumentationShowsTheSamples keeps docs/events.md from telling something else than the code.
func TestTheDocumentationShowsTheSamples(t *testing.T) {
	page, err := os.ReadFile("../../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/cloudevents/*")
	if err != nil || len(files) != 2*len(samples()) {
		t.Fatalf("%d samples for %d changes (%v)", len(files), len(samples()), err)
	}
	for _, file := range []string{"updated.binary.txt", "updated.structured.json", "gap.binary.txt"} {
		want, err := os.ReadFile(filepath.Join("testdata", "cloudevents", file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(page), string(want)) {
			t.Errorf("docs/events.md does not show %s as it is:\n%s", file, want)
		}
	}
}

func TestACloudEventIsNeverEmpty(t *testing.T) {
	for _, f := range []Format{CloudEvents, CloudEventsStructured} {
		if got := f.AppendValue(nil, &event.Change{}); !json.Valid(got) || len(got) < 2 {
			t.Errorf("%v: a change without a body became %q, which Kafka may take for a tombstone", f, got)
		}
	}
}

func TestAttributeNamesAreLegal(t *testing.T) {
	legal := regexp.MustCompile(`^[a-z0-9]{1,20}$`)
	seen := map[string]bool{"datacontenttype": true, "dataschema": true, "data": true, "data_base64": true}
	for _, a := range Attributes() {
		if !legal.MatchString(a.Name) || seen[a.Name] {
			t.Errorf("%q is not a name for an attribute, or is taken", a.Name)
		}
		seen[a.Name] = true
	}
}

func value(t *testing.T, name string, c *event.Change) string {
	t.Helper()
	for _, a := range Attributes() {
		if a.Name == name {
			return string(a.Append(nil, c))
		}
	}
	t.Fatalf("no attribute %q", name)
	return ""
}

func TestSequencesSortAsTextTheWayVersionsSort(t *testing.T) {
	c := sample()
	last := ""
	for _, rv := range []string{"0", "9", "10", "99999999999", "18446744073709551615"} {
		c.ResourceVersion = rv
		got := value(t, "sequence", c)
		if len(got) != 20 || got <= last {
			t.Errorf("resourceVersion %s has the sequence %q, which does not follow %q", rv, got, last)
		}
		last = got
	}
	for _, rv := range []string{"", "abc", "1.5", "-1", "184467440737095516150"} {
		if c.ResourceVersion = rv; value(t, "sequence", c) != "" {
			t.Errorf("resourceVersion %q has the sequence %q, want none", rv, value(t, "sequence", c))
		}
	}
}

func TestTheSourceIsAURIReferenceForAnyCluster(t *testing.T) {
	c := sample()
	for cluster, want := range map[string]string{
		"prod":     "/clusters/prod/apps/v1/deployments",
		"a b/ü?#%": "/clusters/a%20b%2F%C3%BC%3F%23%25/apps/v1/deployments",
	} {
		if c.Cluster = cluster; value(t, "source", c) != want {
			t.Errorf("cluster %q: source %s, want %s", cluster, value(t, "source", c), want)
		}
	}
}

func TestFormatsKeepTheirNames(t *testing.T) {
	for name, want := range map[string]Format{"json": JSON, "cloudevents": CloudEvents, "cloudevents-structured": CloudEventsStructured} {
		if f, err := Parse(name); f != want || err != nil || f.String() != name {
			t.Errorf("%s is %v (%v)", name, f, err)
		}
	}
	if _, err := Parse("xml"); err == nil {
		t.Error("xml is taken for a format")
	}
}

func FuzzCloudEventsStayValidForAnyName(f *testing.F) {
	f.Add("web", "prod", "\x00\"\\\xff€", "7")
	f.Fuzz(func(t *testing.T, name, cluster, uid, rv string) {
		c := sample()
		c.Name, c.Cluster, c.UID, c.ResourceVersion = name, cluster, uid, rv
		out := CloudEventsStructured.AppendValue(nil, c)
		var back struct {
			ID, Subject, Cluster, UID string
			Data                      struct{ ID, Name, Cluster, UID string }
		}
		if err := json.Unmarshal(out, &back); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		if back.ID != back.Data.ID || back.Subject != c.Namespace+"/"+back.Data.Name || back.Cluster != back.Data.Cluster || back.UID != back.Data.UID {
			t.Fatalf("the attributes and the data differ: %s", out)
		}
	})
}

func BenchmarkCloudEventsStructured(b *testing.B) {
	c, buf := sample(), make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		buf = CloudEventsStructured.AppendValue(buf[:0], c)
	}
}
