package format

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

func sampleChange() *event.Change {
	return &event.Change{
		Type: event.Updated, Delta: event.DeltaUpdated, Cluster: "prod",
		Resource:  event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"},
		Namespace: "shop", Name: "web", UID: "u-1", ResourceVersion: "42", Generation: 3,
		ObservedAt: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
		Actor:      &event.Actor{Manager: "kubectl", Operation: "Update", Time: "2026-01-02T03:04:05Z"},
		After:      []byte(`{"kind":"Deployment","n":1.0}`),
	}
}

func FuzzJSONStaysValidForAnyName(f *testing.F) {
	f.Add("web", "u", "\x00\"\\\xff€")
	f.Fuzz(func(t *testing.T, name, uid, manager string) {
		c := sampleChange()
		c.Name, c.UID, c.Actor.Manager = name, uid, manager
		out := AppendJSON(nil, c)
		var back struct{ Name string }
		if err := json.Unmarshal(out, &back); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		clean, _ := json.Marshal(name) // JSON cannot carry invalid UTF-8: both sides replace it the same way
		var want string
		_ = json.Unmarshal(clean, &want)
		if back.Name != want {
			t.Fatalf("name %q came back as %q", name, back.Name)
		}
	})
}

func BenchmarkAppendJSON(b *testing.B) {
	c, buf := sampleChange(), make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendJSON(buf[:0], c)
	}
}

// TestAChangeHasItsAuthor, or why that is not known, where it has waited for that.
func TestAChangeHasItsAuthor(t *testing.T) {
	c := &event.Change{Type: event.Added, Name: "web", Attribution: &event.Attribution{By: event.Identity{User: "ann", Verb: "create"}, Certainty: event.Exact}}
	got := string(AppendJSON(nil, c))
	if !strings.Contains(got, `"by":{"user":"ann"`) || !strings.Contains(got, `"certainty":"exact"`) || strings.Contains(got, `"of":`) {
		t.Error(got)
	}
	c.Attribution, c.Held = nil, &event.HeldInfo{Sinks: []string{"trail"}, Released: true, Unknown: "wait"}
	if got := string(AppendJSON(nil, c)); !strings.Contains(got, `"by":{"unknown":"wait"}`) || strings.Contains(got, "trail") {
		t.Error(got)
	}
}
