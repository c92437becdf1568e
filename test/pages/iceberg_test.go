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
)

// TestTheIcebergRecipeRuns has Kafka Connect write a table by the configuration of the page, while objects come, change and
// go, the sink ends before it has committed, and all records come a second time, and compares with the cluster what Iceberg's
// own reader finds in it.
func TestTheIcebergRecipeRuns(t *testing.T) {
	large(t)
	s := running(t)
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	jars, err := build.IcebergSink(ctx)
	if err != nil {
		t.Fatal(err)
	}
	plugins, directory := t.TempDir(), t.TempDir()
	warehouse := "file://" + directory
	if err := os.Symlink(jars, filepath.Join(plugins, "iceberg")); err != nil {
		t.Fatal(err)
	}
	commands := []command{exporterRuns, {begins: "connect-standalone.sh", ready: ``}}
	w := newWalk(t, s, commands, "/opt/connectors", plugins, "file:///tmp/warehouse", warehouse)
	w.run("a build", makeBuild)
	w.run("what is there before", `
		kubectl create namespace iceberg
		kubectl create configmap kept --namespace iceberg --from-literal colour=red
		kubectl create configmap going --namespace iceberg --from-literal colour=red`)
	w.follow("docs/recipes/iceberg.md")
	w.run("objects come, change and go", `
		kubectl create configmap new --namespace iceberg --from-literal colour=blue
		kubectl patch configmap kept --namespace iceberg --patch '{"data":{"colour":"green"}}'
		kubectl delete configmap going --namespace iceberg`)
	look := fmt.Sprintf("java -XX:TieredStopAtLevel=1 -cp '%s/*' %s %s history.changes", jars, testdata(t, "Rows.java"), warehouse)
	w.awaitEqual(look, w.versions("configmaps", "iceberg"), newestRows)
	w.uncommit(filepath.Join(directory, "history", "changes"))
	w.awaitEqual(look, w.versions("configmaps", "iceberg"), newestRows)
	w.again("k8s.dev.core.configmaps")
	w.run("a last change of each", `
		kubectl patch configmap kept --namespace iceberg --patch '{"data":{"colour":"black"}}'
		kubectl patch configmap new --namespace iceberg --patch '{"data":{"colour":"white"}}'`)
	out := w.awaitEqual(look, w.versions("configmaps", "iceberg"), newestRows)
	if n := strings.Count(out, "deleted\t"); n < 2 {
		t.Errorf("the rows of deletes are there %d times, though all records came twice:\n%s", n, out)
	}
	w.run("tidying up", "kubectl delete namespace iceberg --wait=false")
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

// newestRows returns the version of the newest row of each object that was not deleted, by name. A row that comes again is
// older than the newest, or it.
func newestRows(out string) map[string]string {
	newest, versions := make(map[string]string), make(map[string]int)
	for line := range strings.Lines(out) {
		columns := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(columns) != 4 || columns[1] != "iceberg" || columns[2] == "" {
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
