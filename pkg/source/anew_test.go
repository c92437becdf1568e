package source

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestATypeMadeAnewForTheClusterIsFollowedThere deletes a definition whose objects live in namespaces, and makes it anew for
// the whole cluster, under a rule that names a namespace.
func TestATypeMadeAnewForTheClusterIsFollowedThere(t *testing.T) {
	p := startPlane(t)
	p.define(t, "widgets")
	w := p.createWidget(t, "w")
	st, f := newStore(), newFakeAPI(t)
	s, log, _ := running(t, f, st, p.on("widgets.example.com"))
	awaitState(t, st, s, Live)
	p.undefine(t, "widgets")
	p.call(t, "POST", definitionsPath, `{"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Cluster",
		"names":{"plural":"widgets","kind":"Widget"},"versions":[`+version("v1", true, true)+`]}}`)
	const path = "/apis/example.com/v1/widgets"
	body := `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"c"}}`
	await(t, "widgets to be served", func() bool { return p.status(t, "POST", path, body) == http.StatusCreated })
	c := p.call(t, "GET", path+"/c", "")
	st.await(t, "the object of the cluster", func() bool {
		return slices.ContainsFunc(st.emitted(), func(l string) bool { return strings.HasSuffix(strings.TrimSuffix(l, "~"), " c@"+c) })
	})
	if got := st.emitted(); !strings.HasPrefix(got[1], "deleted w@") {
		t.Errorf("emitted %q, want the deletion of w@%s second\nlog\n%s", got, w, log)
	}
	st.await(t, "the scope", func() bool {
		all := s.Status()
		return len(all) == 1 && all[0].Scope == "widgets.example.com" && all[0].State == Live
	})
	t.Logf("%q", st.emitted())
}
