package source

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
)

// controlPlane is a real control plane, with a client that writes to it.
type controlPlane struct {
	*controlplane.ControlPlane
	config *rest.Config
	client *http.Client
}

func startControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	c := controlplane.ForTest(t)
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	return &controlPlane{ControlPlane: c, config: config, client: client}
}

// request sends a request and returns the resourceVersion of the object or list in the response.
func (p *controlPlane) request(t *testing.T, method, path, body string) string {
	t.Helper()
	status, text := p.send(t, method, path, body)
	if status >= 300 {
		t.Fatalf("%s %s: %d %s", method, path, status, text)
	}
	var o struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.Unmarshal(text, &o); err != nil {
		t.Fatal(err)
	}
	return o.Metadata.ResourceVersion
}

// send sends a request and returns status code and body of the response.
func (p *controlPlane) send(t *testing.T, method, path, body string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequest(method, p.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := p.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, text
}

const secretsPath = "/api/v1/namespaces/default/secrets"

func (p *controlPlane) createSecret(t *testing.T, name string) string {
	t.Helper()
	return p.request(t, "POST", secretsPath, fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"n":"0"}}}`, name))
}

func (p *controlPlane) updateSecret(t *testing.T, name, n string) string {
	t.Helper()
	return p.request(t, "PUT", secretsPath+"/"+name, fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"n":%q}}}`, name, n))
}

func (p *controlPlane) deleteSecret(t *testing.T, name string) {
	t.Helper()
	p.request(t, "DELETE", secretsPath+"/"+name, "")
}

// compactHistory makes etcd discard all history before its newest revision.
func (p *controlPlane) compactHistory(t *testing.T) {
	t.Helper()
	revision, err := strconv.Atoi(p.request(t, "GET", secretsPath+"?limit=1", ""))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := json.Marshal(map[string]any{"revision": strconv.Itoa(revision), "physical": true})
	resp, err := http.Post(p.EtcdEndpoint()+"/v3/kv/compaction", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		t.Fatalf("compact: %s %s", resp.Status, text)
	}
}

