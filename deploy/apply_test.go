package deploy_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kubecdc/kubecdc/test/parts/controlplane"
)

// cluster is a real API server and its admin.
type cluster struct {
	*controlplane.ControlPlane
	client *http.Client
	paths  map[string]string // where the objects of a kind are written
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := controlplane.ForTest(t)
	pem, err := os.ReadFile(c.CAFile())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	t.Cleanup(transport.CloseIdleConnections)
	return &cluster{c, &http.Client{Transport: transport}, maps.Clone(builtinPaths)}
}

// answer is the response of the API server.
type answer struct {
	code     int
	warnings []string
	flow     string // UID of the FlowSchema by which the request was let in
	body     []byte
}

// call makes a request as the admin, impersonating the user as if that is not empty.
func (c *cluster) call(t *testing.T, as, method, path, mediaType string, body []byte) answer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, c.URL()+path, strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+c.AdminToken())
	request.Header.Set("Content-Type", mediaType)
	request.Header.Set("Accept", "application/json")
	if as != "" {
		request.Header.Set("Impersonate-User", as)
		for _, group := range []string{"system:serviceaccounts", "system:serviceaccounts:kubecdc", "system:authenticated"} {
			request.Header.Add("Impersonate-Group", group)
		}
	}
	response, err := c.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header.Values("Warning"), response.Header.Get("X-Kubernetes-Pf-Flowschema-Uid"), text}
}

// builtinPaths maps kinds to the paths where their objects are written, those with a namespace in kubecdc.
var builtinPaths = map[string]string{
	"Namespace":          "/api/v1/namespaces/",
	"ServiceAccount":     "/api/v1/namespaces/kubecdc/serviceaccounts/",
	"ConfigMap":          "/api/v1/namespaces/kubecdc/configmaps/",
	"Service":            "/api/v1/namespaces/kubecdc/services/",
	"ClusterRole":        "/apis/rbac.authorization.k8s.io/v1/clusterroles/",
	"ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/",
	"StatefulSet":        "/apis/apps/v1/namespaces/kubecdc/statefulsets/",
	"NetworkPolicy":      "/apis/networking.k8s.io/v1/namespaces/kubecdc/networkpolicies/",

	"Pod":                   "/api/v1/namespaces/kubecdc/pods/",
	"Ingress":               "/apis/networking.k8s.io/v1/namespaces/kubecdc/ingresses/",
	"PersistentVolumeClaim": "/api/v1/namespaces/kubecdc/persistentvolumeclaims/",
	"PersistentVolume":      "/api/v1/persistentvolumes/",
	"StorageClass":          "/apis/storage.k8s.io/v1/storageclasses/",

	"Role":                "/apis/rbac.authorization.k8s.io/v1/namespaces/kubecdc/roles/",
	"RoleBinding":         "/apis/rbac.authorization.k8s.io/v1/namespaces/kubecdc/rolebindings/",
	"PodDisruptionBudget": "/apis/policy/v1/namespaces/kubecdc/poddisruptionbudgets/",
	"PodMonitor":          "/apis/monitoring.coreos.com/v1/namespaces/kubecdc/podmonitors/",
	"ServiceMonitor":      "/apis/monitoring.coreos.com/v1/namespaces/kubecdc/servicemonitors/",
	"PrometheusRule":      "/apis/monitoring.coreos.com/v1/namespaces/kubecdc/prometheusrules/",

	"CustomResourceDefinition":   "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/",
	"PriorityLevelConfiguration": "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations/",
	"FlowSchema":                 "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/",
}

// applyAll applies manifests as "kubectl apply --server-side" does, with unknown fields refused.
func (c *cluster) applyAll(t *testing.T, all []manifest) {
	t.Helper()
	for _, m := range all {
		path, ok := c.paths[m.Kind]
		if !ok {
			t.Fatalf("%s: this test does not know where a %s goes", m.file, m.Kind)
		}
		if strings.Contains(path, "/namespaces/kubecdc/") != (m.Meta.Namespace != "") {
			t.Errorf("%s: namespace %q", m.file, m.Meta.Namespace)
		}
		path = strings.ReplaceAll(path, "/namespaces/kubecdc/", "/namespaces/"+m.Meta.Namespace+"/")
		a := c.call(t, "", http.MethodPatch, path+m.Meta.Name+"?fieldManager=deploy-test&fieldValidation=Strict", "application/apply-patch+yaml", m.text)
		if a.code != http.StatusOK && a.code != http.StatusCreated {
			t.Errorf("%s: %d %s", m.file, a.code, a.body)
		}
		for _, warning := range a.warnings {
			t.Errorf("%s: the API server warns: %s", m.file, warning)
		}
	}
}

