package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// breakJournal overwrites every MANIFEST of the journal's store.
func breakJournal(t *testing.T, dir string) {
	t.Helper()
	overwritten := 0
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !strings.HasPrefix(entry.Name(), "MANIFEST") {
			return err
		}
		overwritten++
		return os.WriteFile(path, []byte("not what was written here"), 0o600)
	})
	if err != nil || overwritten == 0 {
		t.Fatalf("%d files of %s were overwritten: %v", overwritten, dir, err)
	}
}
