package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// answersWithin bounds one command.
const answersWithin = 5 * time.Minute

// account is the default user in the output of rbac.
const account = "system:serviceaccount:kubecdc:exporter"

// leastRules have literal names, a wildcard, and names in one namespace only.
const leastRules = `
resources:
  - select: ["configmaps", "services"]
    namespaces: {include: ["web"]}
  - select: ["widgets.demo.kubecdc.io"]
  - select: ["*.apps"]
    exclude: ["controllerrevisions.apps"]
`

// written are the kinds that the tests write, by the scope that leastRules make of them.
var written = map[string]workload.Kind{
	"configmaps;ns=web":       workload.ConfigMaps,
	"services;ns=web":         workload.Services,
	"widgets.demo.kubecdc.io": workload.Widgets,
	"deployments.apps":        workload.Deployments,
}

// TestPrintedPermissionsAreSufficientAndNecessary gives a user nothing but what rbac prints and runs the exporter as that
// user; then it takes each rule away in turn.
func TestPrintedPermissionsAreSufficientAndNecessary(t *testing.T) {
	l := newRestricted(t, leastRules)
	for id, access := range l.access() {
		if access != "forbidden" {
			t.Fatalf("%s is %s before anything was allowed", id, access)
		}
	}
	roles := l.apply(l.command("rbac", "--config", l.config))

	l.awaitAccess("")
	allowed := time.Now()
	l.run("")
	l.refusedNothing(allowed)
	for _, role := range roles {
		for i := range role.rules() {
			switch resource, name := role.resource(i), role.attributes(i)["name"]; {
			case resource == "namespaces" && name == "web":
				l.withoutNamespace(role, i)
			case resource == "namespaces":
				l.withoutIdentity(role, i)
			default:
				l.without(role, i, resource)
			}
		}
	}
}

// TestPrintedPermissionsForEverythingAreSufficient selects all that the API server serves.
func TestPrintedPermissionsForEverythingAreSufficient(t *testing.T) {
	l := newRestricted(t, "resources: [{select: [\"*\"]}]\n")
	l.apply(l.command("rbac", "--config", l.config))
	l.awaitAccess("")
	allowed := time.Now()
	l.run("")
	l.refusedNothing(allowed)
}

// restricted is a cluster with a user without rights.
type restricted struct {
	t            *testing.T
	program      string
	rules        string // of the configuration
	controlPlane *controlplane.ControlPlane
	cluster      *workload.Cluster
	admin        dynamic.Interface
	dir, config  string
	section      string // more keys of the section cluster
	kubeconfig   string // of the user
	address      string // of the admin server
	env          []string
	runs         int
}

// newRestricted starts a control plane of its own, with more arguments for its API server.
func newRestricted(t *testing.T, rules string, args ...string) *restricted {
	t.Helper()
	runAlongside(t)
	l := &restricted{t: t, program: program(t), rules: rules, dir: t.TempDir()}
	dir := filepath.Join(l.dir, "controlplane")
	l.must(os.Mkdir(dir, 0o755))
	var err error
	l.controlPlane, err = controlplane.Start(t.Context(), controlplane.Options{
		Dir: dir, Users: []controlplane.User{{Name: account, Token: "least-token"}},
		APIServerArgs: append([]string{"--request-timeout=5s"}, args...),
	})
	l.must(err)
	t.Cleanup(func() { l.must(l.controlPlane.Stop()) })
	admin, err := clientcmd.BuildConfigFromFlags("", l.controlPlane.Kubeconfig())
	l.must(err)
	l.admin, err = dynamic.NewForConfig(admin)
	l.must(err)
	l.cluster, err = workload.Connect(l.controlPlane.Kubeconfig())
	l.must(err)
	l.must(l.cluster.CreateNamespace(t.Context(), "web"))
	l.must(l.cluster.Define(t.Context(), workload.WidgetGroup, "widgets", "Widget"))
	free, err := ports.Free(1)
	l.must(err)
	l.address = ports.Address(free[0])
	l.kubeconfig, err = l.controlPlane.KubeconfigFor(account)
	l.must(err)
	l.config = l.configure("least.yaml")
	return l
}

