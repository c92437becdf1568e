package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubecdc/kubecdc/test/e2e/internal/proxy"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

const webConfigMaps = "resources: [{select: [configmaps], namespaces: {include: [web]}}]\n"

// TestRewrittenTokenFileIsReloaded is how a Pod gets new tokens of its service account: the first one is taken back while
// the exporter runs, and all connections end, since a watch that is open needs no token. What else may be replaced is
// tried in pkg/source/apiserver.
func TestRewrittenTokenFileIsReloaded(t *testing.T) {
	require.Long(t)
	l := newTokens(t)
	file := filepath.Join(l.dir, "token")
	first := l.token(0)
	l.write(file, first)
	l.connect(file)
	_, config, stop := l.start()
	defer stop()
	l.arrives(config, "first")
	l.write(file, l.token(1))
	l.revoke(first)
	l.arrives(config, "second")
	if log := readFile(t, config+".log"); strings.Contains(log, "eyJ") { // as each token begins
		t.Errorf("a token is in the log:\n%s", log)
	}
}

// tokens are of a service account, each good as long as a Secret exists.
type tokens struct {
	*restricted
	between *proxy.Proxy
}

var serviceAccounts = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}

func newTokens(t *testing.T) *tokens {
	t.Helper()
	l := &tokens{restricted: newRestricted(t, webConfigMaps)}
	l.between = proxyFor(t, l.controlPlane.APIServers())
	l.must(l.cluster.CreateNamespace(t.Context(), "kubecdc"))
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": "exporter"}}}
	l.must(createIn(t.Context(), l.admin.Resource(serviceAccounts).Namespace("kubecdc"), o))
	l.apply(l.command("rbac", "--config", l.config))
	l.awaitAccess("")
	return l
}

// connect writes the kubeconfig, with a file of the token.
func (l *tokens) connect(tokenFile string) {
	l.t.Helper()
	path := filepath.Join(l.dir, "kubeconfig-rotating")
	l.must(l.between.Kubeconfig(l.controlPlane.Kubeconfig(), path))
	config, err := clientcmd.LoadFromFile(path)
	l.must(err)
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &api.AuthInfo{TokenFile: tokenFile}
	}
	l.must(clientcmd.WriteToFile(*config, path))
	l.kubeconfig = path
}

// arrives creates an object and waits until it is emitted.
func (l *tokens) arrives(config, name string) {
	l.t.Helper()
	l.must(l.cluster.Create(l.t.Context(), workload.ConfigMaps, "web", name))
	l.await(config+".log", func() string {
		if strings.Contains(readFile(l.t, config+".changes"), fmt.Sprintf(`"name":%q,`, name)) {
			return ""
		}
		return "the object " + name
	})
}

// write replaces a file at once, as a kubelet does.
func (l *tokens) write(path, text string) {
	l.t.Helper()
	l.must(os.WriteFile(path+".new", []byte(text), 0o600))
	l.must(os.Rename(path+".new", path))
}

var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

func bound(generation int) string { return fmt.Sprintf("bound-%d", generation) }

func (l *tokens) token(generation int) string {
	l.t.Helper()
	ours := l.admin.Resource(secrets).Namespace("kubecdc")
	l.must(createIn(l.t.Context(), ours, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": bound(generation)}}}))
	var made, answer *unstructured.Unstructured
	l.must(workload.Persist(l.t.Context(), func() (err error) {
		made, err = ours.Get(l.t.Context(), bound(generation), metav1.GetOptions{})
		return err
	}))
	request := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": map[string]any{"name": "exporter"},
		"spec": map[string]any{"boundObjectRef": map[string]any{
			"apiVersion": "v1", "kind": "Secret", "name": made.GetName(), "uid": string(made.GetUID()),
		}},
	}}
	l.must(workload.Persist(l.t.Context(), func() (err error) {
		answer, err = l.admin.Resource(serviceAccounts).Namespace("kubecdc").Create(l.t.Context(), request, metav1.CreateOptions{}, "token")
		return err
	}))
	token, _, err := unstructured.NestedString(answer.Object, "status", "token")
	l.must(err)
	return token
}

// revoke makes the first token worthless and waits until it is: the API server remembers for ten seconds what it found good.
func (l *tokens) revoke(first string) {
	l.t.Helper()
	l.must(l.cluster.Delete(l.t.Context(), workload.Kind{Resource: secrets}, "kubecdc", bound(0)))
	config, err := clientcmd.BuildConfigFromFlags("", l.controlPlane.Kubeconfig())
	l.must(err)
	config.BearerToken = first
	client, err := dynamic.NewForConfig(config)
	l.must(err)
	l.await("", func() string {
		_, err := client.Resource(workload.ConfigMaps.Resource).Namespace("web").List(l.t.Context(), metav1.ListOptions{Limit: 1})
		if apierrors.IsUnauthorized(err) {
			return ""
		}
		return fmt.Sprintf("the old token to be refused: %v", err)
	})
	l.between.Cut()
}
