package pages

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/build"
)

const clickhousePage = "docs/recipes/clickhouse.md"

// TestTheClickHouseRecipeRuns runs the statements of the page in the embedded ClickHouse on the records of a cluster in
// which objects came, changed and went, then on all of them twice, and compares what the query of the page finds with the
// cluster.
func TestTheClickHouseRecipeRuns(t *testing.T) {
	large(t)
	s := running(t)
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	python, err := build.ClickHouse(ctx)
	if err != nil {
		t.Fatal(err)
	}
	w := newWalk(t, s, []command{exporterRuns})
	w.run("a build", makeBuild)
	w.run("a namespace", "kubectl create namespace clickhouse\n")
	w.follow(clickhousePage)
	w.run("objects come, change and go", `
		kubectl create configmap kept --namespace clickhouse --from-literal colour=red
		kubectl create configmap going --namespace clickhouse --from-literal colour=red
		kubectl create deployment web --namespace clickhouse --image nginx
		kubectl patch configmap kept --namespace clickhouse --patch '{"data":{"colour":"green"}}'
		kubectl delete configmap going --namespace clickhouse
		kubectl create configmap going --namespace clickhouse --from-literal colour=blue
		kubectl create configmap gone --namespace clickhouse --from-literal colour=blue
		kubectl delete configmap gone --namespace clickhouse`)
	topics := []string{"k8s.dev.core.configmaps", "k8s.dev.apps.deployments"}
	sql := listings(t, w.dir, clickhousePage, "sql tested by TestTheClickHouseRecipeRuns")
	if len(sql) != 2 {
		t.Fatalf("%s has %d blocks of SQL", clickhousePage, len(sql))
	}
	w.run("tables", "bin/exporter sql --for clickhouse > tables.sql\ncat >> tables.sql <<'END'\n"+sql[0]+"\nEND\n")
	w.must(os.WriteFile(filepath.Join(w.dir, "query.sql"), []byte(sql[1]), 0o644))
	look := fmt.Sprintf("%s %s tables.sql query.sql 127.0.0.1:9092 %s", python, testdata(t, "clickhouse.py"),
		strings.Join(topics, " "))
	w.awaitFound(look)
	w.again(topics...)
	w.awaitFound(look)
	w.run("tidying up", "kubectl delete namespace clickhouse --wait=false")
}

// awaitFound waits until a query finds what the namespace has.
func (w *walk) awaitFound(look string) {
	w.t.Helper()
	wanted := make(map[string]string)
	for _, resource := range []string{"configmaps", "deployments"} {
		for name, version := range w.versions(resource, "clickhouse") {
			wanted[resource+"/"+name] = version
		}
	}
	w.awaitEqual(look, wanted, func(out string) map[string]string {
		found := make(map[string]string)
		for line := range strings.Lines(out) {
			if columns := strings.Split(line, "\t"); len(columns) == 4 && strings.Contains(columns[3], `"metadata"`) {
				found[columns[0]+"/"+columns[1]] += columns[2]
			}
		}
		return found
	})
}
