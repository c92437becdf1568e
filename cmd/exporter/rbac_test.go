package main

import (
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kubecdc/kubecdc/internal/exit"
)

var update = flag.Bool("update", false, "write the golden files anew; read every one before you commit it")

// golden compares a text with testdata/NAME.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		must(t, os.WriteFile(path, []byte(got), 0o644))
	}
	if want := textOf(t, path); got != want {
		t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
	}
}

// TestRightsAreTheLeast holds what is printed for every kind of rule. No cluster is there, and none is named.
func TestRightsAreTheLeast(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	for name, args := range map[string][]string{
		"literal":   nil,
		"names":     {"--name", "cdc", "--namespace", "on", "--service-account", "reader"},
		"wildcards": {"--offline"},
		"helm":      {"--offline", "--output", "helm"},
		"strict":    {"--offline"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", "rbac-"+name+".yaml")
			code, stdout, stderr := try(t, append([]string{"rbac", "--config", path}, args...)...)
			if code != exit.OK || stderr != "" {
				t.Fatalf("exit %d, stderr %q", code, stderr)
			}
			golden(t, "rbac-"+name+".golden.yaml", stdout)
		})
	}
}

// TestTheRightsReplaceThoseOfTheBase: applying what is printed over deploy/kustomize gives one role and one binding, not
// two of each.
func TestTheRightsReplaceThoseOfTheBase(t *testing.T) {
	code, stdout, stderr := try(t, "rbac", "--config", filepath.Join("testdata", "rbac-literal.yaml"))
	if code != exit.OK {
		t.Fatalf("exit %d, stderr %q", code, stderr)
	}
	type object struct {
		Kind     string
		Metadata struct{ Name string }
		RoleRef  map[string]string `yaml:"roleRef"`
		Subjects []map[string]string
	}
	printed := map[string]object{}
	for document := range strings.SplitSeq(stdout, "---\n") {
		var o object
		must(t, yaml.Unmarshal([]byte(document), &o))
		printed[o.Kind] = o
	}
	for kind, file := range map[string]string{"ClusterRole": "clusterrole.yaml", "ClusterRoleBinding": "clusterrolebinding.yaml"} {
		var applied object
		must(t, yaml.Unmarshal([]byte(textOf(t, filepath.Join("..", "..", "deploy", "kustomize", "base", file))), &applied))
		if got := printed[kind]; !reflect.DeepEqual(got, applied) {
			t.Errorf("printed %+v, the base has %+v", got, applied)
		}
	}
}

// TestWildcardsBecomeWhatIsServed asks a cluster, and keeps the name that nothing serves yet.
func TestWildcardsBecomeWhatIsServed(t *testing.T) {
	t.Setenv("KUBECONFIG", cluster(t, "allow nothing"))
	code, stdout, stderr := try(t, "rbac", "--config", filepath.Join("testdata", "rbac-wildcards.yaml"))
	if code != exit.OK || stderr != "" {
		t.Fatalf("exit %d, stderr %q", code, stderr)
	}
	golden(t, "rbac-served.golden.yaml", stdout)
}

func TestWildcardsWithoutAClusterAreTheEnvironmentsFault(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	t.Setenv("KUBECONFIG", kubeconfigOf(t, gone.URL))
	for _, command := range []string{"rbac", "explain"} {
		code, stdout, stderr := try(t, command, "--config", filepath.Join("testdata", "rbac-wildcards.yaml"))
		if code != exit.Environment || stdout != "" || !strings.Contains(stderr, gone.URL) {
			t.Errorf("%s: exit %d, stdout %q, stderr %q; want exit 3 and the address named", command, code, stdout, stderr)
		}
		if hint := strings.Contains(stderr, "--offline"); hint != (command == "rbac") {
			t.Errorf("%s: stderr %q: it speaks of --offline: %v", command, stderr, hint)
		}
	}
}

func TestRightsForImpossibleNamesAreBadUsage(t *testing.T) {
	path := filepath.Join("testdata", "rbac-literal.yaml")
	for _, args := range [][]string{{"--name", "a/b"}, {"--name", ""}, {"--namespace", "A"}, {"--output", "json"}, {"--service-account", "x: y"}} {
		code, stdout, stderr := try(t, append([]string{"rbac", "--config", path}, args...)...)
		if code != exit.Usage || stdout != "" || !strings.Contains(stderr, args[0]) {
			t.Errorf("%q: exit %d, stdout %q, stderr %q; want exit 2 and the flag named", args, code, stdout, stderr)
		}
	}
}

func kubeconfigOf(t *testing.T, url string) string {
	t.Helper()
	return write(t, "kubeconfig", `{"apiVersion":"v1","kind":"Config","current-context":"c",`+
		`"clusters":[{"name":"c","cluster":{"server":"`+url+`"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u"}]}`)
}

// cluster starts an API server that serves a few resources and answers access reviews, and returns its kubeconfig.
// may names the verb, resource and namespace that is allowed; else nothing is.
func cluster(t *testing.T, may ...string) string {
	t.Helper()
	resources := func(list ...string) map[string]any {
		var all []any
		for _, text := range list {
			name, scope, _ := strings.Cut(text, " ")
			all = append(all, map[string]any{
				"resource": name, "scope": scope, "verbs": []string{"list", "watch"},
				"responseKind": map[string]any{"kind": strings.ToUpper(name[:1]) + strings.TrimSuffix(name[1:], "s")},
			})
		}
		return map[string]any{"version": "v1", "freshness": "Current", "resources": all}
	}
	group := func(name string, version map[string]any) map[string]any {
		return map[string]any{"metadata": map[string]any{"name": name}, "versions": []any{version}}
	}
	discovery := func(groups ...any) map[string]any {
		return map[string]any{"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": groups}
	}
	answers := map[string]map[string]any{
		"/api": discovery(group("", resources("pods Namespaced", "nodes Cluster", "secrets Namespaced", "configmaps Namespaced"))),
		"/apis": discovery(group("apps", resources("deployments Namespaced", "daemonsets Namespaced")),
			group("demo.io", resources("gadgets Namespaced", "worlds Cluster"))),
		"/api/v1/namespaces/kube-system": {"kind": "Namespace", "apiVersion": "v1", "metadata": map[string]any{"name": "kube-system", "uid": "the-uid"}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		contentType := "application/json"
		switch {
		case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
			answer = reviewed(t, r, may)
		case !ok:
			http.NotFound(w, r)
			return
		case answer["kind"] == "APIGroupDiscoveryList":
			contentType += ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
		}
		w.Header().Set("Content-Type", contentType)
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	return kubeconfigOf(t, server.URL)
}

// reviewed answers an access review.
func reviewed(t *testing.T, r *http.Request, may []string) map[string]any {
	t.Helper()
	var review struct {
		Spec struct {
			ResourceAttributes struct{ Verb, Resource, Namespace string }
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		t.Error(err)
	}
	a := review.Spec.ResourceAttributes
	allowed := false
	for _, one := range may {
		allowed = allowed || one == strings.TrimSpace(a.Verb+" "+a.Resource+" "+a.Namespace)
	}
	return map[string]any{"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "status": map[string]any{"allowed": allowed}}
}
