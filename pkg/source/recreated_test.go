package source

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestTypeRecreatedForTheClusterIsFollowed deletes a namespaced definition and recreates it for the whole cluster, under a
// rule that names a namespace.
func TestTypeRecreatedForTheClusterIsFollowed(t *testing.T) {
	p := startControlPlane(t)
	p.createDefinition(t, "widgets")
	w := p.createWidget(t, "w")
	st, f := newStore(), newFakeAPI(t)
	s, log, _ := startSource(t, f, st, p.sourceConfig("widgets.example.com"))
	awaitState(t, st, s, Live)
	p.deleteDefinition(t, "widgets")
	p.request(t, "POST", definitionsPath, `{"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Cluster",
		"names":{"plural":"widgets","kind":"Widget"},"versions":[`+definitionVersion("v1", true, true)+`]}}`)
	const path = "/apis/example.com/v1/widgets"
	body := `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"c"}}`
	awaitTrue(t, "widgets to be served", func() bool { return p.requestStatus(t, "POST", path, body) == http.StatusCreated })
	c := p.request(t, "GET", path+"/c", "")
	st.awaitTrue(t, "the object of the cluster", func() bool {
		return slices.ContainsFunc(st.transcript(), func(l string) bool { return strings.HasSuffix(strings.TrimSuffix(l, "~"), " c@"+c) })
	})
	if got := st.transcript(); !strings.HasPrefix(got[1], "deleted w@") {
		t.Errorf("emitted %q, want the deletion of w@%s second\nlog\n%s", got, w, log)
	}
	st.awaitTrue(t, "the scope", func() bool {
		all := s.Status()
		return len(all) == 1 && all[0].Scope == "widgets.example.com" && all[0].State == Live
	})
	t.Logf("%q", st.transcript())
}
