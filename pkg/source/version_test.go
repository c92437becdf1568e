package source

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// patch sends a merge patch.
func (p *plane) patch(t *testing.T, path, body string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPatch, p.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/merge-patch+json")
	resp, err := p.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("PATCH %s: %s", path, resp.Status)
	}
}

func version(name string, served, storage bool) string {
	return fmt.Sprintf(`{"name":%q,"served":%v,"storage":%v,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}`, name, served, storage)
}

func TestAResourceMovesToAnotherVersionUnderARunningSource(t *testing.T) {
	p := startPlane(t)
	const betaPath = "/apis/example.com/v1beta1/namespaces/default/widgets"
	p.call(t, "POST", definitionsPath, `{"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
		"names":{"plural":"widgets","kind":"Widget"},"versions":[`+version("v1beta1", true, true)+`]}}`)
	body := func(version, n string) string {
		return fmt.Sprintf(`{"apiVersion":"example.com/%s","kind":"Widget","metadata":{"name":"w","labels":{"n":%q}}}`, version, n)
	}
	await(t, "widgets to be served", func() bool {
		return p.status(t, "POST", betaPath, body("v1beta1", "0")) == http.StatusCreated
	})
	st, f := newStore(), newFakeAPI(t)
	s, log, stop := running(t, f, st, p.on("widgets.example.com"))
	defer stop()
	awaitState(t, st, s, Live)
	if got := st.change(0).Resource.Version; got != "v1beta1" {
		t.Fatalf("read as %s", got)
	}

	// Both are served and the old one is watched on; then it goes.
	p.patch(t, definitionsPath+"/widgets.example.com", `{"spec":{"versions":[`+version("v1beta1", true, false)+`,`+version("v1", true, true)+`]}}`)
	await(t, "v1 to be served", func() bool { return p.status(t, "GET", widgetsPath+"/w", "") == http.StatusOK })
	p.patch(t, definitionsPath+"/widgets.example.com", `{"spec":{"versions":[`+version("v1beta1", false, false)+`,`+version("v1", true, true)+`]}}`)
	await(t, "v1beta1 to go", func() bool { return p.status(t, "GET", betaPath+"/w", "") == http.StatusNotFound })
	// A watch of v1beta1 that is open may bring more until the API server has taken its handlers away.
	patches := 0
	st.await(t, "an update in v1", func() bool {
		patches++
		p.patch(t, widgetsPath+"/w", fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, patches))
		last := st.change(len(st.emitted()) - 1)
		return last.Type == event.Updated && last.Resource.Version == "v1"
	})
	t.Logf("emitted after v1beta1 was gone and %d patches: %q\nlog\n%s", patches, st.emitted(), log)
	for i := 1; i < len(st.emitted()); i++ {
		c := st.change(i)
		if c.Type == event.Gap { // the API server may begin its history of v1 anew
			continue
		}
		var after struct{ APIVersion string }
		if err := json.Unmarshal(c.After, &after); err != nil || after.APIVersion != c.Resource.Group+"/"+c.Resource.Version {
			t.Errorf("%s of %s is emitted in terms of %s: %s %v", c.Type, c.ResourceVersion, c.Resource.Version, c.After, err)
		}
	}
	awaitState(t, st, s, Live)
	if got := s.Status()[0]; got.Lists > got.Relists {
		t.Errorf("status %+v", got)
	}
}

// TestAVersionThatGoesWhileWhatIsStoredIsLoadedIsNotReadAnyMore lets the journal be slow for as long as that takes.
func TestAVersionThatGoesWhileWhatIsStoredIsLoadedIsNotReadAnyMore(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.write("ADDED", "a")
	f.serve(groupOf("example.com", "v1beta1", "widgets"))
	began, goOn := make(chan struct{}), make(chan struct{})
	s, log, _ := running(t, f, st, func(c *Config) {
		c.Rules = []selection.Rule{{Select: []string{"widgets.example.com"}}}
		c.SetScopes = func(ctx context.Context, r event.Resource, scopes []event.StoredScope) error {
			close(began)
			select {
			case <-goOn:
			case <-ctx.Done():
				return ctx.Err()
			}
			return st.setScopes(ctx, r, scopes)
		}
	})
	<-began
	f.serve(groupOf("example.com", "v1", "widgets"))
	st.await(t, "the other version", func() bool { return log.count("served in another version") == 1 })
	close(goOn)
	awaitState(t, st, s, Live)
	for _, c := range append(st.frames(), st.change(0)) {
		if c.Resource.Version != "v1" {
			t.Errorf("%s %s is emitted in terms of %s", c.Type, c.Name, c.Resource.Version)
		}
	}
}
