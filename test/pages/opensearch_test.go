package pages

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/opensearch"
)

// TestTheOpenSearchRecipeRuns fills indexes by the commands of the page while objects come, change and go, and all records
// come a second time, and compares what a search finds in them with the cluster.
func TestTheOpenSearchRecipeRuns(t *testing.T) {
	large(t)
	s := running(t)
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	dir := filepath.Join(s.dir, "opensearch") // the user nobody may enter this directory, unlike t.TempDir
	server, err := opensearch.Start(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	w := newWalk(t, s, []command{exporterRuns, {begins: "python3 docs/recipes/opensearch.py", ready: `stored`}},
		"http://127.0.0.1:9200", server.URL())
	w.run("a build", makeBuild)
	w.run("what is there before", `
		kubectl create namespace opensearch
		head --bytes 200000 /dev/zero | tr '\0' x > large
		kubectl create configmap kept --namespace opensearch --from-literal colour=red --from-file large --from-literal .a..b.=dots
		kubectl annotate configmap kept --namespace opensearch long=$(head --bytes 100000 /dev/zero | tr '\0' x) a.b=c a.b.c=d
		kubectl create configmap going --namespace opensearch --from-literal colour=red`)
	w.follow("docs/recipes/opensearch.md")
	w.await(listings(t, w.dir, "docs/recipes/opensearch.md", "sh tested by TestTheOpenSearchRecipeRuns")[0], `"name" : "found"`)
	w.run("objects come, change and go", `
		kubectl delete configmap found
		kubectl create configmap new --namespace opensearch --from-literal colour=blue
		kubectl label configmap kept --namespace opensearch team=web app.kubernetes.io/name=kept
		kubectl delete configmap going --namespace opensearch
		kubectl create deployment web --namespace opensearch --image nginx
		kubectl scale deployment web --namespace opensearch --replicas 3
		kubectl create deployment gone --namespace opensearch --image nginx
		kubectl delete deployment gone --namespace opensearch`)
	w.awaitIndexed(server.URL())
	w.again("state.dev.core.configmaps", "state.dev.apps.deployments")
	w.run("a last change of each", `
		kubectl delete configmap new --namespace opensearch
		kubectl create configmap going --namespace opensearch --from-literal colour=green
		kubectl scale deployment web --namespace opensearch --replicas 4`)
	w.awaitIndexed(server.URL())
	w.run("tidying up", "kubectl delete namespace opensearch --wait=false")
}

// awaitIndexed waits until the indexes have of a namespace what the cluster has.
func (w *walk) awaitIndexed(url string) {
	w.t.Helper()
	for index, resource := range map[string]string{"state.dev.core.configmaps": "configmaps", "state.dev.apps.deployments": "deployments"} {
		search := "curl --silent '" + url + "/" + index + "/_search?size=100&q=metadata.namespace:opensearch'"
		w.awaitEqual(search, w.versions(resource, "opensearch"), indexed)
	}
}

// indexed returns the resourceVersion of each document that a search found, by name.
func indexed(out string) map[string]string {
	var answer struct {
		Hits struct {
			Hits []struct {
				Source struct {
					Metadata struct{ Name, ResourceVersion string }
				} `json:"_source"`
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		return map[string]string{"unreadable": out}
	}
	found := make(map[string]string)
	for _, h := range answer.Hits.Hits {
		found[h.Source.Metadata.Name] += h.Source.Metadata.ResourceVersion
	}
	return found
}
