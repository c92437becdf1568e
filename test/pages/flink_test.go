package pages

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

const flinkPage = "docs/recipes/flink.md"

// TestTheFlinkRecipeRuns has Flink follow a cluster by the statements of the page, in both formats, while objects come,
// change and go, all records come a second time, and signals have what exists emitted again.
func TestTheFlinkRecipeRuns(t *testing.T) {
	require.Long(t)
	s := running(t)
	s.installFlink(t)
	w := newWalk(t, s, []command{exporterRuns, {begins: "sql-client.sh", ready: `\+I`}})
	w.run("a build", makeBuild)
	w.run("what is there before", `
		kubectl create namespace flink
		kubectl create deployment kept --image nginx --replicas 2
		kubectl create deployment going --image nginx`)
	w.follow(flinkPage)
	w.await(`python3 -c 'import confluent_kafka as k
print(sorted(k.Consumer({"bootstrap.servers": "127.0.0.1:9092", "group.id": "look"}).list_topics().topics))'`,
		`cdc\.dev\.apps\.deployments.*now\.dev\.apps\.deployments`)
	var tables []*started
	for i, statements := range listings(t, w.dir, flinkPage, "sql tested by TestTheFlinkRecipeRuns") {
		name := fmt.Sprintf("statements-%d.sql", i)
		w.must(os.WriteFile(filepath.Join(w.dir, name), []byte(statements), 0o644))
		tables = append(tables, w.start(block{place: flinkPage, text: "sql-client.sh --file " + name, background: true}))
	}
	if len(tables) != 2 {
		t.Fatalf("%s has %d blocks of SQL", flinkPage, len(tables))
	}
	w.run("objects come, change and go", `
		kubectl create deployment kept --image nginx --namespace flink
		kubectl create deployment short --image nginx --replicas 3
		kubectl create deployment going --image nginx --namespace flink
		kubectl scale deployment kept --replicas 5
		kubectl patch deployment short --subresource status --patch '{"status":{"replicas":3,"readyReplicas":1}}'
		kubectl delete deployment going
		kubectl delete deployment going --namespace flink
		kubectl create deployment going --image nginx:2 --replicas 4`)
	w.awaitShort(tables)
	w.again("cdc.dev.apps.deployments", "now.dev.apps.deployments")
	w.run("what exists is emitted again, and deletes of what never did", `
		for sink in changes tables; do
			bin/exporter signal snapshot --sink $sink --all --config configs/recipes/flink.yaml
		done
		until [ $(bin/exporter signal list --config configs/recipes/flink.yaml | grep -c done) = 2 ]; do sleep 0.1; done
		for sink in changes tables; do
			bin/exporter signal snapshot --sink $sink --select deployments.apps --object default/kept --object default/never \
				--config configs/recipes/flink.yaml
		done`)
	w.run("a last change of each", `
		kubectl scale deployment --all --replicas 7
		kubectl scale deployment --all --replicas 6 --namespace flink
		kubectl patch deployment kept --subresource status --patch '{"status":{"replicas":7,"readyReplicas":7}}'
		kubectl delete deployment going`)
	w.awaitShort(tables)
	w.run("tidying up", "kubectl delete namespace flink --wait=false\nkubectl delete deployment kept short")
}

// installFlink adds sql-client.sh to the tools.
func (s *servers) installFlink(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	jars, err := build.Flink(ctx)
	if err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(s.dir, "flink")
	if err := os.MkdirAll(conf, 0o755); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\nFLINK_CONF_DIR='" + conf + "' exec java -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1" +
		" --add-opens java.base/java.util=ALL-UNNAMED --add-opens java.base/java.lang=ALL-UNNAMED" +
		" -Dorg.slf4j.simpleLogger.defaultLogLevel=error -Duser.home='" + conf + "' -cp '" + jars + "/*'" +
		" org.apache.flink.table.client.SqlClient \"$@\"\n"
	for path, text := range map[string]string{
		filepath.Join(conf, "config.yaml"):             "execution.target: local\nparallelism.default: 1\n",
		filepath.Join(s.dir, "tools", "sql-client.sh"): script,
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitShort waits until what each query shows are the deployments of the cluster that have not all replicas ready.
func (w *walk) awaitShort(queries []*started) {
	w.t.Helper()
	wanted := w.short()
	deadline := time.Now().Add(patience)
	for _, q := range queries {
		shown := q.shown(w.t)
		for ; !maps.Equal(shown, wanted); shown = q.shown(w.t) {
			if time.Now().After(deadline) {
				w.t.Fatalf("%s: Flink shows\n%v\nthe cluster has\n%v", q.text, shown, wanted)
			}
			time.Sleep(50 * time.Millisecond) // between two looks
		}
	}
}

// short returns the deployments of the cluster that have not all replicas ready, as Flink shows them.
func (w *walk) short() map[string]int {
	w.t.Helper()
	out, err := w.shell("kubectl get deployments --all-namespaces --output json")
	if err != nil {
		w.t.Fatalf("%v\n%s", err, out)
	}
	var list struct {
		Items []struct {
			Metadata struct{ Namespace, Name string }
			Spec     struct{ Replicas int }
			Status   struct{ ReadyReplicas int }
		}
	}
	w.must(json.Unmarshal([]byte(out), &list))
	rows := make(map[string]int)
	for _, d := range list.Items {
		if d.Spec.Replicas > d.Status.ReadyReplicas {
			rows[fmt.Sprintf("%s %s %d %d", d.Metadata.Namespace, d.Metadata.Name, d.Spec.Replicas, d.Status.ReadyReplicas)]++
		}
	}
	return rows
}

// changelogLine is a row that a query in the tableau mode adds or takes back.
var changelogLine = regexp.MustCompile(`(?m)^\| ([+-])[IUD] \|(.*)\|\s*$`)

// shown returns how often each row is in the result of a query.
func (s *started) shown(t *testing.T) map[string]int {
	t.Helper()
	text, err := os.ReadFile(s.log)
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[string]int)
	for _, m := range changelogLine.FindAllStringSubmatch(string(text), -1) {
		row := strings.Join(strings.Fields(strings.ReplaceAll(m[2], "|", " ")), " ")
		if m[1] == "+" {
			rows[row]++
		} else {
			rows[row]--
		}
		if rows[row] == 0 {
			delete(rows, row)
		}
	}
	return rows
}