// configure writes the configuration of a run of its own: its journal and its output lie beside it.
func (l *restricted) configure(name string) string {
	l.t.Helper()
	path := filepath.Join(l.dir, name)
	l.must(os.WriteFile(path, fmt.Appendf(nil, "%scluster: {kubeconfig: %q%s}\nsinks: [{name: file, stdout: {path: %q}}]\njournal: {dir: %q}\nadmin: {listen: %q}\n",
		l.rules, l.kubeconfig, l.section, path+".changes", path+".journal", l.address), 0o600))
	return path
}

func (l *restricted) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// command runs the program to its end and returns what it printed.
func (l *restricted) command(args ...string) []byte {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), answersWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, l.program, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		l.t.Fatalf("%v: %v\n%s", args, err, stderr.String())
	}
	return out
}

// explanation is what the test reads of "explain -o json".
type explanation struct {
	Rules []struct {
		Resources []struct{ Scopes []explainedScope }
	}
}

type explainedScope struct{ ID, List, Watch string }

func (e explanation) scopes() map[string]explainedScope {
	all := make(map[string]explainedScope)
	for _, rule := range e.Rules {
		for _, resource := range rule.Resources {
			for _, s := range resource.Scopes {
				all[s.ID] = s
			}
		}
	}
	return all
}

func (l *restricted) explain(args ...string) explanation {
	l.t.Helper()
	var e explanation
	l.must(json.Unmarshal(l.command(append([]string{"explain", "--config", l.config, "-o", "json"}, args...)...), &e))
	return e
}

// access maps each scope to the access that explain prints: "allowed", "forbidden", or what is odd.
func (l *restricted) access() map[string]string {
	l.t.Helper()
	all := make(map[string]string)
	for id, s := range l.explain().scopes() {
		all[id] = s.List
		if s.Watch != s.List {
			all[id] = "list " + s.List + ", watch " + s.Watch
		}
	}
	return all
}

// awaitAccess waits until everything may be read but one resource; "" is none.
func (l *restricted) awaitAccess(forbidden string) {
	l.t.Helper()
	await.Condition(l.t, "explain", arriveWithin, lookEvery, func() string {
		access := l.access()
		if len(access) > 0 && wrong(access, forbidden, "forbidden", "allowed") == "" {
			return ""
		}
		return fmt.Sprintf("%q forbidden and everything else allowed, it is %v", forbidden, access)
	})
}

// wrong returns which scope is not as it should be: those of one resource in one state, all others in another.
func wrong(states map[string]string, resource, its, others string) string {
	for id, state := range states {
		want := others
		if isOf(id, resource) {
			want = its
		}
		if state != want {
			return fmt.Sprintf("%s is %s, want %s", id, state, want)
		}
	}
	return ""
}

// isOf reports whether a scope is one of a resource.
func isOf(scope, resource string) bool {
	name, _, _ := strings.Cut(scope, ";")
	return name == resource
}

// role is a Role or ClusterRole in the cluster.
type role struct {
	client dynamic.ResourceInterface
	name   string
	object *unstructured.Unstructured
}

func (r role) rules() []any {
	rules, _, _ := unstructured.NestedSlice(r.object.Object, "rules")
	return rules
}

// resource is what a rule is about, as selected. Each rule is about one.
func (r role) resource(i int) string {
	rule := r.rules()[i].(map[string]any)
	name := rule["resources"].([]any)[0].(string)
	if group := rule["apiGroups"].([]any)[0].(string); group != "" {
		name += "." + group
	}
	return name
}

// attributes are what an access review asks about a rule.
func (r role) attributes(i int) map[string]any {
	rule := r.rules()[i].(map[string]any)
	attributes := map[string]any{
		"namespace": r.object.GetNamespace(), "group": rule["apiGroups"].([]any)[0], "resource": rule["resources"].([]any)[0],
		"verb": rule["verbs"].([]any)[0],
	}
	if names, bound := rule["resourceNames"].([]any); bound {
		attributes["name"] = names[0]
	}
	return attributes
}

