package deploy_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// secret stands in each object of testdata/operators where users have secret values.
const secret = "hunter2"

// TestTheExamplesForOperatorsShipTheirTypes installs the chart with each of its examples on a real API server that serves
// the operator's own types, and runs the exporter with the rendered configuration and rights. An object of each type arrives
// when it is created and when it is changed, without the secret values in it. Strimzi's types are in no registry that Go
// modules come from: there, types of the same names without a schema stand for them.
func TestTheExamplesForOperatorsShipTheirTypes(t *testing.T) {
	require.Long(t)
	t.Parallel()
	files, err := filepath.Glob("helm/examples/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	c := startCluster(t)
	program := buildExporter(t)
	c.applyAll(t, split(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: kubecdc}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n"))
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "changes")
			all := template(t, "--values", file, "--set", "image.repository=registry.example.com/exporter",
				"--set-json", `config.sinks=[{"name":"out","stdout":{"path":"`+out+`"}}]`)
			var text configMap
			one(t, slicesOf(all, "kubecdc"), "ConfigMap", &text)
			if got, want := granted(t, all)["ClusterRole "], needed(loadedFrom(t, text.Data["config.yaml"])); !reflect.DeepEqual(got, want) {
				t.Errorf("granted\n%s\nneeded\n%s", got, want)
			}
			c.applyRights(t, all)
			objects := c.defineTypes(t, name)
			c.runExporter(t, program, text.Data["config.yaml"])
			c.changeAndAwait(t, objects, out)
		})
	}
}

// applyRights applies the account and the roles of a rendered chart.
func (c *cluster) applyRights(t *testing.T, all []manifest) {
	t.Helper()
	var rights []manifest
	for _, m := range all {
		switch m.Kind {
		case "ServiceAccount", "ClusterRole", "ClusterRoleBinding":
			rights = append(rights, m)
		}
	}
	c.applyAll(t, rights)
}

// defineTypes installs the types of an operator, waits until they are served, and returns objects of those that its example
// selects. Their paths are known from then on.
func (c *cluster) defineTypes(t *testing.T, operator string) []manifest {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "operators", operator+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	objects := split(t, string(text))
	definitions := standIns(t, objects)
	if operator != "strimzi" {
		definitions = definitionsOf(t, operator)
	}
	for _, m := range objects {
		c.paths[m.Kind] = c.define(t, definitions, m)
	}
	return objects
}

// definition is what a test needs of a CustomResourceDefinition.
type definition struct {
	manifest
	Spec struct {
		Group string `yaml:"group"`
		Scope string `yaml:"scope"`
		Names struct {
			Kind   string `yaml:"kind"`
			Plural string `yaml:"plural"`
		} `yaml:"names"`
	} `yaml:"spec"`
}

func definitionsOf(t *testing.T, operator string) []definition {
	t.Helper()
	dir, err := build.OperatorCRDs(t.Context(), operator)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var all []definition
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, readDefinitions(t, string(text))...)
	}
	return all
}

func readDefinitions(t *testing.T, text string) (all []definition) {
	t.Helper()
	for _, m := range split(t, text) {
		if m.Kind == "CustomResourceDefinition" {
			var d definition
			one(t, []manifest{m}, m.Kind, &d)
			d.manifest = m
			all = append(all, d)
		}
	}
	return all
}

// standIns are types of the names of the objects' types that allow any member.
func standIns(t *testing.T, objects []manifest) (all []definition) {
	t.Helper()
	for _, m := range objects {
		group, version, _ := strings.Cut(m.APIVersion, "/")
		plural := strings.ToLower(m.Kind) + "s"
		all = append(all, readDefinitions(t, fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.%[2]s}
spec:
  group: %[2]s
  scope: Namespaced
  names: {kind: %[3]s, plural: %[1]s, singular: %[4]s}
  versions:
    - {name: %[5]s, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, plural, group, m.Kind, strings.ToLower(m.Kind), version))...)
	}
	return all
}

