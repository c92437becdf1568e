package format

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

func sample() *event.Change {
	return &event.Change{
		Type: event.Updated, Delta: event.DeltaUpdated, Cluster: "prod",
		Resource:  event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"},
		Namespace: "shop", Name: "web", UID: "u-1", ResourceVersion: "42", Generation: 3,
		ObservedAt: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
		Actor:      &event.Actor{Manager: "kubectl", Operation: "Update", Time: "2026-01-02T03:04:05Z"},
		After:      []byte(`{"kind":"Deployment","n":1.0}`),
	}
}

func TestJSONIsTheDocumentedForm(t *testing.T) {
	const want = `{"id":"prod/u-1/42/updated","type":"updated","cluster":"prod","group":"apps","version":"v1",` +
		`"resource":"deployments","kind":"Deployment","namespace":"shop","name":"web","uid":"u-1","resourceVersion":"42",` +
		`"generation":3,"observedAt":"2026-01-02T03:04:05.000000006Z","delta":"Updated",` +
		`"actor":{"manager":"kubectl","operation":"Update","time":"2026-01-02T03:04:05Z"},"after":{"kind":"Deployment","n":1.0}}`
	if got := string(AppendJSON(nil, sample())); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestJSONTellsAGap(t *testing.T) {
	c := &event.Change{Type: event.Gap, Cluster: "prod", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
		ResourceVersion: "9", ObservedAt: time.Unix(0, 0), Gap: &event.GapInfo{From: "3", To: "9", Reason: `history "expired"`}}
	const want = `{"id":"prod/pods@3/9/gap","type":"gap","cluster":"prod","group":"","version":"v1","resource":"pods","kind":"Pod",` +
		`"resourceVersion":"9","observedAt":"1970-01-01T00:00:00Z","gap":{"from":"3","to":"9","reason":"history \"expired\""}}`
	if got := string(AppendJSON(nil, c)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func FuzzJSONStaysValidForAnyName(f *testing.F) {
	f.Add("web", "u", "\x00\"\\\xff€")
	f.Fuzz(func(t *testing.T, name, uid, manager string) {
		c := sample()
		c.Name, c.UID, c.Actor.Manager = name, uid, manager
		out := AppendJSON(nil, c)
		var back struct{ Name string }
		if err := json.Unmarshal(out, &back); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		clean, _ := json.Marshal(name) // JSON cannot carry invalid UTF-8: both sides replace it alike
		var want string
		_ = json.Unmarshal(clean, &want)
		if back.Name != want {
			t.Fatalf("name %q came back as %q", name, back.Name)
		}
	})
}

func BenchmarkAppendJSON(b *testing.B) {
	c, buf := sample(), make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendJSON(buf[:0], c)
	}
}
