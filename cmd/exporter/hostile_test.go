package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/hostile"
	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// TestAHistoryOfHostileRecordsKnowsEveryMoment: the views of DuckDB and ClickHouse on a history have what two clusters had
// at random moments, and have in the end, and the author of each change.
func TestAHistoryOfHostileRecordsKnowsEveryMoment(t *testing.T) {
	require.Long(t)
	require.Integration(t)
	python, err := build.ClickHouse(t.Context())
	must(t, err)
	for seed := range uint64(1) {
		dir, stream, c := t.TempDir(), hostile.Make(seed), &scripted{}
		seen := make(map[string]bool)
		once := slices.DeleteFunc(stream.Changes, func(change *event.Change) bool { // a sink gets a record at one offset only
			id := change.ID()
			repeated := seen[id]
			seen[id] = true
			return repeated
		})
		for part := range slices.Chunk(once, len(once)/3+1) {
			for _, change := range part {
				c.offset++
				c.batch = append(c.batch, sinks.Message{Offset: c.offset, Change: change})
			}
			c.store(t, filepath.Join(dir, "history"))
		}
		const columns = "SELECT cluster, resource, namespace, name, resource_version FROM history WHERE "
		files, want := []string{"now", "authors"}, make(map[string][]string)
		writeFile(t, filepath.Join(dir, "now"), columns+"valid_to IS NULL")
		writeFile(t, filepath.Join(dir, "authors"), "SELECT cluster, uid, type, author, count(*) FROM who_changed WHERE author IS NOT NULL GROUP BY 1, 2, 3, 4")
		want["now"] = rowsOf(stream.Now)
		for i, at := range stream.Moments {
			name := fmt.Sprint("moment", i)
			writeFile(t, filepath.Join(dir, name), fmt.Sprintf(columns+"valid_from <= '%s' AND (valid_to > '%[1]s' OR valid_to IS NULL)", clock(at)))
			files, want[name] = append(files, name), rowsOf(stream.At[i])
		}
		authors := make(map[string]int)
		for _, change := range once {
			if user := stream.Authors[change.ID()]; user != "" {
				authors[fmt.Sprintf("%s|%s|%s|%s", change.Cluster, change.UID, change.Type, user)]++
			}
		}
		for row, count := range authors {
			want["authors"] = append(want["authors"], fmt.Sprint(row, "|", count))
		}
		for _, dialect := range []string{"duckdb", "clickhouse"} {
			views := filepath.Join(dir, dialect)
			_, text, _ := try(t, "sql", "--for", dialect+"-history")
			writeFile(t, views, text)
			command := exec.CommandContext(t.Context(), python, append([]string{mustAbs(t, "testdata/questions.py"), dialect, views}, files...)...)
			command.Dir = dir
			out, err := command.CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", dialect, err, out)
			}
			got := make(map[string][]string)
			for line := range strings.Lines(string(out)) {
				if file, row, ok := strings.Cut(strings.TrimSuffix(strings.ReplaceAll(line, "\x00", "%00"), "\n"), "|"); ok {
					got[file] = append(got[file], row)
				}
			}
			for _, file := range files {
				compareAnswers(t, fmt.Sprint(dialect, ", seed ", seed, ", ", file), got[file], want[file])
			}
		}
	}
}

// rowsOf returns a state as the rows of a query.
func rowsOf(state hostile.State) (rows []string) {
	for _, one := range state {
		place, version, _ := strings.Cut(one, "@")
		rows = append(rows, strings.ReplaceAll(place, "/", "|")+"|"+version)
	}
	return rows
}
