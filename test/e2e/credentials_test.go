package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	"github.com/kubecdc/kubecdc/test/parts/certificates"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
)

const webConfigMaps = "resources: [{select: [configmaps], namespaces: {include: [web]}}]\n"

// TestReplacedKubeconfigIsReadAgain has the token in the kubeconfig itself.
func TestReplacedKubeconfigIsReadAgain(t *testing.T) {
	l := newTokens(t)
	l.rotate(func(generation int) {
		l.user = &api.AuthInfo{Token: l.token(generation)}
		l.connect()
	}, l.revoke)
}

// TestRewrittenTokenFileIsReloaded is how a Pod gets new tokens of its service account.
func TestRewrittenTokenFileIsReloaded(t *testing.T) {
	l := newTokens(t)
	file := filepath.Join(l.dir, "token")
	l.user = &api.AuthInfo{TokenFile: file}
	l.rotate(func(generation int) { l.write(file, l.token(generation)) }, l.revoke)
}

// TestExecPluginRunsAgainAfterExpiry has a plugin that prints the content of a file, without an expiry.
func TestExecPluginRunsAgainAfterExpiry(t *testing.T) {
	l := newTokens(t)
	file := filepath.Join(l.dir, "credential.json")
	l.user = &api.AuthInfo{Exec: &api.ExecConfig{
		Command: "/bin/cat", Args: []string{file}, APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: api.NeverExecInteractiveMode,
	}}
	l.rotate(func(generation int) {
		l.write(file, fmt.Sprintf(`{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":%q}}`, l.token(generation)))
	}, l.revoke)
}

// TestRewrittenClientCertificateIsReloaded gives each certificate another name, and rights to one name at a time:
// no API server takes back a certificate. A connection keeps the one it began with; each new one begins with what the file
// holds, or held a second ago.
func TestRewrittenClientCertificateIsReloaded(t *testing.T) {
	authority := certificates.New(t)
	ca := filepath.Join(t.TempDir(), "clients.pem")
	if err := os.WriteFile(ca, authority.PEM, 0o600); err != nil {
		t.Fatal(err)
	}
	l := newCredentials(t, "--client-ca-file="+ca)
	cert, key := filepath.Join(l.dir, "client.crt"), filepath.Join(l.dir, "client.key")
	l.user = &api.AuthInfo{ClientCertificate: cert, ClientKey: key}
	name := func(generation int) string { return fmt.Sprintf("certified-%d", generation) }
	namespaces := workload.Kind{Resource: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}}
	l.rotate(func(generation int) {
		l.must(l.cluster.Allow(t.Context(), name(generation), name(generation), workload.ConfigMaps, namespaces))
		certPEM, keyPEM := authority.IssueFor(t, name(generation))
		l.write(key, string(keyPEM))
		l.write(cert, string(certPEM))
	}, func() {
		l.await("", func() string {
			entries, err := l.controlPlane.AuditEntries()
			l.must(err)
			if slices.ContainsFunc(entries, func(e controlplane.AuditEntry) bool { return e.User == name(1) }) {
				return ""
			}
			l.between.Cut()
			return "a request of " + name(1)
		})
		bindings := schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"}
		l.must(l.cluster.Delete(t.Context(), workload.Kind{Resource: bindings}, "", name(0)))
	})
}

// credentials is an exporter with a changing credential.
type credentials struct {
	*restricted
	between *proxy.Proxy
	user    *api.AuthInfo // as in a kubeconfig
}

func newCredentials(t *testing.T, args ...string) *credentials {
	t.Helper()
	l := &credentials{restricted: newRestricted(t, webConfigMaps, args...)}
	l.between = proxyFor(t, l.controlPlane.APIServers())
	return l
}

// rotate issues a credential, starts the exporter with it, issues another and takes back the first one. A watch that is
// open needs no credential, so revoke ends all connections too.
func (c *credentials) rotate(issue func(generation int), revoke func()) {
	c.t.Helper()
	issue(0)
	c.connect()
	_, config, stop := c.start()
	defer stop()
	c.arrives(config, "first")
	issue(1)
	revoke()
	c.arrives(config, "second")
	if log := readFile(c.t, config+".log"); strings.Contains(log, "eyJ") { // as each token begins
		c.t.Errorf("a token is in the log:\n%s", log)
	}
}

// connect writes the kubeconfig.
func (c *credentials) connect() {
	c.t.Helper()
	path := filepath.Join(c.dir, "kubeconfig-rotating")
	c.must(c.between.Kubeconfig(c.controlPlane.Kubeconfig(), path))
	config, err := clientcmd.LoadFromFile(path)
	c.must(err)
	for name := range config.AuthInfos {
		config.AuthInfos[name] = c.user
	}
	c.must(clientcmd.WriteToFile(*config, path))
	c.kubeconfig = path
}

// arrives creates an object and waits until it is emitted.
func (c *credentials) arrives(config, name string) {
	c.t.Helper()
	c.must(c.cluster.Create(c.t.Context(), workload.ConfigMaps, "web", name))
	c.await(config+".log", func() string {
		if strings.Contains(readFile(c.t, config+".changes"), fmt.Sprintf(`"name":%q,`, name)) {
			return ""
		}
		return "the object " + name
	})
}

// write replaces a file at once, as a kubelet does.
func (c *credentials) write(path, text string) {
	c.t.Helper()
	c.must(os.WriteFile(path+".new", []byte(text), 0o600))
	c.must(os.Rename(path+".new", path))
}

// tokens are of a service account, each good as long as a Secret exists.
type tokens struct {
	*credentials
	first string
}

var serviceAccounts = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}

func newTokens(t *testing.T) *tokens {
	t.Helper()
	l := &tokens{credentials: newCredentials(t)}
	l.must(l.cluster.CreateNamespace(t.Context(), "kubecdc"))
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": "exporter"}}}
	l.must(createIn(t.Context(), l.admin.Resource(serviceAccounts).Namespace("kubecdc"), o))
	l.apply(l.command("rbac", "--config", l.config))
	l.awaitAccess("")
	return l
}

var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

func bound(generation int) string { return fmt.Sprintf("bound-%d", generation) }

func (l *tokens) token(generation int) string {
	l.t.Helper()
	ours := l.admin.Resource(secrets).Namespace("kubecdc")
	l.must(createIn(l.t.Context(), ours, &unstructured.Unstructured{Object: secret(bound(generation))}))
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
	if generation == 0 {
		l.first = token
	}
	return token
}

// revoke makes the first token worthless and waits until it is: the API server remembers for ten seconds what it found good.
func (l *tokens) revoke() {
	l.t.Helper()
	l.must(l.cluster.Delete(l.t.Context(), workload.Kind{Resource: secrets}, "kubecdc", bound(0)))
	config, err := clientcmd.BuildConfigFromFlags("", l.controlPlane.Kubeconfig())
	l.must(err)
	config.BearerToken = l.first
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
