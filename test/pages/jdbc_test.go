package pages

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/build"
)

// TestTheJDBCRecipeRuns has Debezium's unmodified sink write tables by the configuration of the page, from the envelope and
// from what its unwrap transform makes of it, while objects come, change and go, a signal asks for all again, and all
// records come a second time.
func TestTheJDBCRecipeRuns(t *testing.T) {
	large(t)
	s := running(t)
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	jars, err := build.JDBCSink(ctx)
	if err != nil {
		t.Fatal(err)
	}
	plugins := t.TempDir()
	if err := os.Symlink(jars, filepath.Join(plugins, "jdbc")); err != nil {
		t.Fatal(err)
	}
	s.installFlink(t)
	commands := []command{exporterRuns, {begins: "connect-standalone.sh", ready: ``}, {begins: "sql-client.sh", ready: `\+I`}}
	w := newWalk(t, s, commands, "127.0.0.1:5432", s.sql.Address(), "/opt/connectors", plugins)
	w.env = append(w.env, "NAMESPACE=jdbc")
	w.run("a build", makeBuild)
	w.run("what is there before", `
		kubectl create namespace jdbc
		kubectl create configmap kept --namespace jdbc --from-literal colour=red
		kubectl create configmap going --namespace jdbc --from-literal colour=red`)
	w.follow("docs/recipes/jdbc.md")
	w.run("another worker, which unwraps", `
		sed 's/:[0-9]*$/:0/' docs/recipes/connect/worker.properties >unwrap-worker.properties
		sed 's/^name=.*/name=unwrapped/' docs/recipes/connect/jdbc-sink.properties >unwrap.properties
		cat >>unwrap.properties <<'EOF'
collection.name.format=unwrapped_${topic}
transforms=unwrap
transforms.unwrap.type=io.debezium.transforms.ExtractNewRecordState
EOF
		grep ^bootstrap docs/recipes/connect/worker.properties >>unwrap-worker.properties`)
	w.start(block{place: "the unwrap transform", text: "connect-standalone.sh unwrap-worker.properties unwrap.properties", background: true})
	w.run("objects come, change and go", comeChangeAndGo+`
		kubectl patch configmap kept --namespace jdbc --patch '{"data":{"nul":"a\u0000b","regex":"[^\\u0000-\\u007f]","half":"\ud800"}}'`)
	w.awaitTables()
	w.run("all is emitted again", `
		bin/exporter signal snapshot --sink rows --all --config configs/recipes/jdbc.yaml
		until bin/exporter signal list --config configs/recipes/jdbc.yaml | grep -q done; do sleep 0.1; done`)
	w.again("rows.dev.core.configmaps")
	w.run("a last change of each", `
		kubectl patch configmap kept --namespace jdbc --patch '{"data":{"colour":"black"}}'
		kubectl delete configmap new --namespace jdbc`)
	w.awaitTables()
	w.must(os.WriteFile(filepath.Join(w.dir, "typed.sql"), []byte(w.replaced.Replace(typedTable)), 0o644))
	w.awaitRow(w.start(block{place: "Flink", text: "sql-client.sh --file typed.sql", background: true}))
	w.run("tidying up", "kubectl delete namespace jdbc --wait=false")
}

// typedTable reads typed rows by Flink.
const typedTable = `
SET 'sql-client.execution.result-mode' = 'tableau';
SET 'table.exec.source.cdc-events-duplicate' = 'true';
CREATE TABLE configmaps (
  namespace STRING, name STRING, object STRING, PRIMARY KEY (namespace, name) NOT ENFORCED
) WITH (
  'connector' = 'kafka',
  'topic' = 'rows.dev.core.configmaps',
  'properties.bootstrap.servers' = '127.0.0.1:9092',
  'scan.startup.mode' = 'earliest-offset',
  'format' = 'debezium-json',
  'debezium-json.schema-include' = 'true'
);
SELECT namespace, name, JSON_VALUE(object, '$.data.colour') FROM configmaps WHERE namespace = 'jdbc' AND name <> 'kube-root-ca.crt';
`

// awaitRow waits until a query shows the one ConfigMap that is left.
func (w *walk) awaitRow(query *started) {
	w.t.Helper()
	wanted := map[string]int{"jdbc kept black": 1}
	shown := query.shown(w.t)
	for deadline := time.Now().Add(patience); !maps.Equal(shown, wanted); shown = query.shown(w.t) {
		if time.Now().After(deadline) {
			w.t.Fatalf("Flink shows %v, want %v", shown, wanted)
		}
		time.Sleep(50 * time.Millisecond) // between two looks
	}
}

// awaitTables waits until both tables have the objects of the cluster, in its versions.
func (w *walk) awaitTables() {
	w.t.Helper()
	for _, table := range []string{"rows_dev_core_configmaps", "unwrapped_rows_dev_core_configmaps"} {
		w.awaitEqual("psql --tuples-only --no-align --command \"SELECT name, resource_version FROM "+table+
			" WHERE namespace = 'jdbc' AND resource_version = object->'metadata'->>'resourceVersion'\"",
			w.versions("configmaps", "jdbc"), func(out string) map[string]string {
				rows := make(map[string]string)
				for line := range strings.Lines(out) {
					if name, version, ok := strings.Cut(strings.TrimSpace(line), "|"); ok {
						rows[name] = version
					}
				}
				return rows
			})
	}
}
