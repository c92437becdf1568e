package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/history"
)

// planted are the values that edited rules hide. They look like nothing else.
const planted = "Xq7-planted-Zk9"

// plantHistory writes a history with the values in objects, in what changed, in what is alive and in rows of small files.
func plantHistory(t *testing.T, dir string) {
	t.Helper()
	w, err := history.OpenWriter(history.Folder(dir))
	must(t, err)
	for i := range 40 {
		value, before := fmt.Sprint(planted, i), fmt.Sprint(planted, i-1)
		row := history.Row{Facts: history.Facts{Cluster: "c", Version: "v1", Resource: "configmaps", Kind: "ConfigMap", Namespace: "shop", Name: "web", UID: "u",
			Type: "updated", ResourceVersion: fmt.Sprint(100 + i), ObservedAt: time.Date(2026, 11, 27+i/20, 12, i, 0, 0, time.UTC),
			Changed: []history.Difference{{Path: "/data/token", From: fmt.Sprintf("%q", before), To: fmt.Sprintf("%q", value)}, {Path: "/data/colour", To: `"blue"`}}},
			Object: fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"web","namespace":"shop","resourceVersion":"%d"},"data":{"colour":"blue","token":%q}}`, 100+i, value)}
		other := row
		other.Name, other.UID, other.Changed, other.Object = "other", "o", nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"other","namespace":"shop"},"data":{"colour":"green"}}`
		b, err := w.NewBatch([]history.Row{row, other})
		must(t, err)
		must(t, b.Commit())
	}
	for more := true; more; {
		if more, err = w.Compact(false); err != nil {
			t.Fatal(err)
		}
	}
	must(t, w.Close())
}

// everything returns all that the files of a history have, as text, and fails if there is a file beside them.
func everything(t *testing.T, dir string) string {
	t.Helper()
	s, err := history.Open(history.Folder(dir))
	must(t, err)
	defer s.Close() //nolint:errcheck // only read
	var all strings.Builder
	for row, err := range s.Rows(t.Context(), history.Query{}) {
		must(t, err)
		fmt.Fprintf(&all, "%+v\n", *row)
	}
	for _, f := range s.Manifest.Files {
		for row, err := range s.StateAt(t.Context(), f.From, history.Match{}) {
			must(t, err)
			fmt.Fprintf(&all, "%+v\n", *row)
		}
	}
	files := 0
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".parquet") {
			files++
		}
		return err
	}))
	if files != len(s.Manifest.Files) {
		t.Errorf("%d files, of which %d count", files, len(s.Manifest.Files))
	}
	return all.String()
}

// TestEditedRulesAreAppliedToAHistory: what they hide is in no file any more, what they do not hide is as it was, and a
// second time there is nothing to do.
func TestEditedRulesAreAppliedToAHistory(t *testing.T) {
	place := t.TempDir()
	dir, file := filepath.Join(place, "history"), filepath.Join(place, "exporter.yaml")
	plantHistory(t, dir)
	must(t, os.WriteFile(file, fmt.Appendf(nil, "resources: [{select: [configmaps], redactPaths: [data.token]}]\n"+
		"sinks: [{name: history, history: {dir: %q}}]\njournal: {dir: %q}\n", dir, filepath.Join(place, "journal")), 0o600))
	before := everything(t, dir)
	if n := strings.Count(before, planted); n < 100 {
		t.Fatalf("planted %d times", n)
	}

	w, err := history.OpenWriter(history.Folder(dir))
	must(t, err)
	if code, _, stderr := try(t, "history", "redact", "--config", file); code != exit.Environment || !strings.Contains(stderr, "another process writes") {
		t.Errorf("while an exporter writes: %d %s", code, stderr)
	}
	must(t, w.Close())

	for _, want := range []bool{true, false} {
		code, stdout, stderr := try(t, "history", "redact", "--config", file)
		if some := !strings.Contains(stdout, ": 0 rows redacted"); code != 0 || some != want {
			t.Errorf("%d %s %s", code, stdout, stderr)
		}
	}
	after := everything(t, dir)
	if strings.Contains(after, planted) {
		t.Errorf("a value is there:\n%s", after)
	}
	if a, b := strings.Count(after, `"colour":"blue"`), strings.Count(before, `"colour":"blue"`); a != b {
		t.Errorf("%d of %d states have what is not hidden", a, b)
	}
	if a, b := strings.Count(after, `"blue"}`), strings.Count(before, `"blue"}`); a < b/2 || strings.Count(after, "Sequence:") != strings.Count(before, "Sequence:") {
		t.Errorf("%d of %d; rows %d of %d", a, b, strings.Count(after, "Sequence:"), strings.Count(before, "Sequence:"))
	}
	must(t, filepath.WalkDir(place, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if bytes.Contains(content, []byte(planted)) {
			t.Errorf("a value is in %s", path)
		}
		return err
	}))
}

func TestRedactNeedsAHistory(t *testing.T) {
	file := write(t, "exporter.yaml", "resources: [{select: [configmaps]}]\nsinks: [{name: a, stdout: {}}]\n")
	for _, args := range [][]string{{"--config", file}, {}} {
		if code, _, stderr := try(t, append([]string{"history", "redact"}, args...)...); code != exit.Usage {
			t.Errorf("%v: %d %s", args, code, stderr)
		}
	}
	if code, _, stderr := try(t, "history", "redact", "--config", file, "--dir", filepath.Join(t.TempDir(), "x")); code != exit.Environment || !strings.Contains(stderr, "holds no history") {
		t.Errorf("%d %s", code, stderr)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
