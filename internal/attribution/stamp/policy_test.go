package stamp

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

// cluster is a real API server with users that may do everything.
type cluster struct {
	*controlplane.ControlPlane
	t      testing.TB
	client *http.Client
	shared bool
}

const (
	controllerManager = "system:kube-controller-manager"
	reader            = "reader" // has no rights of its own
)

var users = []string{"alice", "bob", "carol", "mallory", "a user with spaces/and:more", controllerManager}

// shared is the API server of all tests that ask for no arguments of their own. Each leaves it as it was.
var shared = controlplane.Shared{Options: clusterOptions()}

func TestMain(m *testing.M) { leaks.MainWithServers(m, shared.Stop) }

func clusterOptions(args ...string) controlplane.Options {
	o := controlplane.Options{NoAudit: true, APIServerArgs: args}
	for _, name := range users {
		o.Users = append(o.Users, controlplane.User{Name: name, Token: tokenOf(name), Groups: []string{"system:masters"}})
	}
	o.Users = append(o.Users, controlplane.User{Name: reader, Token: tokenOf(reader)})
	return o
}

// startCluster returns the shared API server, or one with arguments.
func startCluster(t testing.TB, args ...string) *cluster {
	t.Helper()
	own := controlplane.Shared{Options: clusterOptions(args...)}
	from := &shared
	if len(args) > 0 {
		from = &own
		t.Cleanup(func() {
			if err := own.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	plane := from.ForTest(t)
	pem, err := os.ReadFile(plane.CAFile())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	t.Cleanup(transport.CloseIdleConnections)
	return &cluster{plane, t, &http.Client{Transport: transport, Timeout: time.Minute}, from == &shared}
}

func tokenOf(user string) string {
	return "token-" + strings.NewReplacer(" ", "-", "/", "-", ":", "-").Replace(user)
}

// object is an answer of the API server.
type object struct {
	Kind     string
	Message  string
	Metadata struct {
		Name, Namespace, UID, ResourceVersion string
		Annotations, Labels                   map[string]string
	}
	text []byte
}

// at returns how a stamp names this version of the object.
func (o object) at() string {
	collections := map[string]string{"ConfigMap": "/configmaps", "Pod": "/pods", "Namespace": "/namespaces", "Deployment": "apps/deployments",
		"ReplicaSet": "apps/replicasets", "Widget": "example.io/widgets"}
	return o.Metadata.ResourceVersion + ":" + collections[o.Kind] + "/" + o.Metadata.Namespace + "/" + o.Metadata.Name
}

// stamp returns the stamp of the object, as written.
func (o object) stamp() string { return o.Metadata.Annotations[event.StampAnnotation] }

const mergePatch, strategicPatch, applyPatch = "application/merge-patch+json", "application/strategic-merge-patch+json", "application/apply-patch+yaml"

// send makes a request of a user with a content type, by default JSON or a merge patch, and returns the answer.
func (c *cluster) send(user, method, path, body string, contentType ...string) (int, object) {
	c.t.Helper()
	request, err := http.NewRequestWithContext(context.WithoutCancel(c.t.Context()), method, c.URL()+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+tokenOf(user))
	request.Header.Set("Content-Type", "application/json")
	if method == "PATCH" {
		request.Header.Set("Content-Type", mergePatch)
	}
	for _, one := range contentType {
		if accept, is := strings.CutPrefix(one, "accept:"); is {
			request.Header.Set("Accept", accept)
			continue
		}
		request.Header.Set("Content-Type", one)
	}
	response, err := c.client.Do(request)
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	o := object{}
	if o.text, err = io.ReadAll(response.Body); err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(o.text, &o); err != nil && response.StatusCode < 300 {
		c.t.Fatalf("%s %s: %v: %s", method, path, err, o.text)
	}
	if c.shared && response.StatusCode == http.StatusCreated && o.Kind != "Status" && !strings.Contains(path, "dryRun") {
		at, _, _ := strings.Cut(path, "?")
		if method == "POST" {
			at += "/" + o.Metadata.Name
		}
		c.t.Cleanup(func() {
			c.send("alice", "DELETE", at+"?gracePeriodSeconds=0", "")
			c.awaitGone(at)
		})
	}
	return response.StatusCode, o
}

// mustSend is send for a request that succeeds.
func (c *cluster) mustSend(user, method, path, body string, contentType ...string) object {
	c.t.Helper()
	code, o := c.send(user, method, path, body, contentType...)
	if code >= 300 {
		c.t.Fatalf("%s %s by %s: %d %s", method, path, user, code, o.text)
	}
	return o
}

const (
	policiesPath = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
	bindingsPath = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings"
	configMaps   = "/api/v1/namespaces/default/configmaps"
	deployments  = "/apis/apps/v1/namespaces/default/deployments"
	pods         = "/api/v1/namespaces/default/pods"
	widgets      = "/apis/example.io/v1/namespaces/default/widgets"
)

// applyPolicy applies the printed policy for resources, and waits until the API server has it.
func (c *cluster) applyPolicy(resources ...string) {
	c.t.Helper()
	var all []event.Resource
	for _, name := range resources {
		all = append(all, event.ParseResourceName(name))
	}
	text, err := RenderPolicy(all)
	if err != nil {
		c.t.Fatal(err)
	}
	policy, binding, _ := strings.Cut(text, "---\n")
	c.t.Cleanup(c.removePolicy)
	c.mustSend("alice", "POST", policiesPath, policy, "application/yaml")
	c.mustSend("alice", "POST", bindingsPath, binding, "application/yaml")
	c.awaitStamps(true)
}

// awaitStamps waits until the API server stamps, or does not stamp, ConfigMaps.
func (c *cluster) awaitStamps(stamps bool) {
	c.t.Helper()
	c.awaitAnswer("POST", configMaps+"?dryRun=All", `{"metadata":{"generateName":"probe-"}}`, func(code int, o object) bool {
		if code >= 300 {
			c.t.Fatalf("refused: %s", o.text)
		}
		return (o.stamp() != "") == stamps
	})
}

// awaitAnswer sends a request again and again, until the answer is accepted.
func (c *cluster) awaitAnswer(method, path, body string, accepts func(code int, o object) bool) {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) { // also when the test has ended
		code, o := c.send("alice", method, path, body)
		if accepts(code, o) {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s %s: %d %s", method, path, code, o.text)
		}
	}
}

func (c *cluster) verifyStamp(what string, o object, want string) {
	c.t.Helper()
	if o.stamp() != want {
		c.t.Errorf("%s: the stamp is %q, want %q", what, o.stamp(), want)
	}
}

const deployment = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d","annotations":{%s}},"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},` +
	`"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`

// forged is the member of a forged stamp that would be believed for a write by mallory that replaces a version.
func forged(replaced string) string {
	return fmt.Sprintf(`"%s":"%s alice"`, event.StampAnnotation, replaced)
}

// TestEveryStampIsOfTheWriter: whatever a client sends, the stamp of an object that its write changed is its own.
func TestEveryStampIsOfTheWriter(t *testing.T) {
	c := startCluster(t)
	c.applyPolicy("configmaps", "deployments.apps", "pods", "widgets.example.io", "namespaces")
	for _, user := range users[:5] {
		o := c.mustSend(user, "POST", configMaps, `{"metadata":{"generateName":"x-","annotations":{`+forged("new:/configmaps/default/x-/")+`}},"data":{"a":"1"}}`)
		c.verifyStamp("create by "+user, o, "new:/configmaps/default/x-/ "+user)
	}
	x := configMaps + "/x"
	made := c.mustSend("alice", "POST", configMaps, `{"metadata":{"name":"x"},"data":{"a":"1"}}`)
	c.verifyStamp("create", made, "new:/configmaps/default/x alice")
	patched := c.mustSend("bob", "PATCH", x, `{"data":{"a":"2"},"metadata":{"annotations":{`+forged(made.at())+`}}}`)
	c.verifyStamp("patch with a forged stamp", patched, made.at()+" bob")
	replaced := c.mustSend("mallory", "PUT", x, `{"metadata":{"name":"x","annotations":{"n":"1",`+forged(patched.at())+`}},"data":{"a":"3"}}`)
	c.verifyStamp("update with a forged stamp", replaced, patched.at()+" mallory")
	bare := c.mustSend("carol", "PUT", x, `{"metadata":{"name":"x"},"data":{"a":"4"}}`)
	c.verifyStamp("update without annotations", bare, replaced.at()+" carol")
	applied := c.mustSend("bob", "PATCH", x+"?fieldManager=f&force=true",
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","annotations":{`+forged(bare.at())+`}},"data":{"b":"9"}}`, applyPatch)
	c.verifyStamp("apply", applied, bare.at()+" bob")
	label := c.mustSend("alice", "PATCH", x, `{"metadata":{"labels":{"l":"1"}}}`)
	c.verifyStamp("a label", label, applied.at()+" alice")
	note := c.mustSend("carol", "PATCH", x, `{"metadata":{"annotations":{"k":"v"}}}`)
	c.verifyStamp("an annotation", note, label.at()+" carol")
	held := c.mustSend("alice", "PATCH", x, `{"metadata":{"finalizers":["example.io/x"]}}`)
	c.verifyStamp("a finalizer", held, note.at()+" alice")
	upserted := c.mustSend("bob", "PATCH", configMaps+"/applied?fieldManager=f",
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied","annotations":{`+forged("new:/configmaps/default/applied")+`}}}`, applyPatch)
	c.verifyStamp("create by apply", upserted, "new:/configmaps/default/applied bob")
	c.verifySubresourcesForgeNothing()
	c.verifyCustomResources()
}

// verifySubresourcesForgeNothing: writes of subresources, some of which can write annotations, keep the stamp.
func (c *cluster) verifySubresourcesForgeNothing() {
	c.t.Helper()
	made := c.mustSend("alice", "POST", deployments, fmt.Sprintf(deployment, forged("new:apps/deployments/default/d")))
	c.verifyStamp("create of a deployment", made, "new:apps/deployments/default/d alice")
	forge := func(o object) string {
		return `"metadata":{"annotations":{` + forged(o.at()) + `}}`
	}
	status := c.mustSend("mallory", "PATCH", deployments+"/d/status", `{`+forge(made)+`,"status":{"replicas":1}}`)
	c.verifyStamp("status with a forged stamp", status, made.stamp())
	scaled := c.mustSend("mallory", "PATCH", deployments+"/d/scale", `{`+forge(status)+`,"spec":{"replicas":5}}`)
	read := c.mustSend("alice", "GET", deployments+"/d", "")
	if c.verifyStamp("scale with a forged stamp", read, made.stamp()); !strings.Contains(string(read.text), `"replicas":5`) {
		c.t.Errorf("not scaled: %s %s", scaled.text, read.text)
	}
	c.mustSend("alice", "POST", pods, `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	p := c.mustSend("alice", "GET", pods+"/p", "")
	c.mustSend("mallory", "POST", pods+"/p/binding", `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"p","annotations":{"kept":"1",`+
		forged(p.at())+`}},"target":{"kind":"Node","name":"n"}}`)
	bound := c.mustSend("alice", "GET", pods+"/p", "")
	if c.verifyStamp("binding with a forged stamp", bound, p.stamp()); bound.Metadata.Annotations["kept"] != "1" {
		c.t.Errorf("a binding writes annotations no more, so the test proves nothing: %s", bound.text)
	}
	busy := c.mustSend("mallory", "PATCH", pods+"/p/ephemeralcontainers", `{`+forge(bound)+`,"spec":{"ephemeralContainers":[{"name":"e","image":"i"}]}}`, strategicPatch)
	c.verifyStamp("ephemeral containers with a forged stamp", busy, p.stamp())
	space := c.mustSend("alice", "POST", "/api/v1/namespaces", `{"metadata":{"name":"space"}}`)
	c.verifyStamp("create of a namespace", space, "new:/namespaces//space alice")
	final := c.mustSend("mallory", "PUT", "/api/v1/namespaces/space/finalize", `{"apiVersion":"v1","kind":"Namespace",`+
		`"metadata":{"name":"space","annotations":{"a":"b",`+forged(space.at())+`}},"spec":{"finalizers":[]}}`)
	c.verifyStamp("finalize with a forged stamp", final, space.stamp())
}

// verifyCustomResources: objects of any content are stamped, and none is refused.
func (c *cluster) verifyCustomResources() {
	c.t.Helper()
	c.mustSend("alice", "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"metadata":{"name":"widgets.example.io"},
"spec":{"group":"example.io","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget"},"versions":[{"name":"v1","served":true,
"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}},"subresources":{"status":{}}}]}}`)
	probe := `{"apiVersion":"example.io/v1","kind":"Widget","metadata":{"name":"probe"}}`
	c.awaitAnswer("POST", widgets+"?dryRun=All", probe, func(code int, _ object) bool { return code == http.StatusCreated })
	head := `"apiVersion":"example.io/v1","kind":"Widget"`
	for i, rest := range []string{
		`"metadata":{"name":"w0","annotations":null}`, `"metadata":{"name":"w1","annotations":{}}`, `"metadata":{"name":"w2","labels":null}`,
		`"metadata":{"name":"w3"},"spec":null,"status":{"a":1}`, `"metadata":{"name":"w4"},"spec":[1,"a",{"b":null}],"":"empty","a.b/c-d":true,"__x__":0.5`,
		`"metadata":{"name":"w5"},"spec":` + strings.Repeat(`{"a":`, 100) + `1` + strings.Repeat("}", 100),
	} {
		made := c.mustSend("alice", "POST", widgets, "{"+head+","+rest+"}")
		c.verifyStamp("create of "+rest, made, fmt.Sprintf("new:example.io/widgets/default/w%d alice", i))
		at := fmt.Sprintf("%s/w%d", widgets, i)
		patched := c.mustSend("bob", "PATCH", at, `{"added":{"x":[1,2,null]},"metadata":{"annotations":null}}`)
		c.verifyStamp("patch of "+rest, patched, made.at()+" bob")
		status := c.mustSend("mallory", "PATCH", at+"/status", `{"status":{"b":2},"metadata":{"annotations":{`+forged(patched.at())+`}}}`)
		c.verifyStamp("status of "+rest, status, patched.stamp())
	}
}

// TestAWriteThatChangesNothingIsNotStamped: it stays a write of nothing, and components that copy or remove the stamp do not
// begin an exchange of writes.
func TestAWriteThatChangesNothingIsNotStamped(t *testing.T) {
	c := startCluster(t)
	c.applyPolicy("configmaps", "deployments.apps", "replicasets.apps")
	x := configMaps + "/x"
	made := c.mustSend("alice", "POST", configMaps, `{"metadata":{"name":"x","labels":{"l":"1"}},"data":{"a":"1"}}`)
	for what, o := range map[string]object{
		"a patch":                     c.mustSend("bob", "PATCH", x, `{"data":{"a":"1"}}`),
		"an update":                   c.mustSend("bob", "PUT", x, `{"metadata":{"name":"x","labels":{"l":"1"},"annotations":{`+`"`+event.StampAnnotation+`":"new:/configmaps/default/x alice"}},"data":{"a":"1"}}`),
		"an update without the stamp": c.mustSend("bob", "PUT", x, `{"metadata":{"name":"x","labels":{"l":"1"}},"data":{"a":"1"}}`),
		"a removal of the stamp":      c.mustSend("bob", "PATCH", x, `{"metadata":{"annotations":null}}`),
	} {
		if o.Metadata.ResourceVersion != made.Metadata.ResourceVersion || o.stamp() != made.stamp() {
			t.Errorf("%s that changes nothing made a version with the stamp %q", what, o.stamp())
		}
	}
	// A client that sends a stamp becomes its manager, once: that is a version without a stamp of its own.
	first := c.mustSend("bob", "PATCH", x, `{"metadata":{"annotations":{`+forged(made.at())+`}}}`)
	c.verifyStamp("a forged stamp alone", first, made.stamp())
	again := c.mustSend("bob", "PATCH", x, `{"metadata":{"annotations":{`+forged(first.at())+`}}}`)
	if again.Metadata.ResourceVersion != first.Metadata.ResourceVersion {
		t.Error("a client that repeats a forged stamp makes a version each time")
	}
	// A Deployment's controller copies its annotations to the ReplicaSet, and does nothing more until it has them.
	replicaSet := strings.Replace(strings.Replace(deployment, "Deployment", "ReplicaSet", 1), `"d"`, `"r"`, 1)
	sets := strings.Replace(deployments, "deployments", "replicasets", 1)
	forgedCreate := c.mustSend(controllerManager, "POST", sets, fmt.Sprintf(replicaSet, forged("new:apps/replicasets/default/r")))
	c.verifyStamp("a forged stamp by a controller", forgedCreate, "")
	var owned object
	for _, copied := range []string{"new:apps/deployments/default/d", "99999:apps/deployments/default/d", "1:apps/deployments/default/r"} {
		owned = c.mustSend(controllerManager, "PATCH", sets+"/r", `{"metadata":{"annotations":{`+forged(copied)+`}}}`)
		c.verifyStamp("a copy by a controller", owned, copied+" alice")
		again := c.mustSend(controllerManager, "PATCH", sets+"/r", `{"metadata":{"annotations":{`+forged(copied)+`}}}`)
		if again.Metadata.ResourceVersion != owned.Metadata.ResourceVersion {
			t.Error("each copy of a stamp makes a version")
		}
	}
	byUser := c.mustSend("alice", "PATCH", sets+"/r", `{"spec":{"replicas":2}}`)
	c.verifyStamp("a write by a user", byUser, owned.at()+" alice")
	byController := c.mustSend(controllerManager, "PATCH", sets+"/r", `{"spec":{"replicas":3},"metadata":{"annotations":{`+forged(byUser.at())+`}}}`)
	c.verifyStamp("a write by a controller", byController, byUser.stamp())
}

// TestLargeObjectsAreStamped: an expression that costs too much would refuse the write.
func TestLargeObjectsAreStamped(t *testing.T) {
	c := startCluster(t)
	c.applyPolicy("configmaps")
	data, annotations := map[string]string{}, map[string]string{}
	for i := range 20000 {
		data[fmt.Sprintf("key-%d", i)] = strings.Repeat("v", 30)
	}
	for i := range 4000 {
		annotations[fmt.Sprintf("example.io/key-%d", i)] = strings.Repeat("v", 30)
	}
	body := func(name string) string {
		var b bytes.Buffer
		_ = json.NewEncoder(&b).Encode(map[string]any{"metadata": map[string]any{"name": name, "annotations": annotations}, "data": data})
		return b.String()
	}
	made := c.mustSend("alice", "POST", configMaps, body("large"))
	c.verifyStamp("create of a large object", made, "new:/configmaps/default/large alice")
	annotations["example.io/key-3999"] = "w"
	updated := c.mustSend("bob", "PUT", configMaps+"/large", body("large"))
	c.verifyStamp("update of a large object", updated, made.at()+" bob")
}

// BenchmarkPatch measures what the policy costs a client: a patch of a small ConfigMap, and of a Deployment.
func BenchmarkPatch(b *testing.B) {
	c := startCluster(b)
	c.mustSend("alice", "POST", configMaps, `{"metadata":{"name":"x"},"data":{"a":"1"}}`)
	c.mustSend("alice", "POST", deployments, fmt.Sprintf(deployment, ""))
	measure := func(name string) {
		for kind, patch := range map[string]struct{ path, body string }{
			"configmap": {configMaps + "/x", `{"data":{"n":"%d"}}`}, "deployment": {deployments + "/d", `{"spec":{"replicas":%d}}`},
		} {
			b.Run(kind+"/"+name, func(b *testing.B) {
				for i := range b.N {
					c.mustSend("bob", "PATCH", patch.path, fmt.Sprintf(patch.body, i))
				}
			})
		}
	}
	measure("without")
	c.applyPolicy("configmaps", "deployments.apps")
	measure("with")
}
