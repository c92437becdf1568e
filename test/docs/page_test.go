package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/markdown"
)

const root = "../.."

// pages reads every page that people read, by path.
func pages(t *testing.T) map[string]*markdown.Page {
	t.Helper()
	all := map[string]*markdown.Page{}
	read := func(path string) {
		content, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		all[path] = markdown.Parse(string(content))
	}
	for _, path := range []string{"README.md", "CONTRIBUTING.md", "SECURITY.md"} {
		read(path)
	}
	for _, dir := range []string{"docs", "deploy", "internal", "pkg"} {
		err := fs.WalkDir(os.DirFS(root), dir, func(path string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(path, ".md") {
				read(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)
