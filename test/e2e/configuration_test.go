package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/parts/build"
)

// answersWithin bounds how long the program may take to refuse.
const answersWithin = 5 * time.Minute

// TestInvalidConfigurationStartsNothing gives every bad file of the configuration's own corpus to the program, where its
// message lies beside it: FILE.yaml and FILE.txt.
func TestInvalidConfigurationStartsNothing(t *testing.T) {
	binary := program(t)
	dir := corpus(t)
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d bad configurations, want at least 20 (%v)", len(files), err)
	}
	before := listing(t, dir)
	for _, path := range files {
		file := filepath.Base(path)
		t.Run(strings.TrimSuffix(file, ".yaml"), func(t *testing.T) {
			want, err := os.ReadFile(strings.TrimSuffix(path, ".yaml") + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			for _, command := range []string{"validate", "run"} {
				refuses(t, binary, dir, string(want), command, "--config", file)
			}
		})
	}
	if after := listing(t, dir); !slices.Equal(before, after) {
		t.Errorf("something was started: the directory holds %q, held %q", after, before)
	}
}

// refuses checks that the program exits with 2 and the text, and that all its lines name the file.
func refuses(t *testing.T, binary, dir, want string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answersWithin)
	defer cancel()
	code, text, err := exporter.Run(ctx, binary, dir, args...)
	if err != nil {
		t.Fatal(err)
	}
	if code != 2 || text != want {
		t.Errorf("%v: exit code %d, want 2; standard error\n%swant\n%s", args, code, text, want)
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, args[len(args)-1]) && !strings.HasPrefix(line, "environment: ") {
			t.Errorf("%v: a line does not say where: %s", args, line)
		}
	}
}

// corpus copies the bad configurations, and what they refer to, to where the program can do no harm.
func corpus(t *testing.T) string {
	t.Helper()
	root, err := build.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(root, "internal/config/testdata"))); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "bad")
}

func listing(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestInvalidUsageIsRejected(t *testing.T) {
	binary := program(t)
	dir := t.TempDir()
	for name, args := range map[string][]string{
		"no configuration":         {"run"},
		"no such configuration":    {"run", "--config", "no-such-file.yaml"},
		"a directory":              {"run", "--config", "."},
		"an unknown command":       {"walk"},
		"an unknown flag":          {"run", "--config", "a.yaml", "--fast"},
		"an argument too many":     {"validate", "--config", "a.yaml", "b.yaml"},
		"validate without a file":  {"validate"},
		"validate a missing file":  {"validate", "--config", "no-such-file.yaml"},
		"a flag without its value": {"run", "--config"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), answersWithin)
			defer cancel()
			code, text, err := exporter.Run(ctx, binary, dir, args...)
			if err != nil || code != 2 || text == "" || strings.Count(text, "\n") > 2 {
				t.Errorf("exit code %d, want 2 and a short reason (%v):\n%s", code, err, text)
			}
		})
	}
	if left := listing(t, dir); len(left) > 0 {
		t.Errorf("something was started: %q", left)
	}
}
