package style

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/markdown"
)

// root is the top of the repository, seen from this package.
const root = "../.."

var (
	in   = flag.String("in", "", "measure only what lies in these directories (comma-separated) and hold it to no bound")
	list = flag.Bool("list", false, "print each place that counts")
)

// files returns the paths, from the root, of the files below the directory whose names end so.
func files(t *testing.T, dir, ending string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && ignored(entry.Name()):
			return filepath.SkipDir
		case !entry.IsDir() && strings.HasSuffix(path, ending):
			rel, err := filepath.Rel(root, path)
			paths = append(paths, filepath.ToSlash(rel))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(paths, func(path string) bool { return !selected(path) })
}

func ignored(dir string) bool {
	return dir == "testdata" || dir == "dist" || dir == "bin" || dir == "node_modules" ||
		len(dir) > 2 && strings.HasPrefix(dir, ".") && dir != ".."
}

// selected reports whether the flag -in selects the path.
func selected(path string) bool {
	if *in == "" {
		return true
	}
	return slices.ContainsFunc(strings.Split(*in, ","), func(dir string) bool {
		return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
	})
}

type goFile struct {
	path string
	set  *token.FileSet
	tree *ast.File
}

func (f *goFile) line(node ast.Node) int { return f.set.Position(node.Pos()).Line }

// parsed holds the Go files that a test has parsed, by path; nil for generated ones. Tests of this package run one by one.
var parsed = map[string]*goFile{}

// goFiles returns the parsed Go files below the directories, without generated ones.
func goFiles(t *testing.T, dirs ...string) (all []*goFile) {
	t.Helper()
	for _, dir := range dirs {
		for _, path := range files(t, dir, ".go") {
			if f := parseOnce(t, path); f != nil {
				all = append(all, f)
			}
		}
	}
	return all
}

func parseOnce(t *testing.T, path string) *goFile {
	t.Helper()
	if f, known := parsed[path]; known {
		return f
	}
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, path, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	parsed[path] = nil
	if !ast.IsGenerated(tree) {
		parsed[path] = &goFile{path, set, tree}
	}
	return parsed[path]
}

// markdownPages returns the Markdown pages by path.
func markdownPages(t *testing.T) map[string]*markdown.Page {
	t.Helper()
	pages := map[string]*markdown.Page{}
	for _, path := range files(t, ".", ".md") {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		pages[path] = markdown.Parse(string(text))
	}
	return pages
}

// product returns the Go files of what is shipped.
func product(t *testing.T) []*goFile {
	t.Helper()
	return slices.DeleteFunc(goFiles(t, "cmd", "internal", "pkg"), func(f *goFile) bool { return strings.HasSuffix(f.path, "_test.go") })
}

// judge fails the test if the value is over the bound, but for a part of the repository, which is only measured.
func judge(t *testing.T, what string, value, bound float64) {
	t.Helper()
	t.Logf("%-44s %6.2f, at most %.2f", what, value, bound)
	if *in == "" && value > bound {
		t.Errorf("%s: %.2f, which is over %.2f; -args -list shows the places", what, value, bound)
	}
}