// until looks until something is so, for a minute at most: the API server acts by what was applied a moment later.
func until(so func() bool) bool {
	for deadline := time.Now().Add(time.Minute); !so(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// exporter is the service account the Pod runs as.
const exporter = "system:serviceaccount:kubecdc:exporter"

// The cluster is started once for all promises about it.
func TestTheBaseOnARealAPIServer(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	c.applyAll(t, manifests(t, base, "Kustomization"))
	t.Run("TheAccountMayDoWhatIsSelectedAndNothingElse", c.checkRights)
	t.Run("RequestsOfTheAccountAreJudgedSo", c.checkRequests)
	t.Run("ThePodKeepsTheRestrictedPodSecurityStandard", c.checkPod)
	t.Run("FlowControlGivesTheAccountAShareOfItsOwn", c.checkFlow)
}

// checkFlow applies the component and waits until the API server acts by it.
func (c *cluster) checkFlow(t *testing.T) {
	c.applyAll(t, manifests(t, "kustomize/components/flow-control", "Component"))
	var schema struct {
		Metadata struct{ UID string }
	}
	a := c.call(t, "", http.MethodGet, c.paths["FlowSchema"]+"kubecdc-exporter", "application/json", nil)
	if err := json.Unmarshal(a.body, &schema); err != nil || schema.Metadata.UID == "" {
		t.Fatalf("%d %s (%v)", a.code, a.body, err)
	}
	own := func(user, path string) bool {
		return c.call(t, user, http.MethodGet, path, "application/json", nil).flow == schema.Metadata.UID
	}
	if !until(func() bool { return own(exporter, "/api/v1/pods") }) {
		t.Fatal("the account's requests are not let in by its own FlowSchema")
	}
	for _, path := range []string{"/apis", "/apis/apps/v1/deployments", "/api/v1/namespaces/kube-system"} {
		if !own(exporter, path) {
			t.Errorf("GET %s of the account is not let in by its own FlowSchema", path)
		}
	}
	if own("system:serviceaccount:kubecdc:nobody", "/api/v1/pods") {
		t.Error("another account is let in by it too")
	}
}

// checkRights asks the API server for all rights of the account, and takes off those that every account has.
func (c *cluster) checkRights(t *testing.T) {
	ask := func(user string) (all []string, complete bool) {
		a := c.call(t, user, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", "application/json",
			[]byte(`{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectRulesReview","spec":{"namespace":"default"}}`))
		var review struct {
			Status struct {
				ResourceRules []rule `json:"resourceRules"`
				Incomplete    bool   `json:"incomplete"`
			} `json:"status"`
		}
		if err := json.Unmarshal(a.body, &review); err != nil || a.code != http.StatusCreated {
			t.Fatalf("%d %s (%v)", a.code, a.body, err)
		}
		return rights(review.Status.ResourceRules), !review.Status.Incomplete
	}
	var own []string
	var complete bool // not while a binding is known and its role is not
	want := needed(loaded(t))
	if !until(func() bool {
		everybody, first := ask("system:serviceaccount:kubecdc:nobody")
		all, second := ask(exporter)
		complete = first && second
		own = slices.DeleteFunc(all, func(right string) bool { return slices.Contains(everybody, right) })
		return complete && reflect.DeepEqual(own, want)
	}) {
		t.Errorf("may (complete: %t)\n%s\nneeds\n%s", complete, strings.Join(own, "\n"), strings.Join(want, "\n"))
	}
}

func (c *cluster) checkRequests(t *testing.T) {
	for request, want := range map[string]int{
		"GET /api/v1/pods":                                   200,
		"GET /apis/apps/v1/deployments":                      200,
		"GET /api/v1/namespaces/kube-system":                 200,
		"GET /apis":                                          200,
		"GET /api/v1/secrets":                                403,
		"GET /api/v1/namespaces":                             403,
		"GET /api/v1/namespaces/default":                     403,
		"GET /api/v1/nodes":                                  403,
		"GET /apis/apps/v1/replicasets":                      403,
		"POST /api/v1/namespaces/default/configmaps":         403,
		"DELETE /api/v1/namespaces/default/configmaps":       403,
		"GET /api/v1/namespaces/kubecdc/configmaps/exporter": 403, // mounted by the kubelet; list is what a watch needs
	} {
		method, path, _ := strings.Cut(request, " ")
		var got int
		if !until(func() bool { got = c.call(t, exporter, method, path, "application/json", nil).code; return got == want }) {
			t.Errorf("%s: %d, want %d", request, got, want)
		}
	}
}

// checkPod sees that a Pod of the StatefulSet is let in, and that one with more rights is not.
func (c *cluster) checkPod(t *testing.T) {
	var set podOwner
	read(t, "statefulset.yaml", &set)
	spec := set.Spec.Template.Spec
	c.admit(t, spec)
	spec["hostNetwork"] = true
	if a := c.create(t, spec); a.code != http.StatusForbidden || !strings.Contains(string(a.body), "PodSecurity") {
		t.Errorf("a Pod on the host's network was not refused for its rights: %d %s", a.code, a.body)
	}
}

// podOwner is a StatefulSet as far as its Pod is concerned.
type podOwner struct {
	Spec struct {
		Template struct {
			Spec map[string]any `yaml:"spec"`
		} `yaml:"template"`
	} `yaml:"spec"`
}

// admit has the API server judge the Pod of a StatefulSet by the restricted Pod Security Standard of the namespace. No
// controller runs here, so the volume that it would add is added.
func (c *cluster) admit(t *testing.T, spec map[string]any) {
	t.Helper()
	volumes, _ := spec["volumes"].([]any)
	if !slices.ContainsFunc(volumes, func(v any) bool { return v.(map[string]any)["name"] == "journal" }) { // it is a claim of the set
		claim := map[string]any{"name": "journal", "persistentVolumeClaim": map[string]any{"claimName": "journal-exporter-0"}}
		spec["volumes"] = append(volumes, claim)
	}
	if a := c.create(t, spec); a.code != http.StatusCreated || len(a.warnings) > 0 {
		t.Errorf("%d %v %s", a.code, a.warnings, a.body)
	}
}

// create asks for a Pod without making it.
func (c *cluster) create(t *testing.T, spec map[string]any) answer {
	t.Helper()
	text, err := yaml.Marshal(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "exporter-0"}, "spec": spec})
	if err != nil {
		t.Fatal(err)
	}
	return c.call(t, "", http.MethodPost, "/api/v1/namespaces/kubecdc/pods?dryRun=All&fieldValidation=Strict", "application/yaml", text)
}
