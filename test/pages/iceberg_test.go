package pages

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/require"
	"github.com/kubecdc/kubecdc/test/parts/s3server"
)

const comeChangeAndGo = `
	kubectl create configmap new --namespace $NAMESPACE --from-literal colour=blue
	kubectl patch configmap kept --namespace $NAMESPACE --patch '{"data":{"colour":"green"}}'
	kubectl delete configmap going --namespace $NAMESPACE`

// TestTheIcebergRecipeRuns has Kafka Connect write a table by the configuration of the page, while objects come, change and
// go, the sink ends before it has committed, and all records come a second time, and compares with the cluster what
// Iceberg's own reader finds in it.
func TestTheIcebergRecipeRuns(t *testing.T) {
	warehouse := t.TempDir()
	w, look := icebergWalk(t, "iceberg", "iceberg-sink.properties", "file:///tmp/warehouse", "file://"+warehouse)
	w.follow("docs/recipes/iceberg.md")
	w.run("objects come, change and go", comeChangeAndGo)
	w.awaitEqual(look, w.versions("configmaps", "iceberg"), newestRows("iceberg"))
	w.uncommit(filepath.Join(warehouse, "history", "changes"))
	w.awaitEqual(look, w.versions("configmaps", "iceberg"), newestRows("iceberg"))
	w.again("k8s.dev.core.configmaps")
	w.run("a last change of each", `
		kubectl patch configmap kept --namespace iceberg --patch '{"data":{"colour":"black"}}'
		kubectl patch configmap new --namespace iceberg --patch '{"data":{"colour":"white"}}'`)
	out := w.awaitEqual(look, w.versions("configmaps", "iceberg"), newestRows("iceberg"))
	if n := strings.Count(out, "deleted\t"); n < 2 {
		t.Errorf("the rows of deletes are there %d times, though all records came twice:\n%s", n, out)
	}
	w.run("tidying up", "kubectl delete namespace iceberg --wait=false")
}

// TestTheS3RecipeRuns has Kafka Connect write a table into S3 by the configuration of the page, while objects come, change
// and go.
func TestTheS3RecipeRuns(t *testing.T) {
	require.Long(t)
	large(t)
	s := running(t)
	w, look := icebergWalk(t, "s3", "iceberg-s3-sink.properties",
		"127.0.0.1:9000", s3server.Start(t, "cluster-history"), "127.0.0.1:5432", s.sql.Address())
	w.env = append(w.env, "AWS_ACCESS_KEY_ID=anybody", "AWS_SECRET_ACCESS_KEY=anything", "AWS_REGION=eu-central-1")
	w.follow("docs/recipes/s3.md")
	w.run("objects come, change and go", comeChangeAndGo)
	w.awaitEqual(look, w.versions("configmaps", "s3"), newestRows("s3"))
	w.run("tidying up", "kubectl delete namespace s3 --wait=false")
}

// icebergWalk begins a walk through a page on Iceberg, with objects that are there before. It returns also the command that
// prints the rows of the table that a configuration of the sink names.
func icebergWalk(t *testing.T, namespace, sink string, replaced ...string) (w *walk, look string) {
	t.Helper()
	large(t)
	s := running(t)
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	jars, err := build.IcebergSink(ctx)
	if err != nil {
		t.Fatal(err)
	}
	plugins := t.TempDir()
	if err := os.Symlink(jars, filepath.Join(plugins, "iceberg")); err != nil {
		t.Fatal(err)
	}
	commands := []command{exporterRuns, {begins: "connect-standalone.sh", ready: ``}}
	w = newWalk(t, s, commands, append(replaced, "/opt/connectors", plugins)...)
	w.run("a build", makeBuild)
	w.run("a namespace", "kubectl create namespace "+namespace)
	w.env = append(w.env, "NAMESPACE="+namespace)
	w.run("what is there before", `
		kubectl create configmap kept --namespace $NAMESPACE --from-literal colour=red
		kubectl create configmap going --namespace $NAMESPACE --from-literal colour=red`)
	return w, fmt.Sprintf("java -XX:TieredStopAtLevel=1 -cp '%s/*' %s docs/recipes/connect/%s", jars, testdata(t, "Rows.java"), sink)
}

// uncommit takes the table back to before its first commit, as if Connect had ended after it had announced its files and
// committed Kafka's offsets, and starts Connect again. The sink reads nothing twice then: it has to find what it announced.
func (w *walk) uncommit(table string) {
	w.t.Helper()
	connect := w.started[len(w.started)-1]
	w.must(connect.process.Stop())
	w.run("what was announced is not committed", strings.Join([]string{
		"python3", testdata(w.t, "uncommitted.py"), "127.0.0.1:9092", table, "connect-changes-to-iceberg-coord",
	}, " "))
	w.start(connect.block)
}

// newestRows reads the version of the newest row of each object of a namespace that was not deleted, by name. A row that
// comes again is older than the newest, or it.
func newestRows(namespace string) func(out string) map[string]string {
	return func(out string) map[string]string {
		newest, versions := make(map[string]string), make(map[string]int)
		for line := range strings.Lines(out) {
			columns := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
			if len(columns) != 4 || columns[1] != namespace || columns[2] == "" {
				continue
			}
			name := columns[2]
			version, err := strconv.Atoi(columns[3])
			if err != nil || version < versions[name] {
				continue
			}
			versions[name] = version
			if newest[name] = columns[3]; columns[0] == "deleted" {
				delete(newest, name)
			}
		}
		return newest
	}
}
