// Package sql holds the tables and views that answer questions from the stream, in the dialects of three databases.
package sql

import (
	"embed"
	"fmt"
	"slices"
	"strings"
	"text/template"

	"github.com/kubecdc/kubecdc/internal/exit"
)

//go:embed *.sql
var files embed.FS

// Dialects are the databases that [Print] knows, in order.
var Dialects = []string{"clickhouse", "clickhouse-history", "duckdb", "duckdb-history", "postgres"}

var templates = template.Must(template.ParseFS(files, "*.sql"))

// Print returns the tables and views for records of the format json, or for a history. Each database has a file that reads
// these in its dialect. What is derived from them is the same text for all, so that all give the same answers.
func Print(dialect string) (string, error) {
	if !slices.Contains(Dialects, dialect) {
		return "", exit.With(exit.Usage, fmt.Errorf("--for is %q: expected one of %s", dialect, strings.Join(Dialects, ", ")))
	}
	var text strings.Builder
	err := templates.ExecuteTemplate(&text, dialect+".sql", nil)
	return text.String(), err
}
