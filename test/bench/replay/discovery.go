package replay

import (
	"net/http"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
)

// served are the resources that discovery names.
var served = []metav1.APIResource{
	{Name: "events", SingularName: "event", Namespaced: true, Kind: "Event", Verbs: []string{"get", "list", "watch"}},
	{Name: "namespaces", SingularName: "namespace", Kind: "Namespace", Verbs: []string{"get"}},
	{Name: "pods", SingularName: "pod", Namespaced: true, Kind: "Pod", Verbs: []string{"get", "list", "watch"}},
}

func (s *Server) routeDiscovery(mux *http.ServeMux) {
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, "application/json", version.Info{Major: "1", Minor: "37", GitVersion: "v1.37.1", Platform: "linux/amd64"})
	})
	mux.HandleFunc("GET /api", func(w http.ResponseWriter, r *http.Request) {
		serveGroups(w, r, []apidiscovery.APIGroupDiscovery{coreGroup()}, metav1.APIVersions{
			TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
		})
	})
	mux.HandleFunc("GET /apis", func(w http.ResponseWriter, r *http.Request) {
		serveGroups(w, r, []apidiscovery.APIGroupDiscovery{}, metav1.APIGroupList{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{},
		})
	})
	mux.HandleFunc("GET /api/v1", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, "application/json", metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1", APIResources: served,
		})
	})
	mux.HandleFunc("GET /api/v1/namespaces/kube-system", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, "application/json", kubeSystem())
	})
}

const aggregatedType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// serveGroups answers in the aggregated form (KEP-3352) where the client takes it, else in the old one.
func serveGroups(w http.ResponseWriter, r *http.Request, groups []apidiscovery.APIGroupDiscovery, legacy any) {
	if !strings.Contains(r.Header.Get("Accept"), aggregatedType) {
		writeJSON(w, http.StatusOK, "application/json", legacy)
		return
	}
	writeJSON(w, http.StatusOK, aggregatedType, apidiscovery.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"}, Items: groups,
	})
}

// coreGroup is the core group in the aggregated form.
func coreGroup() apidiscovery.APIGroupDiscovery {
	v1 := apidiscovery.APIVersionDiscovery{Version: "v1", Freshness: apidiscovery.DiscoveryFreshnessCurrent}
	for _, r := range served {
		scope := apidiscovery.ScopeCluster
		if r.Namespaced {
			scope = apidiscovery.ScopeNamespace
		}
		v1.Resources = append(v1.Resources, apidiscovery.APIResourceDiscovery{
			Resource: r.Name, SingularResource: r.SingularName, Scope: scope, Verbs: r.Verbs,
			ResponseKind: &metav1.GroupVersionKind{Version: "v1", Kind: r.Kind},
		})
	}
	return apidiscovery.APIGroupDiscovery{Versions: []apidiscovery.APIVersionDiscovery{v1}}
}

// kubeSystem is the namespace with the UID that names the cluster.
func kubeSystem() *corev1.Namespace {
	return &corev1.Namespace{
		TypeMeta: metav1.TypeMeta{Kind: "Namespace", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "kube-system", UID: "5c8a1b0e-7d3f-4e21-a6b4-90f1d2c3e4b5", ResourceVersion: "4",
			Labels: map[string]string{"kubernetes.io/metadata.name": "kube-system"},
		},
		Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
	}
}
