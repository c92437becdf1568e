package style

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kubecdc/kubecdc/test/markdown"
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
	for path, page := range markdownPages(t) {
		generated := slices.ContainsFunc(page.Lines, func(l markdown.Line) bool { return strings.HasPrefix(l.Text, "<!-- Generated") })
		for _, l := range page.Lines {
			free := generated || l.Block || strings.HasPrefix(l.Text, "|") || strings.Contains(l.Text, "](http")
			if !free && utf8.RuneCountInString(l.Text) > maxColumns {
				t.Errorf("%s:%d: over %d columns", path, l.Number, maxColumns)
			}
		}
	}
}
