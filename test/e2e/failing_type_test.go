package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/test/e2e/internal/neighbour"
	"github.com/kubecdc/kubecdc/test/e2e/internal/proxy"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
)

// parcels are custom resources of two versions between which a webhook converts. They are stored in the older one, and
// watched in the newer.
var parcels = workload.Kind{
	Resource: schema.GroupVersionResource{Group: "converted.kubecdc.io", Version: "v1", Resource: "parcels"},
	Object: func() *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "converted.kubecdc.io/v1", "kind": "Parcel"}}
	},
}

// TestFailingTypeStopsNoOther selects everything, with the printed rights and nothing more, and lets one type after
// the other fall ill.
func TestFailingTypeStopsNoOther(t *testing.T) {
	w := newTypeFaults(t)
	faults := []struct {
		name, resource, state string
		falls, heals          func()
		missed                func(name string) // creates an object of the type meanwhile
	}{
		{
			name: "the conversion webhook is down", resource: "parcels.converted.kubecdc.io", state: "unreachable",
			falls: w.webhook.Down, heals: func() { w.must(w.webhook.Up()) },
			missed: func(name string) { w.must(w.cluster.Create(t.Context(), parcels, "web", name)) },
		},
		{
			name: "the aggregated API answers 503", resource: "things.aggregated.kubecdc.io", state: "unreachable",
			falls: func() { w.aggregated.Refuse(true) }, heals: func() { w.aggregated.Refuse(false) },
			missed: w.aggregated.Create,
		},
		{
			name: "the aggregated API is down", resource: "things.aggregated.kubecdc.io", state: "unreachable",
			falls: w.aggregated.Down, heals: func() { w.must(w.aggregated.Up()) },
			missed: w.aggregated.Create,
		},
		{
			name: "a right is taken away", resource: "secrets", state: "forbidden",
			falls: func() { w.allow("secrets", false) }, heals: func() { w.allow("secrets", true) },
			missed: func(name string) {
				w.create(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, "web", secret(name))
			},
		},
	}
	for i, s := range faults {
		t.Logf("%s", s.name)
		s.falls()
		name := fmt.Sprintf("sick-%d", i)
		s.missed(name)
		w.between.Cut() // else a watch that is open goes on
		w.awaitStates(s.resource, s.state)
		w.awaitNamed(s.resource)
		w.writeOthers(s.resource, name+"-others")
		s.heals()
		w.awaitStates("", "")
		w.awaitArrived(s.resource, name)
	}
}

// typeFaults is a cluster with neighbours that can fall ill, and an exporter that watches everything.
type typeFaults struct {
	*restricted
	between    *proxy.Proxy
	webhook    *neighbour.Webhook
	aggregated *neighbour.Aggregated
	roles      []role
	config     string
}

func newTypeFaults(t *testing.T) *typeFaults {
	t.Helper()
	w := &typeFaults{restricted: newRestricted(t, "resources: [{select: [\"*\"]}]\n")}
	var err error
	w.webhook, err = neighbour.StartWebhook()
	w.must(err)
	t.Cleanup(w.webhook.Down)
	w.aggregated, err = neighbour.StartAggregated()
	w.must(err)
	t.Cleanup(w.aggregated.Down)
	w.defineParcels()
	w.must(w.cluster.Create(t.Context(), parcels, "web", "first"))
	w.registerThings()
	w.aggregated.Create("first")
	w.await("", func() string {
		if _, served := w.access()["things.aggregated.kubecdc.io"]; served {
			return ""
		}
		return "the aggregated API to be served"
	})

	w.roles = w.apply(w.command("rbac", "--config", w.restricted.config))
	w.awaitAccess("")
	w.between = proxyFor(t, w.controlPlane.APIServers())
	through := filepath.Join(w.dir, "kubeconfig-through-proxy")
	w.must(w.between.Kubeconfig(w.kubeconfig, through))
	w.kubeconfig = through
	_, config, stop := w.start()
	t.Cleanup(stop)
	w.config = config
	w.awaitStates("", "")
	w.awaitArrived("parcels.converted.kubecdc.io", "first")
	w.awaitArrived("things.aggregated.kubecdc.io", "first")
	return w
}

// defineParcels waits until both versions are served.
func (w *typeFaults) defineParcels() {
	w.t.Helper()
	version := func(name string, storage bool) map[string]any {
		return map[string]any{"name": name, "served": true, "storage": storage, "schema": map[string]any{
			"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
		}}
	}
	w.create(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}, "", map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "parcels.converted.kubecdc.io"},
		"spec": map[string]any{
			"group": "converted.kubecdc.io", "scope": "Namespaced", "names": map[string]any{"plural": "parcels", "kind": "Parcel"},
			"versions": []any{version("v1", true), version("v2", false)},
			"conversion": map[string]any{"strategy": "Webhook", "webhook": map[string]any{
				"conversionReviewVersions": []any{"v1"},
				"clientConfig": map[string]any{
					"url": fmt.Sprintf("https://127.0.0.1:%d/", w.webhook.Port()), "caBundle": w.webhook.CA(),
				},
			}},
		},
	})
	w.await("", func() string {
		for _, version := range []string{"v1", "v2"} {
			r := parcels.Resource
			r.Version = version
			if _, err := w.admin.Resource(r).List(w.t.Context(), metav1.ListOptions{}); err != nil {
				return err.Error()
			}
		}
		return ""
	})
}

