package apiserver

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	apidiscovery "k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
)

// shared is the control plane of the tests of discovery: nothing that is served comes or goes there.
var shared controlplane.Shared

// configOf returns how a real API server is reached.
func configOf(t *testing.T, plane *controlplane.ControlPlane) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", plane.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// TestDiscoveryMatchesClientGo compares discovery of a real API server with client-go, in the aggregated form and in that of
// API servers before 1.30.
func TestDiscoveryMatchesClientGo(t *testing.T) {
	config := configOf(t, shared.ForTest(t))
	want := discoverWithClientGo(t, config)
	if len(want) < 10 {
		t.Fatalf("%d groups", len(want))
	}
	for form, accept := range map[string]string{"one document": acceptDiscovery, "a document each": "application/json"} {
		got, unanswered := discoverAccepting(t, config, accept, nil)
		if len(unanswered) > 0 || !maps.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%s: %v, unanswered %q\nclient-go: %v", form, got, unanswered, want)
		}
	}
}

// discoverWithClientGo returns the result of client-go's own discovery.
func discoverWithClientGo(t *testing.T, config *rest.Config) selection.Catalog {
	t.Helper()
	client, err := apidiscovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.RESTClient().(*rest.RESTClient).Client.CloseIdleConnections()
	groups, lists, err := apidiscovery.ServerGroupsAndResourcesWithContext(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	return selection.ReadCatalog(groups, lists, nil, nil)
}

// discoverAccepting runs discovery with another Accept header.
func discoverAccepting(t *testing.T, config *rest.Config, accept string, old selection.Catalog) (selection.Catalog, []string) {
	t.Helper()
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return acceptTransport{next, accept} })
	client, err := NewClient(config, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	found, unanswered, err := client.Discover(t.Context(), old)
	if err != nil {
		t.Fatal(err)
	}
	return found, unanswered
}

// acceptTransport sets the Accept header of requests.
type acceptTransport struct {
	http.RoundTripper
	accept string
}

func (a acceptTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Accept", a.accept)
	return a.RoundTripper.RoundTrip(r)
}

func (a acceptTransport) CloseIdleConnections() {
	if c, ok := a.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// TestDiscoveryIsTransferredOnceForEachChange asks a real API server again and again, and between that for another type.
func TestDiscoveryIsTransferredOnceForEachChange(t *testing.T) {
	config := configOf(t, shared.ForTest(t))
	var transferred []string
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if err == nil && response.StatusCode == http.StatusOK && r.URL.Path != "/version" {
				transferred = append(transferred, r.URL.Path)
			}
			return response, err
		})
	})
	client, err := NewClient(config, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var first selection.Catalog
	for range 5 {
		found, unanswered, err := client.Discover(t.Context(), nil)
		if first == nil {
			first = found
		}
		if err != nil || len(unanswered) > 0 || len(found) < 10 || !maps.EqualFunc(found, first, slices.Equal) {
			t.Fatalf("%v, unanswered %q, %v", found, unanswered, err)
		}
	}
	if !slices.Equal(transferred, []string{"/api", "/apis"}) {
		t.Errorf("transferred %q", transferred)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestAChangedDiscoveryIsReadAgain has a type come.
func TestAChangedDiscoveryIsReadAgain(t *testing.T) {
	document, requests := `{"items":[]}`, []string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis" {
			http.NotFound(w, r)
			return
		}
		tag := fmt.Sprintf(`"%d"`, len(document))
		w.Header().Set("Etag", tag)
		w.Header().Set("Content-Type", aggregatedType)
		if requests = append(requests, r.Header.Get("If-None-Match")); requests[len(requests)-1] == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = w.Write([]byte(document))
	}))
	defer server.Close()
	client, err := NewClient(&rest.Config{Host: server.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i, want := range []int{0, 0, 1, 1} {
		if i == 2 {
			document = `{"items":[{"metadata":{"name":"come.example"},"versions":[{"version":"v1","resources":[
				{"resource":"things","responseKind":{"kind":"Thing"},"scope":"Cluster","verbs":["list","watch"]}]}]}]}`
		}
		if found, _, err := client.Discover(t.Context(), nil); err != nil || len(found) != want {
			t.Errorf("%d: %v, %v", i, found, err)
		}
	}
	if want := []string{"", `"12"`, `"12"`, fmt.Sprintf("%q", fmt.Sprint(len(document)))}; !slices.Equal(requests, want) {
		t.Errorf("requests with %q, want %q", requests, want)
	}
}

const aggregatedType = "application/json; as=APIGroupDiscoveryList; v=v2; g=apidiscovery.k8s.io; charset=utf-8"

// TestUnansweredGroupKeepsOldCatalog checks both forms.
func TestUnansweredGroupKeepsOldCatalog(t *testing.T) {
	old := selection.Catalog{"gone.example": {{Resource: event.Resource{Group: "gone.example", Version: "v1", Resource: "things", Kind: "Thing"}}}}
	pods := selection.Served{Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, Namespaced: true, Aliases: "pod,pod,po"}
	for form, answers := range map[string]map[string]string{
		"one document": {
			"/api": aggregatedType + "\n" + `{"items":[{"metadata":{},"versions":[{"version":"v1","freshness":"Current","resources":[
				{"resource":"pods","responseKind":{"kind":"Pod"},"scope":"Namespaced","verbs":["list","watch"],
				 "singularResource":"pod","shortNames":["po"],"subresources":[{"subresource":"log"}]},
				{"resource":"bindings","verbs":["create"]}]}]}]}`,
			"/apis": aggregatedType + "\n" + `{"items":[{"metadata":{"name":"gone.example"},"versions":[{"version":"v1","freshness":"Stale"}]}]}`,
		},
		"a document each": {
			"/api": "application/json\n" + `{"versions":["v1"]}`,
			"/api/v1": "application/json\n" + `{"resources":[{"name":"pods","kind":"Pod","namespaced":true,"verbs":["list","watch"],"singularName":"pod","shortNames":["po"]},
				{"name":"pods/log","kind":"Pod","namespaced":true,"verbs":["get"]}]}`,
			"/apis":                 "application/json\n" + `{"groups":[{"name":"gone.example","versions":[{"groupVersion":"gone.example/v1","version":"v1"}]}]}`,
			"/apis/gone.example/v1": "", // 503
		},
		"no core group": {
			"/apis": aggregatedType + "\n" + `{"items":[{"metadata":{"name":"gone.example"},"versions":[{"version":"v1","freshness":"Stale"}]}]}`,
		},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer, ok := answers[r.URL.Path]
			contentType, body, _ := strings.Cut(answer, "\n")
			switch {
			case !ok:
				http.NotFound(w, r)
			case answer == "":
				http.Error(w, "the service is not available", http.StatusServiceUnavailable)
			default:
				w.Header().Set("Content-Type", contentType)
				_, _ = w.Write([]byte(body)) // ignore write errors: the client may have disconnected
			}
		}))
		found, unanswered := discoverAccepting(t, &rest.Config{Host: server.URL}, acceptDiscovery, old)
		server.Close()
		want := maps.Clone(old)
		if form != "no core group" {
			want[""] = []selection.Served{pods}
		}
		if !reflect.DeepEqual(found, want) || !slices.Equal(unanswered, []string{"gone.example"}) {
			t.Errorf("%s: found %v, want %v, unanswered %q", form, found, want, unanswered)
		}
	}
}
