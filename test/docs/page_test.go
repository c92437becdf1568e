package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// page is one Markdown file, its code apart from its text.
type page struct {
	path    string // below root
	lines   []line
	anchors map[string]bool // of its headings
}

// line is one line of a page. In a block of code everything is code.
type line struct {
	number int
	block  bool
	text   string
}

// pages reads every page that people read, by path.
func pages(t *testing.T) map[string]*page {
	t.Helper()
	all := map[string]*page{}
	read := func(path string) {
		content, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		all[path] = parse(path, string(content))
	}
	for _, path := range []string{"README.md", "CONTRIBUTING.md", "SECURITY.md"} {
		read(path)
	}
	for _, dir := range []string{"docs", "deploy"} {
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

func parse(path, content string) *page {
	p := &page{path: path, anchors: map[string]bool{}}
	block, number := false, 0
	for text := range strings.Lines(content) {
		number++
		fence := strings.HasPrefix(strings.TrimSpace(text), "```")
		if fence {
			block = !block
		}
		l := line{number: number, block: block || fence, text: strings.TrimRight(text, "\n")}
		p.lines = append(p.lines, l)
		if heading := strings.TrimLeft(l.text, "#"); !l.block && heading != l.text && strings.HasPrefix(heading, " ") {
			p.anchor(heading)
		}
	}
	return p
}

// anchor adds the anchor of a heading, as GitHub makes it; of equal headings the later ones are numbered.
func (p *page) anchor(heading string) {
	name := strings.ReplaceAll(notInAnchors.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), ""), " ", "-")
	unique := name
	for i := 1; p.anchors[unique]; i++ {
		unique = fmt.Sprintf("%s-%d", name, i)
	}
	p.anchors[unique] = true
}

var (
	notInAnchors = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	codeSpan     = regexp.MustCompile("`[^`]*`")
	link         = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

// prose is the line without code.
func (l line) prose() string {
	if l.block {
		return ""
	}
	return codeSpan.ReplaceAllString(l.text, "")
}

// code is what stands in the line as code.
func (l line) code() []string {
	if l.block {
		return []string{l.text}
	}
	spans := codeSpan.FindAllString(l.text, -1)
	for i, s := range spans {
		spans[i] = strings.Trim(s, "`")
	}
	return spans
}