// registerThings registers the aggregated API server. A Service with an external name is the way to one that does
// not run in the cluster.
func (w *typeFaults) registerThings() {
	w.t.Helper()
	w.create(schema.GroupVersionResource{Version: "v1", Resource: "services"}, "web", map[string]any{
		"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": "aggregated"},
		"spec": map[string]any{"type": "ExternalName", "externalName": "localhost"},
	})
	version := neighbour.Things.GroupVersion()
	w.create(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}, "", map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": version.Version + "." + version.Group},
		"spec": map[string]any{
			"group": version.Group, "version": version.Version, "groupPriorityMinimum": int64(1000), "versionPriority": int64(15),
			"insecureSkipTLSVerify": true,
			"service":               map[string]any{"namespace": "web", "name": "aggregated", "port": int64(w.aggregated.Port())},
		},
	})
}

func secret(name string) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": name}}
}

func (w *typeFaults) create(resource schema.GroupVersionResource, namespace string, object map[string]any) {
	w.t.Helper()
	w.must(createIn(w.t.Context(), w.admin.Resource(resource).Namespace(namespace), &unstructured.Unstructured{Object: object}))
}

// allow gives the right to read a resource, or takes it.
func (w *typeFaults) allow(resource string, yes bool) {
	w.t.Helper()
	for _, r := range w.roles {
		for i := range r.rules() {
			if r.resource(i) != resource {
				continue
			}
			rules := r.rules()
			if !yes {
				rules = slices.Delete(rules, i, i+1)
			}
			w.set(r, rules)
		}
	}
	if yes {
		resource = ""
	}
	w.awaitAccess(resource)
}

// awaitStates waits until everything is live but one resource.
func (w *typeFaults) awaitStates(resource, state string) {
	w.t.Helper()
	w.await(w.config+".log", func() string {
		states := w.states()
		if len(states) < 50 {
			return fmt.Sprintf("more than %d scopes", len(states))
		}
		return wrong(states, resource, state, "live")
	})
}

// awaitNamed waits until readiness and the status page name the failing one. A forbidden type does not make the exporter
// unready; it is named nevertheless.
func (w *typeFaults) awaitNamed(resource string) {
	w.t.Helper()
	for path, part := range map[string]string{"/readyz?verbose": "resource/" + resource, "/": "<strong>resource/" + resource + "</strong>"} {
		w.await(w.config+".log", func() string {
			if text := w.get(path); !strings.Contains(text, part) {
				return fmt.Sprintf("%q in %s:\n%s", part, path, text)
			}
			return ""
		})
	}
}

// writeOthers creates objects of the kinds that are well and waits for them.
func (w *typeFaults) writeOthers(sick, name string) {
	w.t.Helper()
	for id, kind := range written {
		resource, _, _ := strings.Cut(id, ";")
		w.must(w.cluster.Create(w.t.Context(), kind, "web", name))
		w.awaitArrived(resource, name)
	}
	if sick != "parcels.converted.kubecdc.io" {
		w.must(w.cluster.Create(w.t.Context(), parcels, "web", name))
		w.awaitArrived("parcels.converted.kubecdc.io", name)
	}
	if sick != "things.aggregated.kubecdc.io" {
		w.aggregated.Create(name)
		w.awaitArrived("things.aggregated.kubecdc.io", name)
	}
}

// awaitArrived waits until an object was emitted.
func (w *typeFaults) awaitArrived(resource, name string) {
	w.t.Helper()
	plural, group, _ := strings.Cut(resource, ".")
	w.await(w.config+".log", func() string {
		for line := range strings.Lines(readFile(w.t, w.config+".changes")) {
			head, _, _ := strings.Cut(line, `"uid":`)
			if strings.Contains(head, fmt.Sprintf(`"group":%q`, group)) && strings.Contains(head, fmt.Sprintf(`"resource":%q`, plural)) &&
				strings.HasSuffix(head, fmt.Sprintf(`"name":%q,`, name)) {
				return ""
			}
		}
		return fmt.Sprintf("%s %s", resource, name)
	})
}

// proxyFor starts a proxy before API servers.
func proxyFor(t *testing.T, apiServers []*controlplane.APIServer) *proxy.Proxy {
	t.Helper()
	var addresses []string
	for _, a := range apiServers {
		addresses = append(addresses, a.Address())
	}
	p, err := proxy.Start(addresses...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}