// apply creates what was printed, word by word, and returns the roles.
func (l *restricted) apply(printed []byte) []role {
	l.t.Helper()
	var roles []role
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(printed), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := documents.Decode(&o.Object); errors.Is(err, io.EOF) {
			return roles
		} else if err != nil {
			l.t.Fatalf("%v in\n%s", err, printed)
		}
		client := l.admin.Resource(rbacKind(o)).Namespace(o.GetNamespace())
		l.must(createIn(l.t.Context(), client, o))
		if strings.HasSuffix(o.GetKind(), "Role") {
			roles = append(roles, role{client, o.GetName(), o})
		}
	}
}

// without runs the exporter while one rule is missing.
func (l *restricted) without(r role, i int, resource string) {
	l.t.Helper()
	l.set(r, slices.Delete(r.rules(), i, i+1))
	l.awaitAccess(resource)
	l.run(resource)
	l.set(r, r.rules())
	l.awaitAccess("")
}

// withoutNamespace runs the exporter while it may not know whether the namespace exists that a rule names: everything is
// watched all the same, and that is reported.
func (l *restricted) withoutNamespace(r role, i int) {
	l.t.Helper()
	l.set(r, slices.Delete(r.rules(), i, i+1))
	l.await("", func() string {
		if allowed(l.t, l.admin, r.attributes(i)) {
			return "the right to go"
		}
		return ""
	})
	l.run("", func(config string) {
		l.await(config+".log", func() string {
			if text := l.get("/readyz"); !strings.Contains(text, "[!]namespace/web Namespace") {
				return text
			}
			return ""
		})
	})
	l.set(r, r.rules())
	l.awaitAccess("")
}

// withoutIdentity runs the exporter without the right to identify the cluster. If the cluster has a
// name, everything is watched all the same, and a warning reports that nothing is compared. If it has none, changes would
// have none, and the exporter prints the remedy and ends.
func (l *restricted) withoutIdentity(r role, i int) {
	l.t.Helper()
	l.set(r, slices.Delete(r.rules(), i, i+1))
	l.await("", func() string {
		if allowed(l.t, l.admin, r.attributes(i)) {
			return "the right to go"
		}
		return ""
	})
	config := l.configure("nameless.yaml")
	var code int
	var text string
	var err error
	var nameless sync.WaitGroup
	nameless.Go(func() { code, text, err = exporter.Run(l.t.Context(), l.program, l.dir, "run", "--config", config) })
	defer func() {
		nameless.Wait()
		if err != nil || code != 3 || !strings.Contains(text, "set cluster.name, or allow get on that namespace") {
			l.t.Errorf("without a name: exit code %d, want 3 (%v):\n%s", code, err, text)
		}
		l.set(r, r.rules())
		l.awaitAccess("")
	}()

	named := l.beside(", name: named")
	named.run("", func(config string) {
		const said = "it cannot be checked whether this is the cluster that the journal was filled from"
		for path, part := range map[string]string{"/metrics": `kubecdc_condition{code="ClusterUnchecked",component="cluster",severity="degraded"} 1`, "/": "ClusterUnchecked"} {
			named.await(config+".log", func() string { // the page is recreated a few times a second
				if text := named.get(path); !strings.Contains(text, part) {
					return fmt.Sprintf("%q in %s:\n%s", part, path, text)
				}
				return ""
			})
		}
		if n := strings.Count(readFile(l.t, config+".log"), said); n != 1 {
			l.t.Errorf("%d lines of the log say so", n)
		}
	})
	l.runs = named.runs
}

// beside is the same cluster for another exporter, with more keys in its section cluster.
func (l *restricted) beside(section string) *restricted {
	l.t.Helper()
	own := *l
	free, err := ports.Free(1)
	l.must(err)
	own.address, own.section = ports.Address(free[0]), section
	return &own
}

func (l *restricted) set(r role, rules []any) {
	l.t.Helper()
	o := r.object.DeepCopy()
	l.must(unstructured.SetNestedSlice(o.Object, rules, "rules"))
	l.must(workload.Persist(l.t.Context(), func() error {
		_, err := r.client.Update(l.t.Context(), o, metav1.UpdateOptions{})
		return err
	}))
}

