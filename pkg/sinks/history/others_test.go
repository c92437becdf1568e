package history

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// TestOthersReadTheFolderAsItIs: DuckDB runs the queries of the page on it, and ClickHouse the same.
func TestOthersReadTheFolderAsItIs(t *testing.T) {
	require.Integration(t)
	page, err := os.ReadFile("../../../docs/history.md")
	if err != nil {
		t.Fatal(err)
	}
	python, err := build.ClickHouse(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := newSink(t, Config{Dir: filepath.Join(dir, "history")})
	offset := uint64(0)
	for second := range 60 { // two deployments, of which one goes away at 40
		batch := newMessages(second, second)
		batch[0].Change.Changed = fmt.Appendf(nil, `[{"path":"/spec/replicas","from":%d,"to":%d}]`, second-1, second)
		batch[0].Change.After = fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, second)
		if second == 0 || second == 40 {
			gone := newMessages(second, second)[0].Change
			gone.Name, gone.UID, gone.Type = "gone", "v", event.Added
			if second == 40 {
				gone.Type, gone.After = event.Deleted, nil
			}
			batch = append(batch, sinks.Message{Change: gone})
		}
		for i := range batch {
			offset++
			batch[i].Offset = offset
		}
		mustPublish(t, s, batch)
		if second == 50 {
			s.ObserveSettled(offset)
			awaitFiles(t, s.cfg.Dir, 12)
		}
	}
	mustClose(t, s)
	arguments := []string{mustAbs(t, "testdata/read.py")}
	for i, block := range regexp.MustCompile("(?s)```sql tested by TestOthersReadTheFolderAsItIs\n(.*?)```").FindAllSubmatch(page, -1) {
		path := filepath.Join(dir, fmt.Sprint(i, ".sql"))
		if err := os.WriteFile(path, block[1], 0o600); err != nil {
			t.Fatal(err)
		}
		arguments = append(arguments, path)
	}
	command := exec.CommandContext(t.Context(), python, arguments...)
	command.Dir = dir
	var errs bytes.Buffer
	command.Stderr = &errs
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	var want []string
	for second := range 60 {
		want = append(want, fmt.Sprintf("duckdb|None|shop|web|/spec/replicas|%d|%d|None", second-1, second))
	}
	want = append(want, `duckdb|shop|web|{"spec":{"replicas":50}}`, "duckdb|62|62", "clickhouse\tshop\tweb\t"+`{"spec":{"replicas":50}}`)
	if got := strings.TrimSpace(string(out)); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

func mustAbs(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// awaitFiles waits until a history has at most so many files.
func awaitFiles(t *testing.T, dir string, most int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); countFiles(t, dir) > most; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d files are not merged", countFiles(t, dir))
		}
	}
}
