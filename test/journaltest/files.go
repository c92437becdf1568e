package journaltest

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// fingerprints describes every file and directory below dir: mode, time of the last change, and content.
func fingerprints(t testing.TB, dir string) map[string]string {
	t.Helper()
	prints := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		prints[path] = fmt.Sprint(info.Mode(), info.ModTime().UnixNano())
		if d.IsDir() {
			return nil
		}
		b, err := os.ReadFile(path)
		prints[path] += fmt.Sprintf(" %x", sha256.Sum256(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return prints
}

// RequireUnchanged fails the test when f leaves a trace below dir.
func RequireUnchanged(t testing.TB, dir string, f func()) {
	t.Helper()
	before := fingerprints(t, dir)
	f()
	after := fingerprints(t, dir)
	for _, path := range slices.Sorted(maps.Keys(before)) {
		if after[path] != before[path] {
			t.Errorf("%s was %s and is %s", path, before[path], after[path])
		}
	}
	for path := range after {
		if _, ok := before[path]; !ok {
			t.Errorf("%s was made", path)
		}
	}
}