// define installs the type of an object, waits until it is served, and returns the path of its objects.
func (c *cluster) define(t *testing.T, definitions []definition, m manifest) string {
	t.Helper()
	group, _, _ := strings.Cut(m.APIVersion, "/")
	for _, d := range definitions {
		if d.Spec.Group != group || d.Spec.Names.Kind != m.Kind {
			continue
		}
		c.applyAll(t, []manifest{d.manifest})
		path := "/apis/" + m.APIVersion + "/" + d.Spec.Names.Plural + "/"
		if d.Spec.Scope == "Namespaced" {
			path = "/apis/" + m.APIVersion + "/namespaces/kubecdc/" + d.Spec.Names.Plural + "/"
		}
		var a answer
		if !until(func() bool {
			a = c.call(t, "", http.MethodGet, strings.TrimSuffix(path, "/"), "application/json", nil)
			return a.code == http.StatusOK
		}) {
			t.Fatalf("%s is not served: %d %s", m.Kind, a.code, a.body)
		}
		return path
	}
	t.Fatalf("no definition of %s %s", m.APIVersion, m.Kind)
	return ""
}

func buildExporter(t *testing.T) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "exporter")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../cmd/exporter").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// runExporter runs the exporter with a rendered configuration as the account of the chart, until the end of the test. It
// returns the file of its log.
func (c *cluster) runExporter(t *testing.T, program, text string) (logFile string) {
	t.Helper()
	dir := t.TempDir()
	text = strings.NewReplacer("/var/lib/kubecdc", filepath.Join(dir, "journal"), "listen: :8080", "listen: 127.0.0.1:0",
		`listen: ":8080"`, "listen: 127.0.0.1:0").Replace(text)
	config, kubeconfig := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "kubeconfig")
	for file, content := range map[string]string{config: text, kubeconfig: c.accountKubeconfig(t)} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	run := exec.Command(program, "run", "--config", config)
	run.Env, run.Stderr = append(os.Environ(), "KUBECONFIG="+kubeconfig), log
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = run.Process.Signal(os.Interrupt)
		if err := run.Wait(); err != nil || t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Errorf("%v\n%s", err, text)
		}
	})
	return log.Name()
}

// accountKubeconfig is a kubeconfig with a token of the chart's service account.
func (c *cluster) accountKubeconfig(t *testing.T) string {
	t.Helper()
	path := c.paths["ServiceAccount"] + "kubecdc/token"
	a := c.call(t, "", http.MethodPost, path, "application/json", []byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`))
	var request struct{ Status struct{ Token string } }
	if err := json.Unmarshal(a.body, &request); err != nil || request.Status.Token == "" {
		t.Fatalf("%v: %d %s", err, a.code, a.body)
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: a, user: {token: %q}}]
`, c.URL(), c.CAFile(), request.Status.Token)
}

// changeAndAwait creates the objects, labels each when it has arrived, and waits until this has arrived too.
func (c *cluster) changeAndAwait(t *testing.T, objects []manifest, out string) {
	t.Helper()
	arrives := func(m manifest, types ...string) {
		if !until(func() bool { return hasRecord(out, m, types) }) {
			t.Fatalf("none of %v of %s", types, m.file)
		}
	}
	c.applyAll(t, objects)
	for _, m := range objects {
		arrives(m, "added", "snapshot")
		path := strings.ReplaceAll(c.paths[m.Kind], "/namespaces/kubecdc/", "/namespaces/"+m.Meta.Namespace+"/") + m.Meta.Name
		a := c.call(t, "", http.MethodPatch, path, "application/merge-patch+json", []byte(`{"metadata":{"labels":{"seen":"yes"}}}`))
		if a.code != http.StatusOK {
			t.Fatalf("%s: %d %s", m.file, a.code, a.body)
		}
		arrives(m, "updated")
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		if bytes.Contains(line, []byte(secret)) {
			t.Errorf("a secret value left: %s", line)
		}
	}
}

// hasRecord reports whether the file has a record of one of these types of an object.
func hasRecord(file string, m manifest, types []string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var record struct{ Type, Kind, Namespace, Name string }
		_ = json.Unmarshal(lines.Bytes(), &record) // the last line may be half written
		if slices.Contains(types, record.Type) && record.Kind == m.Kind && record.Namespace == m.Meta.Namespace && record.Name == m.Meta.Name {
			return true
		}
	}
	return false
}
