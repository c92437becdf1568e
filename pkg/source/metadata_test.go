package source

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// metadataOnlyRule makes a Source read only metadata.
func metadataOnlyRule(c *Config) { c.Rules[0].Capture = selection.CaptureMetadata }

// TestServerWithoutPartialMetadataIsRead uses a fake that sends whole objects only.
func TestServerWithoutPartialMetadataIsRead(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a")
	_, _, _ = startSource(t, f, st, metadataOnlyRule)
	st.awaitEmitted(t, "snapshot a@11")
	if got, want := string(st.changeAt(0).After), `{"kind":"Kind","apiVersion":"v1","metadata":{"name":"a","namespace":"ns","uid":"uid-a","resourceVersion":"11"}}`; got != want {
		t.Errorf("body %s, want %s", got, want)
	}
}

// testMetadata reads the metadata of a built-in and of a custom type, by list and by watch.
func testMetadata(t *testing.T, p *controlPlane) {
	st, f := newStore(), newFakeAPI(t)
	p.createSecret(t, "a")
	p.request(t, "PUT", secretsPath+"/a", `{"metadata":{"name":"a"},"data":{"password":"c2VjcmV0"}}`)
	a := p.updateSecret(t, "a", "1")
	p.createDefinition(t, "widgets")
	w := p.createWidget(t, "w")
	selected := p.sourceConfig("secrets", "widgets.example.com")
	bare := func(c *Config) { selected(c); metadataOnlyRule(c) }

	s, log, stop := startSource(t, f, st, bare)
	st.awaitTrue(t, "both objects", func() bool { return len(st.transcript()) == 2 })
	if got := emittedSince(st, 0); !slices.Equal(got, []string{"snapshot a@" + a, "snapshot w@" + w}) {
		t.Fatalf("emitted %q\nlog\n%s", got, log)
	}
	for i := range 2 {
		c := st.changeAt(i)
		var body map[string]json.RawMessage
		if err := json.Unmarshal(c.After, &body); err != nil {
			t.Fatal(err)
		}
		if len(body) != 3 || string(body["kind"]) != `"`+c.Resource.Kind+`"` || bytes.Contains(c.After, []byte("managedFields")) {
			t.Errorf("body %s", c.After)
		}
	}
	a = p.updateSecret(t, "a", "2")
	st.awaitTrue(t, "the update", func() bool { return st.transcript()[len(st.transcript())-1] == "updated a@"+a })
	for _, one := range s.Status() {
		if one.DecodeErrors != 0 || one.Lists != 1 {
			t.Errorf("status %+v", one)
		}
	}
	stop()

	// Another capture after a restart emits nothing for unchanged objects.
	for _, adjust := range []func(*Config){selected, bare} {
		n := len(st.transcript())
		s, _, stop = startSource(t, f, st, adjust)
		a = p.updateSecret(t, "a", fmt.Sprint("again", n))
		st.awaitTrue(t, "the update", func() bool { return st.transcript()[len(st.transcript())-1] == "updated a@"+a })
		st.awaitTrue(t, "live", func() bool {
			return !slices.ContainsFunc(s.Status(), func(one Status) bool { return one.State != Live })
		})
		stop()
		if got := emittedSince(st, n); len(got) != 1 {
			t.Errorf("emitted %q", got)
		}
	}
}
