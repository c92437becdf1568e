package source

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// inNamespaces makes a Source select pods of namespaces.
func inNamespaces(names ...string) func(*Config) {
	return func(c *Config) {
		c.Rules = []selection.Rule{{Select: []string{"pods"}, Namespaces: selection.Namespaces{Include: names}}}
	}
}

// awaitNamespaces waits until the namespaces are as listed: "web" exists, "web missing" does not, and of "web unknown" the
// check is forbidden.
func (s *Source) awaitNamespaces(t *testing.T, st *store, want ...string) {
	t.Helper()
	st.awaitTrue(t, strings.Join(want, ", "), func() bool {
		var all []string
		for _, n := range s.namespaces.conditions.Statuses() {
			word := map[condition.Code]string{condition.NamespaceMissing: " missing", condition.NamespaceUnknown: " unknown"}
			all = append(all, n.Members[0]+word[n.Code])
		}
		return slices.Equal(all, want)
	})
}

func TestMissingNamespaceIsReportedAndWatched(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.spaces, f.existing = map[string]int{"later": http.StatusNotFound}, []string{"team-a"}
		s, log, stop := startSource(t, f, st, on, inNamespaces("shop", "later", "team-*"))
		defer stop()
		s.awaitNamespaces(t, st, "later missing", "shop", "team-*")
		awaitState(t, st, s, Live)
		if !s.Ready() {
			t.Errorf("not ready because of a namespace: %+v", s.Conditions())
		}
		watches := f.countRequests("WATCH")
		f.update(func() { f.spaces["later"] = 0 })
		s.awaitNamespaces(t, st, "later", "shop", "team-*")
		f.update(func() { f.spaces["later"], f.spaces["shop"] = http.StatusServiceUnavailable, http.StatusNotFound })
		s.awaitNamespaces(t, st, "later", "shop missing", "team-*") // a failed check changes nothing
		if n := f.countRequests("WATCH"); n != watches {
			t.Errorf("%d watches, %d before", n, watches)
		}
		stop()
		if n := log.CountOf("a selected namespace does not exist"); n != 2 {
			t.Errorf("%d lines in\n%s", n, log)
		}
	})
}

func TestForbiddenNamespaceCheckIsReported(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.spaces = map[string]int{}
		var names, unknown, missing []string
		for i := range 50 {
			name := fmt.Sprintf("team-%02d", i)
			names, unknown, missing = append(names, name), append(unknown, name+" unknown"), append(missing, name+" missing")
			f.spaces[name] = http.StatusForbidden
		}
		s, log, stop := startSource(t, f, st, on, inNamespaces(names...))
		defer stop()
		s.awaitNamespaces(t, st, unknown...)
		time.Sleep(time.Hour)
		if n := f.namespaceLookups("team-00"); n > 62 {
			t.Errorf("asked %d times in an hour", n)
		}
		f.update(func() {
			for name := range f.spaces {
				f.spaces[name] = http.StatusNotFound
			}
		})
		s.awaitNamespaces(t, st, missing...)
		stop()
		if n := log.CountOf("a selected namespace"); n != 2 {
			t.Errorf("%d lines in\n%s", n, log)
		}
	})
}

// TestAGlobThatNoNamespaceMatchesIsReported has two globs, of which one list of the namespaces tells enough.
func TestAGlobThatNoNamespaceMatchesIsReported(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.spaces, f.existing = map[string]int{}, []string{"default", "team-a"}
		s, log, stop := startSource(t, f, st, on, inNamespaces("shop", "team-*", "taem-*", "*"))
		defer stop()
		s.awaitNamespaces(t, st, "shop", "taem-* missing", "team-*")
		awaitState(t, st, s, Live)
		if !s.Ready() {
			t.Errorf("not ready because of a namespace: %+v", s.Conditions())
		}
		watches := f.countRequests("WATCH")
		f.update(func() { f.existing = []string{"taem-b"} })
		s.awaitNamespaces(t, st, "shop", "taem-*", "team-* missing")
		f.update(func() { f.spaces["*"] = http.StatusForbidden })
		s.awaitNamespaces(t, st, "shop", "taem-* unknown", "team-* unknown")
		if n := f.countRequests("WATCH"); n != watches {
			t.Errorf("%d watches, %d before", n, watches)
		}
		before := f.namespaceLookups("*")
		time.Sleep(time.Hour)
		if n := f.namespaceLookups("*") - before; n > 61 {
			t.Errorf("listed %d times in an hour", n)
		}
		stop()
		if n := log.CountOf("a selected namespace does not exist"); n != 2 {
			t.Errorf("%d lines in\n%s", n, log)
		}
	})
}
