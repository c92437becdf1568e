package style

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxColumns bounds a line of a comment or of a page. Tables, code and links have lines of their own length.
const maxColumns = 125

// TestLinesOfProseAreShort in comments and pages.
func TestLinesOfProseAreShort(t *testing.T) {
	for _, f := range goFiles(t, "cmd", "deploy", "docs", "internal", "pkg", "test", "tools") {
		for _, group := range f.tree.Comments {
			for _, comment := range group.List {
				at := f.set.Position(comment.Pos())
				if at.Column > 20 || directive.MatchString(comment.Text) { // behind code, which gofmt aligns
					continue
				}
				for i, line := range strings.Split(comment.Text, "\n") {
					code := strings.HasPrefix(line, "//\t") || strings.HasPrefix(line, "//  ")
					if columns := utf8.RuneCountInString(line) + at.Column - 1; columns > maxColumns && !code {
						t.Errorf("%s:%d: %d columns", f.path, at.Line+i, columns)
					}
				}
			}
		}
	}
	for _, path := range files(t, ".", ".md") {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(text), "\n")
		for i, line := range strings.Split(prose(string(text)), "\n") {
			written := line != "" && !strings.HasPrefix(line, "|") && !strings.Contains(string(text), "<!-- Generated") && !strings.Contains(lines[i], "](http")
			if written && utf8.RuneCountInString(lines[i]) > maxColumns {
				t.Errorf("%s:%d: over %d columns", path, i+1, maxColumns)
			}
		}
	}
}