// createIn creates an object. An existing one counts as created, as if the answer was lost.
func createIn(ctx context.Context, client dynamic.ResourceInterface, o *unstructured.Unstructured) error {
	return workload.Persist(ctx, func() error {
		_, err := client.Create(ctx, o, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

// run runs the exporter from an empty journal until everything is live but one resource, "" for none, and what is
// written then has arrived. Then it looks at what else is wanted.
func (l *restricted) run(forbidden string, look ...func(config string)) {
	l.t.Helper()
	scopes := len(l.access())
	name, config, stop := l.start()
	defer stop()
	l.await(config+".log", func() string {
		states := l.states()
		if len(states) != scopes {
			return fmt.Sprintf("%d scopes; there are %v", scopes, states)
		}
		return wrong(states, forbidden, "forbidden", "live")
	})
	for _, kind := range written {
		l.must(l.cluster.Create(l.t.Context(), kind, "web", name))
	}
	l.await(config+".log", func() string {
		arrived := readFile(l.t, config+".changes")
		for id, kind := range written {
			is := strings.Contains(arrived, fmt.Sprintf(`"resource":%q,"kind":%q,"namespace":"web","name":%q`, kind.Resource.Resource, kind.Object().GetKind(), name))
			if is == isOf(id, forbidden) {
				return fmt.Sprintf("%s in the file (forbidden: %v); it is there: %v", id, isOf(id, forbidden), is)
			}
		}
		return ""
	})
	for _, at := range look {
		at(config)
	}
}

// start starts the exporter with an empty journal and returns the name of the run and the path of its configuration. The
// changes are in a file beside that, and the log.
func (l *restricted) start() (name, config string, stop func()) {
	l.t.Helper()
	l.runs++
	name = fmt.Sprintf("run-%d", l.runs)
	config = l.configure(name + ".yaml")
	p, err := process.Start(l.t.Context(), process.Options{
		Name: "exporter", Path: l.program, Args: []string{"run", "--config", config}, Dir: l.dir, Log: config + ".log", Env: l.env,
	})
	l.must(err)
	return name, config, func() { l.must(p.Stop()) }
}

// await waits until nothing is waited for any more.
func (l *restricted) await(log string, waitingFor func() string) {
	l.t.Helper()
	deadline := time.Now().Add(arriveWithin)
	for {
		waits := waitingFor()
		if waits == "" {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("still waiting: %s\n%s", waits, readFile(l.t, log))
		}
		await.Pause(l.t, lookEvery)
	}
}

// states are the states of all scopes, as the metrics have them; empty while there is no answer.
func (l *restricted) states() map[string]string {
	l.t.Helper()
	states := make(map[string]string)
	for line := range strings.Lines(l.get("/metrics")) {
		labels, ok := strings.CutPrefix(line, `kubecdc_resource_state{resource="`)
		if ok && strings.HasSuffix(line, " 1\n") { // the states it is not in have 0
			id, rest, _ := strings.Cut(labels, `",state="`)
			states[id], _, _ = strings.Cut(rest, `"`)
		}
	}
	return states
}

// get asks the admin server; "" while it does not answer.
func (l *restricted) get(path string) string {
	l.t.Helper()
	request, err := http.NewRequestWithContext(l.t.Context(), http.MethodGet, "http://"+l.address+path, nil)
	l.must(err)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return ""
	}
	return string(text)
}

// optional may be refused to the exporter without loss: definitions only reveal new types sooner.
var optional = []string{"customresourcedefinitions", "apiservices"}

// refusedNothing checks that the exporter has asked since then for nothing that it may not have.
func (l *restricted) refusedNothing(since time.Time) {
	l.t.Helper()
	entries, err := l.controlPlane.AuditEntries()
	l.must(err)
	for _, e := range entries {
		if e.User == account && e.Time.After(since) && e.Code == http.StatusForbidden && !slices.Contains(optional, e.Resource) {
			l.t.Errorf("the exporter was refused %s %s", e.Verb, e.RequestURI)
		}
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}
