package style

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "lower the budgets in budget.txt to what there is, and take new rooms")

const (
	budgetFile = "budget.txt"
	whole      = "all" // the product's lines; its budget is never raised by -update
	budgetStep = 100   // -update sets the next of these that is over the lines: there is room for a fix
)

// roomOf returns the room that a file of the product belongs to: a directory of internal or pkg with all below it, each
// sink on its own, and the commands.
func roomOf(path string) string {
	parts := strings.Split(path, "/")
	depth := 2
	switch {
	case parts[0] == "cmd":
		depth = 1
	case strings.HasPrefix(path, "pkg/sinks/"):
		depth = 3
	}
	return strings.Join(parts[:min(depth, len(parts)-1)], "/")
}

// linesByRoom counts the lines of Go without tests, generated ones too.
func linesByRoom(t *testing.T) map[string]int {
	t.Helper()
	lines := map[string]int{}
	for _, dir := range []string{"cmd", "internal", "pkg"} {
		for _, path := range files(t, dir, ".go") {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			text, err := os.ReadFile(filepath.Join(root, path))
			if err != nil {
				t.Fatal(err)
			}
			n := bytes.Count(text, []byte("\n"))
			lines[roomOf(path)] += n
			lines[whole] += n
		}
	}
	return lines
}

func readBudgets(t *testing.T) map[string]int {
	t.Helper()
	text, err := os.ReadFile(budgetFile)
	if err != nil {
		t.Fatal(err)
	}
	budgets := map[string]int{}
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		var room string
		var n int
		if _, err := fmt.Sscanf(line, "%s %d", &room, &n); err != nil {
			t.Fatalf("%s:%d: %q: expected a room and its lines: %v", budgetFile, i+1, line, err)
		}
		budgets[room] = n
	}
	return budgets
}

// lowered returns the budgets that fit the lines: a room that has shrunk gets less, a new one what it has, and one that is
// gone nothing. No budget is raised.
func lowered(budgets, lines map[string]int) map[string]int {
	fit := map[string]int{}
	for room, n := range lines {
		fit[room] = (n/budgetStep + 1) * budgetStep
		if had, known := budgets[room]; known {
			fit[room] = min(fit[room], had)
		}
	}
	return fit
}

func writeBudgets(t *testing.T, budgets map[string]int) {
	t.Helper()
	var text strings.Builder
	for _, room := range slices.Sorted(maps.Keys(budgets)) {
		fmt.Fprintf(&text, "%s %d\n", room, budgets[room])
	}
	if err := os.WriteFile(budgetFile, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestNoRoomIsOverItsBudget of lines: what is added to a room takes the place of something.
func TestNoRoomIsOverItsBudget(t *testing.T) {
	if *in != "" {
		t.Skip("a part of the repository is measured")
	}
	lines, budgets := linesByRoom(t), readBudgets(t)
	if *update {
		budgets = lowered(budgets, lines)
		writeBudgets(t, budgets)
	}
	for _, room := range slices.Sorted(maps.Keys(lines)) {
		budget, known := budgets[room]
		if !known {
			t.Errorf("%s has no budget: go test ./test/style -run Budget -update takes a new room", room)
			continue
		}
		t.Logf("%-28s %6d lines, at most %d", room, lines[room], budget)
		if lines[room] > budget {
			t.Errorf("%s has %d lines, over its budget of %d: remove a way, a mode or an option of it; "+
				"raising the budget in test/style/%s needs a line in an ADR that names the way that went", room, lines[room], budget, budgetFile)
		}
	}
	for room := range budgets {
		if _, there := lines[room]; !there {
			t.Errorf("%s has a budget and no lines: go test ./test/style -run Budget -update removes it", room)
		}
	}
}

func TestBudgetsAreOnlyLowered(t *testing.T) {
	budgets := map[string]int{whole: 900, "grown": 200, "shrunk": 500, "gone": 100}
	lines := map[string]int{whole: 1001, "grown": 301, "shrunk": 399, "new": 0}
	want := map[string]int{whole: 900, "grown": 200, "shrunk": 400, "new": 100}
	if got := lowered(budgets, lines); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestARoomIsADirectoryWithAllBelowIt(t *testing.T) {
	for path, want := range map[string]string{
		"cmd/exporter/main.go": "cmd", "internal/journal/codec/change.go": "internal/journal", "pkg/event/change.go": "pkg/event",
		"pkg/sinks/contract.go": "pkg/sinks", "pkg/sinks/kafka/state/log.go": "pkg/sinks/kafka",
	} {
		if got := roomOf(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
