package monitoring_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// board is what the tests look at of a dashboard.
type board struct {
	Templating struct {
		List []struct{ Name string }
	}
	Panels []struct {
		ID          int
		Type, Title string
		Description string
		GridPos     struct{ H, W, X, Y int }
		Datasource  struct{ UID string }
		FieldConfig struct {
			Defaults struct{ Unit string }
		}
		Targets []struct{ RefID, Expr string }
	}
}

func readBoard(t *testing.T) board {
	t.Helper()
	text, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var b board
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestTheDashboardKeepsTheRules are those of Grafana's own linter: variables for data source, job and instance that every
// query uses, a title, a description and a unit for each panel, rates over the interval that Grafana gives.
func TestTheDashboardKeepsTheRules(t *testing.T) {
	b := readBoard(t)
	var variables []string
	for _, v := range b.Templating.List {
		variables = append(variables, v.Name)
	}
	if want := []string{"datasource", "job", "instance"}; !slices.Equal(variables, want) {
		t.Errorf("variables %v, want %v", variables, want)
	}
	ids := map[int]bool{}
	for _, p := range b.Panels {
		if ids[p.ID] {
			t.Errorf("%s: id %d twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Type == "row" {
			continue
		}
		if p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("panel %d %q lacks a title, a description, a unit, a query or the data source that is chosen", p.ID, p.Title)
		}
		for _, q := range p.Targets {
			if !strings.Contains(q.Expr, `job=~"$job", instance=~"$instance"`) {
				t.Errorf("%s: %s does not look at the chosen exporters only", p.Title, q.Expr)
			}
			if strings.Contains(q.Expr, "rate(") && !strings.Contains(q.Expr, "[$__rate_interval]") {
				t.Errorf("%s: %s has an interval of its own", p.Title, q.Expr)
			}
		}
	}
}

func TestPanelsDoNotOverlap(t *testing.T) {
	taken := map[[2]int]string{}
	for _, p := range readBoard(t).Panels {
		at := p.GridPos
		if at.X+at.W > 24 {
			t.Errorf("%s reaches over the edge", p.Title)
		}
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("%s lies on %s", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}

// TestQueriesAreValid has promtool parse every query, as the expression of a rule.
func TestQueriesAreValid(t *testing.T) {
	values := strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h", "$job", ".+", "$instance", ".+")
	text := "groups:\n  - name: dashboard\n    rules:\n"
	for _, p := range readBoard(t).Panels {
		for _, q := range p.Targets {
			text += fmt.Sprintf("      - record: panel:%d:%s\n        expr: %q\n", p.ID, strings.ToLower(q.RefID), values.Replace(q.Expr))
		}
	}
	file := filepath.Join(t.TempDir(), "queries.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}
