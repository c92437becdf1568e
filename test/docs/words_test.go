package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Bounds of what a reader has to read: words as wc counts them, pages, and lines of the page on events. One is lowered when
// pages get shorter, and raised only in place of something.
const (
	mostWords      = 45_000
	mostPages      = 50
	mostEventLines = 300
)

// TestTheDocsAreShort counts README and docs, without the records of decisions.
func TestTheDocsAreShort(t *testing.T) {
	words, pages := len(strings.Fields(textOf(t, "README.md"))), 1
	err := fs.WalkDir(os.DirFS(root), "docs", func(path string, entry fs.DirEntry, err error) error {
		if entry.IsDir() && path == "docs/adr" {
			return fs.SkipDir
		}
		if filepath.Ext(path) == ".md" {
			pages++
			words += len(strings.Fields(textOf(t, path)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if words > mostWords || pages > mostPages {
		t.Errorf("%d words on %d pages, at most %d on %d", words, pages, mostWords, mostPages)
	}
	if lines := strings.Count(textOf(t, "docs/events.md"), "\n"); lines > mostEventLines {
		t.Errorf("docs/events.md has %d lines, at most %d", lines, mostEventLines)
	}
}