func (p *controlPlane) restartServer(t *testing.T, stop func() error) {
	t.Helper()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if err := p.StartAPIServer(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// countVerbs counts the exporter's requests for a resource in the audit log.
func (p *controlPlane) countVerbs(t *testing.T, resource string) map[string]int {
	t.Helper()
	entries, err := p.AuditEntries()
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, e := range entries {
		// A watch has two entries; its end may be logged at any later time.
		if e.Resource == resource && strings.HasPrefix(e.UserAgent, "kubecdc/") && (e.Verb != "watch" || e.Stage == "ResponseStarted") {
			count[e.Verb]++
		}
	}
	return count
}

// sourceConfig makes the source watch the given resources of the control plane.
func (p *controlPlane) sourceConfig(selected ...string) func(*Config) {
	return func(c *Config) {
		c.Client, _ = apiserver.NewClient(p.config, "test")
		c.Rules = []selection.Rule{{Select: selected, Namespaces: selection.Namespaces{Include: []string{"default"}}}}
	}
}

// emittedSince returns the changes emitted after the first n, sorted.
func emittedSince(st *store, n int) []string {
	got := st.transcript()[n:]
	slices.Sort(got)
	return got
}

func TestAgainstRealAPIServer(t *testing.T) {
	p := startControlPlane(t)
	const scope = "secrets;ns=default"
	st, f := newStore(), newFakeAPI(t) // startSource needs a fake
	a, b := p.createSecret(t, "a"), p.createSecret(t, "b")
	s, _, stop := startSource(t, f, st, p.sourceConfig("secrets"))
	st.awaitTrue(t, "the first list", func() bool { return len(st.transcript()) == 2 })
	if got := emittedSince(st, 0); !slices.Equal(got, []string{"snapshot a@" + a, "snapshot b@" + b}) {
		t.Fatalf("emitted %q", got)
	}
	awaitState(t, st, s, Live)

	t.Run("an API server that is killed costs no change", func(t *testing.T) {
		// A new API server has no history before its start. If the start wrote something, the position is older than
		// that: then there is a gap without a missing change, and a LIST, which a server that still starts may refuse at first.
		p.restartServer(t, p.KillAPIServer)
		a = p.updateSecret(t, "a", "1")
		st.awaitTrue(t, "the update", func() bool {
			return slices.ContainsFunc(st.transcript(), func(l string) bool { return strings.TrimSuffix(l, "~") == "updated a@"+a })
		})
		if st := s.Status()[0]; st.Relists == 0 && st.Lists != 1 || st.Lists < 1+st.Relists {
			t.Errorf("%d LISTs, %d gaps", st.Lists, st.Relists)
		}
		awaitState(t, st, s, Live)
	})
	stop()

	t.Run("a resume sends no list", func(t *testing.T) {
		n, before := len(st.transcript()), p.countVerbs(t, "secrets")
		p.deleteSecret(t, "b")
		a = p.updateSecret(t, "a", "2")
		s, _, stop := startSource(t, f, st, p.sourceConfig("secrets"))
		st.awaitTrue(t, "the changes of the outage", func() bool { return len(st.transcript()) == n+2 })
		if got := emittedSince(st, n); got[1] != "updated a@"+a || !strings.HasPrefix(got[0], "deleted b@") {
			t.Errorf("emitted %q", got)
		}
		awaitState(t, st, s, Live)
		stop()
		st.awaitTrue(t, "the audit log", func() bool { return p.countVerbs(t, "secrets")["watch"] >= before["watch"]+2 })
		after := p.countVerbs(t, "secrets")
		if after["list"] != before["list"] || after["watch"] != before["watch"]+2 {
			t.Errorf("requests %v, before %v", after, before)
		}
	})

	t.Run("compacted history is emitted as a gap", func(t *testing.T) {
		n, from := len(st.transcript()), st.positionOf(scope)
		p.deleteSecret(t, "a")
		c := p.createSecret(t, "c")
		p.compactHistory(t)
		p.restartServer(t, p.StopAPIServer) // its cache still has what etcd has discarded
		s, log, stop := startSource(t, f, st, p.sourceConfig("secrets"))
		st.awaitTrue(t, "the differences", func() bool { return len(st.transcript()) == n+3 })
		got := emittedSince(st, n)
		if got[0] != "added c@"+c+"~" || got[1] != "deleted a@"+a+"~" || !strings.HasPrefix(got[2], "gap "+from+"-") {
			t.Errorf("emitted %q\nlog\n%s", got, log)
		}
		if s.Status()[0].Relists != 1 {
			t.Errorf("status %+v", s.Status())
		}
		awaitState(t, st, s, Live)
		stop()
	})

	t.Run("a position from the future is a loss", func(t *testing.T) {
		for _, resource := range []string{"secrets", "events"} { // events have no watch cache
			st := newStore()
			st.storeState(resource+";ns=default", "1000000000")
			s, log, stop := startSource(t, f, st, p.sourceConfig(resource))
			st.awaitTrue(t, "a gap", func() bool {
				return slices.ContainsFunc(st.transcript(), func(l string) bool { return strings.HasPrefix(l, "gap 1000000000-") })
			})
			awaitState(t, st, s, Live)
			stop()
			if log.CountOf("etcd was restored from a backup") != 1 {
				t.Errorf("%s: log\n%s", resource, log)
			}
		}
	})

	t.Run("events resume without a list", func(t *testing.T) {
		st := newStore()
		s, _, stop := startSource(t, f, st, p.sourceConfig("events"))
		awaitState(t, st, s, Live)
		stop()
		before := p.countVerbs(t, "events")
		s, _, stop = startSource(t, f, st, p.sourceConfig("events"))
		awaitState(t, st, s, Live)
		stop()
		if after := p.countVerbs(t, "events"); after["list"] != before["list"] || s.Status()[0].Lists != 0 {
			t.Errorf("requests %v, before %v", after, before)
		}
	})

	t.Run("a type that comes later is watched", func(t *testing.T) {
		st := newStore()
		_, log, stop := startSource(t, f, st, p.sourceConfig("widgets.example.com"))
		defer stop()
		for range 3 {
			began := time.Now()
			p.createDefinition(t, "widgets")
			w := p.createWidget(t, "w")
			served := time.Now()
			st.awaitTrue(t, "the object", func() bool { // coalesced (~) if it existed before the list of the new scope
				return slices.ContainsFunc(st.transcript(), func(l string) bool { return strings.HasSuffix(strings.TrimSuffix(l, "~"), " w@"+w) })
			})
			t.Logf("objects were accepted %s after the definition and emitted %s later", served.Sub(began).Round(time.Millisecond), time.Since(served).Round(time.Millisecond))
			p.deleteDefinition(t, "widgets")
			st.awaitTrue(t, "the delete", func() bool {
				emitted := st.transcript()
				return strings.HasPrefix(emitted[len(emitted)-1], "deleted w@")
			})
		}
		for _, r := range []string{"customresourcedefinitions", "apiservices"} {
			if got := p.countVerbs(t, r); len(got) != 0 {
				t.Errorf("requests for %s: %v, and none is needed\nlog\n%s", r, got, log)
			}
		}
	})
}

const (
	definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	widgetsPath     = "/apis/example.com/v1/namespaces/default/widgets"
)

// createDefinition installs a type of the group example.com.
func (p *controlPlane) createDefinition(t *testing.T, plural string) {
	t.Helper()
	p.request(t, "POST", definitionsPath, fmt.Sprintf(`{"metadata":{"name":"%[1]s.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
		"names":{"plural":%[1]q,"kind":"Widget"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`, plural))
}

// deleteDefinition removes a type and waits until its definition and its objects are gone.
func (p *controlPlane) deleteDefinition(t *testing.T, plural string) {
	t.Helper()
	path := definitionsPath + "/" + plural + ".example.com"
	p.request(t, "DELETE", path, "")
	awaitTrue(t, plural+" to go", func() bool { return p.requestStatus(t, "GET", path, "") == http.StatusNotFound })
}

// createWidget creates an object of a type that may not be served yet.
func (p *controlPlane) createWidget(t *testing.T, name string) string {
	t.Helper()
	body := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":%q}}`, name)
	awaitTrue(t, "widgets to be served", func() bool { return p.requestStatus(t, "POST", widgetsPath, body) == http.StatusCreated })
	return p.request(t, "GET", widgetsPath+"/"+name, "")
}

// requestStatus sends a request and returns the status code.
func (p *controlPlane) requestStatus(t *testing.T, method, path, body string) int {
	t.Helper()
	status, _ := p.send(t, method, path, body)
	return status
}

// awaitTrue waits for a state of the API server.
func awaitTrue(t *testing.T, what string, ok func() bool) {
	t.Helper()
	newStore().awaitTrue(t, what, ok)
}

// TestOnOneAPIServer shares an API server that is not restarted.
func TestOnOneAPIServer(t *testing.T) {
	p := startControlPlane(t)
	t.Run("built-in scopes match the API server", func(t *testing.T) { testBuiltInScopes(t, p) })
	t.Run("every way of reading gives the same table", func(t *testing.T) { testEveryWayOfReading(t, p) })
	t.Run("metadata is read by list and watch", func(t *testing.T) { testMetadata(t, p) })
}

// testBuiltInScopes compares the tables of built-in types with what is served.
func testBuiltInScopes(t *testing.T, p *controlPlane) {
	c, err := apiserver.NewClient(p.config, "test")
	if err != nil {
		t.Fatal(err)
	}
	e, err := c.Explain(t.Context(), []selection.Rule{{Select: []string{"*"}}})
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Matches) < 40 || len(e.Unanswered) > 0 {
		t.Fatalf("%d resources, %v unanswered", len(e.Matches), e.Unanswered)
	}
	for _, m := range e.Matches {
		written, err := selection.ResolveWritten([]selection.Rule{{Select: []string{m.Resource.String()}}})
		if err != nil {
			t.Fatal(err)
		}
		if name := m.Resource.String(); m.Namespaced && selection.IsClusterScoped(name) || !m.Namespaced && selection.IsNamespaced(name) {
			t.Errorf("%s is namespaced: %v, and a configuration is refused for the opposite", name, m.Namespaced)
		}
		if guess := written.Matches[0]; guess.Assumed || guess.Namespaced != m.Namespaced {
			t.Errorf("%s is namespaced: %v; want %v as in the table (assumed: %v)", m.Resource, m.Namespaced, guess.Namespaced, guess.Assumed)
		}
	}
}
