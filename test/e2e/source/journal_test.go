package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// breakJournal writes over every file of the journal that says what is in it.
func breakJournal(t *testing.T, dir string) {
	t.Helper()
	spoiled := 0
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !strings.HasPrefix(entry.Name(), "MANIFEST") {
			return err
		}
		spoiled++
		return os.WriteFile(path, []byte("not what was written here"), 0o600)
	})
	if err != nil || spoiled == 0 {
		t.Fatalf("%d files of %s were spoiled: %v", spoiled, dir, err)
	}
}
