package pages

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	"github.com/kubecdc/kubecdc/test/hostile"
	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// publishHostile has a sink write the records of a stream to a topic of the broker.
func (s *servers) publishHostile(t *testing.T, topic string, f format.Format, changes []*event.Change) {
	t.Helper()
	sink, err := kafka.New(kafka.Config{Brokers: []string{s.kafka.Address()}, Topic: topic, RequestTimeout: patience, Tombstones: f.IsTyped(),
		CreateTopics: kafka.CreateTopics{Enabled: true, Partitions: 2}}, f, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := sink.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	if err := sink.RestoreState(nil, 0, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := sink.CheckServers(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, c := range changes {
		if !f.CanRepresent(c) {
			continue
		}
		for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) { // as delivery does: a topic is being made
			lane, err := sink.Lane(c)
			if err == nil {
				_, err = sink.Publish(t.Context(), lane, []sinks.Message{{Offset: uint64(i + 1), Change: c}})
			}
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
}

// TestTheFlinkRecipeTakesHostileRecords: the tables of the page, in both formats, have what the clusters have.
func TestTheFlinkRecipeTakesHostileRecords(t *testing.T) {
	require.Long(t)
	s := running(t)
	s.installFlink(t)
	w := newWalk(t, s, []command{{begins: "sql-client.sh", ready: `\+I`}})
	stream := hostile.Make(3)
	s.publishHostile(t, "hostile.cdc", format.Debezium, stream.Changes)
	s.publishHostile(t, "hostile.now", format.Upsert, stream.Changes)
	tables := listings(t, w.dir, flinkPage, "sql tested by TestTheFlinkRecipeRuns")
	for i, topic := range []string{"hostile.cdc", "hostile.now"} {
		create, _, _ := strings.Cut(tables[i], "SELECT ")
		create = strings.NewReplacer("cdc.dev.apps.deployments", topic, "now.dev.apps.deployments", topic,
			"name STRING>", "name STRING, resourceVersion STRING>").Replace(create)
		table := map[int]string{0: "deployments", 1: "deployments_now"}[i]
		name := topic + ".sql"
		w.must(os.WriteFile(filepath.Join(w.dir, name), []byte("SET 'table.display.max-column-width' = '200';\n"+create+
			"SELECT object_key, metadata.resourceVersion FROM "+table+";\n"), 0o644))
		query := w.start(block{place: topic, text: "sql-client.sh --file " + name, background: true})
		wanted := make(map[string]int)
		for _, one := range stream.Now {
			wanted[one]++
		}
		var found map[string]int
		for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) { // between two looks
			found = make(map[string]int)
			for row, count := range query.shown(t) {
				found[rowOfKey(t, row)] += count
			}
			if maps.Equal(found, wanted) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: Flink has\n%v\nthe clusters\n%v", topic, found, wanted)
			}
		}
	}
}

// rowOfKey returns the item of a state for a key and a version.
func rowOfKey(t *testing.T, row string) string {
	t.Helper()
	key, version, _ := strings.Cut(row, " ")
	parts := strings.SplitN(key, "/", 5)
	if len(parts) != 5 {
		t.Fatalf("%q has no key", row)
	}
	return hostile.NameRow(parts[0], parts[2], parts[3], parts[4], version)
}

// TestTheJDBCRecipeTakesHostileRecords: the table that Debezium's sink writes by the configuration of the page has what the
// clusters have.
func TestTheJDBCRecipeTakesHostileRecords(t *testing.T) {
	require.Long(t)
	large(t)
	s := running(t)
	jars, err := build.JDBCSink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	plugins := t.TempDir()
	if err := os.Symlink(jars, filepath.Join(plugins, "jdbc")); err != nil {
		t.Fatal(err)
	}
	w := newWalk(t, s, []command{{begins: "connect-standalone.sh", ready: ``}}, "127.0.0.1:5432", s.sql.Address(), "/opt/connectors", plugins)
	stream := hostile.Make(4)
	s.publishHostile(t, "rows.hostile", format.DebeziumInline, stream.Changes)
	w.start(block{place: "the JDBC sink", background: true,
		text: "connect-standalone.sh docs/recipes/connect/worker.properties docs/recipes/connect/jdbc-sink.properties"})
	wanted := make(map[string]string)
	for _, one := range stream.Now {
		wanted[one] = ""
	}
	w.awaitEqual(`psql --tuples-only --no-align --command "SELECT cluster, resource, namespace, name, resource_version FROM rows_hostile`+
		` WHERE resource_version = object->'metadata'->>'resourceVersion'"`, wanted, func(out string) map[string]string {
		rows := make(map[string]string)
		for line := range strings.Lines(out) {
			if c := strings.Split(strings.TrimSuffix(line, "\n"), "|"); len(c) == 5 {
				rows[hostile.NameRow(c[0], c[1], c[2], c[3], c[4])] = ""
			}
		}
		return rows
	})
}

// TestTheIcebergRecipeTakesHostileRecords: PyIceberg and DuckDB find in the table, by the statements of the page, what the
// clusters had at random moments, and have in the end.
func TestTheIcebergRecipeTakesHostileRecords(t *testing.T) {
	require.Long(t)
	large(t)
	jars, err := build.IcebergSink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	interpreter, err := build.PyIceberg(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	plugins, warehouse := t.TempDir(), t.TempDir()
	if err := os.Symlink(jars, filepath.Join(plugins, "iceberg")); err != nil {
		t.Fatal(err)
	}
	w := newWalk(t, running(t), []command{{begins: "connect-standalone.sh", ready: ``}}, "/opt/connectors", plugins,
		"file:///tmp/warehouse", "file://"+warehouse, "commit.interval-ms=10000", "commit.interval-ms=1000",
		`k8s\\..*`, "hostile.iceberg", "changes-to-iceberg", "hostile-to-iceberg")
	stream := hostile.Make(5)
	w.must(os.WriteFile(filepath.Join(w.dir, "lines.jsonl"), []byte(strings.Join(stream.Lines(rand.New(rand.NewPCG(5, 47))), "\n")), 0o644))
	moments := make(map[string]string)
	for i, at := range stream.Moments {
		moments[at.Format(time.RFC3339)] = strings.Join(stream.At[i], "\t")
	}
	moments["2027-01-01T00:00:00Z"] = strings.Join(stream.Now, "\t")
	w.must(os.WriteFile(filepath.Join(w.dir, "moments"), []byte(strings.Join(slices.Collect(maps.Keys(moments)), "\n")), 0o644))
	w.run("topics, and what the exporter prints", makeBuild+`bin/exporter sql --for duckdb > views.sql
		for topic in hostile.iceberg control-iceberg; do
			kafka-topics.sh --bootstrap-server 127.0.0.1:9092 --create --if-not-exists --partitions 1 --topic $topic
		done
		python3 `+testdata(t, "produce.py")+` 127.0.0.1:9092 hostile.iceberg < lines.jsonl`)
	w.start(block{place: "the Iceberg sink", background: true,
		text: "connect-standalone.sh docs/recipes/connect/worker.properties docs/recipes/connect/iceberg-sink.properties"})
	w.awaitEqual(interpreter+" "+testdata(t, "iceberg.py")+" docs/recipes/iceberg.md "+filepath.Join(warehouse, "history", "changes")+" < moments",
		moments, func(out string) map[string]string {
			found := make(map[string]string)
			for line := range strings.Lines(out) {
				if moment, state, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); ok { // the page prints, too
					found[moment] = strings.ReplaceAll(state, "\x00", "%00")
				}
			}
			return found
		})
}
