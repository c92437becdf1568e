package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// fillWithDeadLetters makes the journal of a stopped exporter with two dead letters, in tables and in the log.
func fillWithDeadLetters(t *testing.T, opts Options) {
	t.Helper()
	j := startJournal(t, opts)
	for n := range 20 {
		j.mustAppend(event.Observation{Resource: resourceNamed("s"), Scope: "s", Changes: []*event.Change{podChange(n, 4096)}, Position: fmt.Sprint(n)})
	}
	j.waitFor(20)
	j.mustSettle("main", event.Cursor{Low: 1}, event.DeadLetter{Offset: 1, Time: time.Now(), Reason: "no", Change: podChange(0, 4096)})
	if err := j.store.db.Flush(); err != nil {
		t.Fatal(err)
	}
	j.mustSettle("main", event.Cursor{Low: 2}, event.DeadLetter{Offset: 2, Time: time.Now(), Reason: "no", Change: podChange(1, 4096)})
	j.stopAndClose()
}

// TestWhateverBreaksAStoreItsDeadLettersAreKeptOrReported breaks each file of a store in each way.
func TestWhateverBreaksAStoreItsDeadLettersAreKeptOrReported(t *testing.T) {
	original := t.TempDir()
	fillWithDeadLetters(t, Options{Dir: original, Declaration: Declaration{Sinks: []string{"main"}}})
	files, err := os.ReadDir(filepath.Join(original, storeName))
	if err != nil {
		t.Fatal(err)
	}
	breakages := map[string]func(path string, content []byte) error{
		"removed":   func(path string, _ []byte) error { return os.Remove(path) },
		"empty":     func(path string, _ []byte) error { return os.WriteFile(path, nil, 0o600) },
		"half":      func(path string, b []byte) error { return os.WriteFile(path, b[:len(b)/2], 0o600) },
		"longer":    func(path string, b []byte) error { return os.WriteFile(path, append(b, make([]byte, 4096)...), 0o600) },
		"zeros":     func(path string, b []byte) error { return os.WriteFile(path, make([]byte, len(b)), 0o600) },
		"directory": func(path string, _ []byte) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
	}
	for _, part := range []int{0, 1, 2, 3, 4} {
		breakages[fmt.Sprintf("flipped at %d/4", part)] = func(path string, b []byte) error {
			if len(b) > 0 {
				b[min(len(b)-1, part*len(b)/4)] ^= 0xff
			}
			return os.WriteFile(path, b, 0o600)
		}
	}
	for _, file := range files {
		for name, breakFile := range breakages {
			t.Run(file.Name()+" "+name, func(t *testing.T) {
				dir := t.TempDir()
				if err := os.CopyFS(dir, os.DirFS(original)); err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(dir, storeName, file.Name())
				content, err := os.ReadFile(path)
				if err == nil {
					err = breakFile(path, content)
				}
				if err != nil {
					t.Fatal(err)
				}
				expectDeadLetters(t, dir)
			})
		}
	}
}

// expectDeadLetters opens a journal of fillWithDeadLetters: it has its dead letters, or reports that they are gone, or it
// cannot be opened.
func expectDeadLetters(t *testing.T, dir string) {
	t.Helper()
	j, err := Open(Options{Dir: dir, Declaration: Declaration{Sinks: []string{"main"}}, Logger: discardLogger})
	if err != nil {
		t.Logf("is not opened: %v", err)
		return
	}
	defer func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}()
	kept := uint64(0)
	for _, s := range j.Stat().Sinks {
		kept += uint64(s.DeadLetters)
	}
	r, recovered := j.PendingRecovery()
	named := strings.Contains(r.Reason, "as far as it can be read") && strings.Contains(r.Reason, "dead letters of sink main") ||
		strings.Contains(r.Reason, contentsUnknown)
	if kept != 2 && (!recovered || !named) {
		t.Errorf("%d dead letters are kept, recovered %v: %q", kept, recovered, r.Reason)
	}
}

// TestContentsOfABrokenStoreAreNotCutOff however long its error and its list of sinks are.
func TestContentsOfABrokenStoreAreNotCutOff(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 200), strings.Repeat("é", 120))
	opts := Options{Dir: dir, Declaration: Declaration{Sinks: []string{"main"}}}
	for n := range 60 {
		opts.Sinks = append(opts.Sinks, fmt.Sprintf("%s-%d", strings.Repeat("s", 50), n))
	}
	fillWithDeadLetters(t, opts)
	j := startJournal(t, opts)
	for _, sink := range opts.Sinks[1:] {
		j.mustSettle(sink, event.Cursor{Low: 1}, event.DeadLetter{Offset: 1, Time: time.Now(), Reason: "no", Change: podChange(0, 16)})
	}
	j.stopAndClose()
	if err := os.Remove(filepath.Join(dir, storeName, "ACKNOWLEDGED")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, storeName, brokenMarker), []byte(strings.Repeat("x", 400)), 0o600); err != nil {
		t.Fatal(err)
	}
	reopened := startJournal(t, opts)
	r, recovered := reopened.PendingRecovery()
	for _, sink := range opts.Sinks {
		if !recovered || !strings.Contains(r.Reason, "dead letters of sink "+sink) {
			t.Fatalf("sink %s is not named: %q", sink, r.Reason)
		}
	}
	reopened.stopAndClose()
	reopened = startJournal(t, opts)
	if again, _ := reopened.PendingRecovery(); again != r {
		t.Errorf("after a restart %q, want %q", again, r)
	}
}

// TestASecondBrokenStoreReportsWhatGoesWithTheFirst because only one that was set aside is kept.
func TestASecondBrokenStoreReportsWhatGoesWithTheFirst(t *testing.T) {
	opts := Options{Dir: t.TempDir(), Declaration: Declaration{Sinks: []string{"main"}}}
	fillWithDeadLetters(t, opts)
	reasons := []string{}
	for range 3 {
		markStore(t, opts.Dir)
		j := startJournal(t, opts)
		r, recovered := j.PendingRecovery()
		if !recovered {
			t.Fatal("not recovered")
		}
		reasons = append(reasons, r.Reason)
		j.stopAndClose()
	}
	const letters = "2 dead letters of sink main" // which are carried over each time
	for i, want := range []struct{ contents, earlier string }{{letters, ""}, {letters, letters}, {letters, letters}} {
		contents, earlier, _ := strings.Cut(reasons[i], earlierPart)
		if !strings.Contains(contents, want.contents) || !strings.Contains(earlier, want.earlier) || want.earlier == "" && earlier != "" {
			t.Errorf("recovery %d: %q", i+1, reasons[i])
		}
	}
}
