package sql

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/postgresql"
)

// hostile are records with authors, a replay, repetitions, lost journals, a repair, a restored backup, two clusters, and
// names and values with NUL and halves of surrogate pairs; beside them is what the clusters had at some moments.
const hostile = "../../pkg/consumer/testdata/hostile"

// TestTheViewsAnswerHostileRecords: each database gives the states that the clusters had, and the authors.
func TestTheViewsAnswerHostileRecords(t *testing.T) {
	ask := map[string]func(*testing.T, string, []string) string{
		"postgres": askPostgreSQL, "clickhouse": askEmbedded, "duckdb": askEmbedded,
	}
	for _, dialect := range []string{"clickhouse", "duckdb", "postgres"} {
		t.Run(dialect, func(t *testing.T) {
			var moments []string
			var want strings.Builder
			for line := range strings.Lines(textOf(t, hostile+".states")) {
				moment, _, _ := strings.Cut(line, " ")
				moments = append(moments, moment)
				want.WriteString(line)
			}
			want.WriteString("alice updated again\nbob deleted again\n")
			if got := ask[dialect](t, dialect, moments); strings.ReplaceAll(got, "\x00", "%00") != want.String() {
				t.Errorf("the views have\n%s\nthe clusters had\n%s", got, want.String())
			}
		})
	}
}

// TestAnotherDatabaseIsRefused with the ones that are known.
func TestAnotherDatabaseIsRefused(t *testing.T) {
	if text, err := Print("oracle"); err == nil || text != "" || !strings.Contains(err.Error(), "duckdb, duckdb-history, postgres") {
		t.Errorf("%q, %v", text, err)
	}
}

// askPostgreSQL adds each record twice, in reverse order first.
func askPostgreSQL(t *testing.T, dialect string, moments []string) string {
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
	lines := strings.Split(strings.TrimSpace(textOf(t, hostile+".jsonl")), "\n")
	reversed := slices.Clone(lines)
	slices.Reverse(reversed)
	for _, line := range slices.Concat(reversed, lines) {
		fmt.Fprintf(input, "DO $do$ BEGIN PERFORM kubecdc_add($raw$%s$raw$); END $do$;\n", line)
	}
	for _, moment := range moments {
		fmt.Fprintf(input, `SELECT '%s ' || string_agg(one, ' ' ORDER BY one COLLATE "C") FROM (SELECT cluster || '/' || resource || '/' ||
			namespace || '/' || name || '@' || resource_version AS one FROM state_at('%[1]s')) AS s;`+"\n", moment)
	}
	input.WriteString("SELECT author || ' ' || type || ' ' || name FROM who_changed WHERE author <> '' ORDER BY author;\n")
	psql := exec.CommandContext(t.Context(), server.Psql(), "--quiet", "--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1")
	psql.Env, psql.Stdin = append(os.Environ(), server.Env()...), input
	return outputOf(t, psql)
}

// askEmbedded runs the databases that are modules of Python.
func askEmbedded(t *testing.T, dialect string, moments []string) string {
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
	return outputOf(t, exec.CommandContext(t.Context(), python,
		append([]string{"testdata/ask.py", dialect, file, hostile + ".jsonl"}, moments...)...))
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
