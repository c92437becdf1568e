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

// patchObject sends a merge patch.
func (p *controlPlane) patchObject(t *testing.T, path, body string) {
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

func definitionVersion(name string, served, storage bool) string {
	return fmt.Sprintf(`{"name":%q,"served":%v,"storage":%v,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}`, name, served, storage)
}

func TestRunningSourceSwitchesVersion(t *testing.T) {
	p := startControlPlane(t)
	const betaPath = "/apis/example.com/v1beta1/namespaces/default/widgets"
	p.request(t, "POST", definitionsPath, `{"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
		"names":{"plural":"widgets","kind":"Widget"},"versions":[`+definitionVersion("v1beta1", true, true)+`]}}`)
	body := func(version, n string) string {
		return fmt.Sprintf(`{"apiVersion":"example.com/%s","kind":"Widget","metadata":{"name":"w","labels":{"n":%q}}}`, version, n)
	}
	awaitTrue(t, "widgets to be served", func() bool {
		return p.requestStatus(t, "POST", betaPath, body("v1beta1", "0")) == http.StatusCreated
	})
	st, f := newStore(), newFakeAPI(t)
	s, log, stop := startSource(t, f, st, p.sourceConfig("widgets.example.com"))
	defer stop()
	awaitState(t, st, s, Live)
	if got := st.changeAt(0).Resource.Version; got != "v1beta1" {
		t.Fatalf("read as %s", got)
	}

	// Both versions are served, and the old one is still watched until it is removed.
	p.patchObject(t, definitionsPath+"/widgets.example.com", `{"spec":{"versions":[`+definitionVersion("v1beta1", true, false)+`,`+definitionVersion("v1", true, true)+`]}}`)
	awaitTrue(t, "v1 to be served", func() bool { return p.requestStatus(t, "GET", widgetsPath+"/w", "") == http.StatusOK })
	p.patchObject(t, definitionsPath+"/widgets.example.com", `{"spec":{"versions":[`+definitionVersion("v1beta1", false, false)+`,`+definitionVersion("v1", true, true)+`]}}`)
	awaitTrue(t, "v1beta1 to go", func() bool { return p.requestStatus(t, "GET", betaPath+"/w", "") == http.StatusNotFound })
	// An open watch of v1beta1 may deliver more until the API server has removed its handlers.
	patches := 0
	st.awaitTrue(t, "an update in v1", func() bool {
		patches++
		p.patchObject(t, widgetsPath+"/w", fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, patches))
		last := st.changeAt(len(st.transcript()) - 1)
		return last.Type == event.Updated && last.Resource.Version == "v1"
	})
	t.Logf("emitted after v1beta1 was gone and %d patches: %q\nlog\n%s", patches, st.transcript(), log)
	for i := 1; i < len(st.transcript()); i++ {
		c := st.changeAt(i)
		if c.Type == event.Gap { // the API server may have no earlier history of v1
			continue
		}
		var after struct{ APIVersion string }
		if err := json.Unmarshal(c.After, &after); err != nil || after.APIVersion != c.Resource.Group+"/"+c.Resource.Version {
			t.Errorf("%s of %s is emitted in version %s: %s %v", c.Type, c.ResourceVersion, c.Resource.Version, c.After, err)
		}
	}
	awaitState(t, st, s, Live)
	if got := s.Status()[0]; got.Relists == 0 && got.Lists != 0 {
		t.Errorf("status %+v", got)
	}
}

// TestVersionRemovedDuringLoadIsNotRead uses a journal that is slow until the version is removed.
func TestVersionRemovedDuringLoadIsNotRead(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a")
	f.setGroups(groupOf("example.com", "v1beta1", "widgets"))
	began, goOn := make(chan struct{}), make(chan struct{})
	s, log, _ := startSource(t, f, st, func(c *Config) {
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
	f.setGroups(groupOf("example.com", "v1", "widgets"))
	st.awaitTrue(t, "the other version", func() bool { return log.CountOf("served in another version") == 1 })
	close(goOn)
	awaitState(t, st, s, Live)
	for _, c := range append(st.snapshotFrames(), st.changeAt(0)) {
		if c.Resource.Version != "v1" {
			t.Errorf("%s %s is emitted in version %s", c.Type, c.Name, c.Resource.Version)
		}
	}
}
