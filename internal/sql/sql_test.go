package sql

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/hostile"
	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/postgresql"
)

// recorded are records with authors, a replay, repetitions, lost journals, a repair, a restored backup, two clusters, and
// names and values with NUL and halves of surrogate pairs; beside them is what the clusters had at some moments.
const recorded = "../../pkg/consumer/testdata/hostile"

// databases are asked with records, one a line, for the state at moments and for the authors.
var databases = map[string]func(t *testing.T, dialect, records string, moments []string) string{
	"postgres": askPostgreSQL, "clickhouse": askEmbedded, "duckdb": askEmbedded,
}

// TestTheViewsAnswerHostileRecords: each database gives the states that the clusters had, and the authors.
func TestTheViewsAnswerHostileRecords(t *testing.T) {
	for dialect, ask := range databases {
		t.Run(dialect, func(t *testing.T) {
			var moments []string
			var want strings.Builder
			for line := range strings.Lines(textOf(t, recorded+".states")) {
				moment, _, _ := strings.Cut(line, " ")
				moments = append(moments, moment)
				want.WriteString(line)
			}
			records := textOf(t, recorded+".jsonl")
			want.WriteString("alice a/u3/120/updated\nbob a/u3/130/deleted\n" + deletedIn(t, records))
			if got := ask(t, dialect, records, moments); strings.ReplaceAll(got, "\x00", "%00") != want.String() {
				t.Errorf("the views have\n%s\nthe clusters had\n%s", got, want.String())
			}
		})
	}
}

// streams is how many random streams the databases get.
const streams = 1

// TestTheViewsKnowEveryMoment: each database gives, of random streams, what existed at random moments and in the end, and
// the author of each change, read from partitions at different speeds.
func TestTheViewsKnowEveryMoment(t *testing.T) {
	for dialect, ask := range databases {
		t.Run(dialect, func(t *testing.T) {
			for seed := range uint64(streams) {
				stream := hostile.Make(seed)
				var moments []string
				var want strings.Builder
				for i, at := range append(stream.Moments, stream.Moments[len(stream.Moments)-1].AddDate(1, 0, 0)) {
					moments = append(moments, at.Format(time.RFC3339))
					state := stream.Now
					if i < len(stream.At) {
						state = stream.At[i]
					}
					fmt.Fprintln(&want, strings.Join(append([]string{moments[i]}, state...), " "))
				}
				for id, user := range stream.Authors {
					want.WriteString(user + " " + id + "\n")
				}
				records := strings.Join(stream.Lines(rand.New(rand.NewPCG(seed, 45))), "\n")
				want.WriteString(deletedIn(t, records))
				got := strings.ReplaceAll(ask(t, dialect, records, moments), "\x00", "%00")
				compareLines(t, got, want.String())
			}
		})
	}
}

// deletedIn returns a line for each object that was deleted, and has not left, in the order of the records' IDs.
func deletedIn(t *testing.T, records string) string {
	t.Helper()
	gone := make(map[string]bool)
	for line := range strings.Lines(records) {
		var record struct {
			ID, Type string
			Left     bool
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatal(err)
		}
		if record.Type == "deleted" && !record.Left {
			gone["deleted "+strings.ReplaceAll(record.ID, "\x00", "%00")+"\n"] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(gone)), "")
}

// compareLines shows what only one of two texts has.
func compareLines(t *testing.T, got, want string) {
	t.Helper()
	var has [2]map[string]bool
	for i, text := range []string{got, want} {
		has[i] = make(map[string]bool)
		for line := range strings.Lines(text) {
			has[i][line] = true
		}
	}
	for line := range has[0] {
		if !has[1][line] {
			t.Errorf("found: %s", line)
		}
	}
	for line := range has[1] {
		if !has[0][line] {
			t.Errorf("lacks: %s", line)
		}
	}
}

// TestAnotherDatabaseIsRefused with the ones that are known.
func TestAnotherDatabaseIsRefused(t *testing.T) {
	if text, err := Print("oracle"); err == nil || text != "" || !strings.Contains(err.Error(), "duckdb, duckdb-history, postgres") {
		t.Errorf("%q, %v", text, err)
	}
}

// askPostgreSQL adds each record twice, in reverse order first.
func askPostgreSQL(t *testing.T, dialect, records string, moments []string) string {
	dir, err := os.MkdirTemp("", "sql") // PostgreSQL runs as another user, for which t.TempDir is closed
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	server, err := postgresql.Start(t.Context(), filepath.Join(dir, "server"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	input := bytes.NewBufferString("SET client_min_messages = warning;\n" + printed(t, dialect))
	lines := strings.Split(strings.TrimSpace(records), "\n")
	reversed := slices.Clone(lines)
	slices.Reverse(reversed)
	for _, line := range slices.Concat(reversed, lines) {
		fmt.Fprintf(input, "DO $do$ BEGIN PERFORM kubecdc_add($record$%s$record$); END $do$;\n", line)
	}
	for _, moment := range moments {
		fmt.Fprintf(input, `SELECT '%s ' || string_agg(one, ' ' ORDER BY one COLLATE "C") FROM (SELECT cluster || '/' || resource || '/' ||
			namespace || '/' || name || '@' || resource_version AS one FROM state_at('%[1]s')) AS s;`+"\n", moment)
	}
	input.WriteString("SELECT author || ' ' || id FROM who_changed WHERE author <> '' ORDER BY author;\n" +
		`SELECT type || ' ' || id FROM who_changed WHERE type = 'deleted' ORDER BY id COLLATE "C";` + "\n")
	psql := exec.CommandContext(t.Context(), server.Psql(), "--quiet", "--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1")
	psql.Env, psql.Stdin = append(os.Environ(), server.Env()...), input
	return outputOf(t, psql)
}

// askEmbedded runs the databases that are modules of Python.
func askEmbedded(t *testing.T, dialect, records string, moments []string) string {
	if os.Getenv("KUBECDC_RECIPES") == "" {
		t.Skip("fetches the embedded databases: set KUBECDC_RECIPES=1")
	}
	python, err := build.ClickHouse(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "views.sql")
	if err := os.WriteFile(file, []byte(printed(t, dialect)), 0o600); err != nil {
		t.Fatal(err)
	}
	input := filepath.Join(t.TempDir(), "records.jsonl")
	if err := os.WriteFile(input, []byte(records), 0o600); err != nil {
		t.Fatal(err)
	}
	return outputOf(t, exec.CommandContext(t.Context(), python,
		append([]string{"testdata/ask.py", dialect, file, input}, moments...)...))
}

func printed(t *testing.T, dialect string) string {
	t.Helper()
	text, err := Print(dialect)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func outputOf(t *testing.T, c *exec.Cmd) string {
	t.Helper()
	var failure bytes.Buffer
	c.Stderr = &failure
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, failure.String())
	}
	return string(out)
}

func textOf(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
