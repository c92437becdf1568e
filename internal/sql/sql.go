// Package sql holds the tables and views that answer questions from the stream, in the dialects of three databases.
package sql

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/internal/exit"
)

//go:embed *.sql
var files embed.FS

// Dialects are the databases that [Print] knows, in order.
var Dialects = []string{"clickhouse", "duckdb", "postgres"}

// Print returns the tables and views for records of the format json. Each database has a file that parses records in its
// dialect. History and authors are the same text for all, so that all give the same answers.
func Print(dialect string) (string, error) {
	if !slices.Contains(Dialects, dialect) {
		return "", exit.With(exit.Usage, fmt.Errorf("--for is %q: expected one of %s", dialect, strings.Join(Dialects, ", ")))
	}
	own, err := files.ReadFile(dialect + ".sql")
	if err != nil {
		return "", err
	}
	views, err := files.ReadFile("views.sql")
	return strings.Replace(string(own), "-- {views}\n", string(views), 1), err
}
