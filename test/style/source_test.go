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

func (f goFile) line(node ast.Node) int { return f.set.Position(node.Pos()).Line }

// goFiles returns the parsed Go files below the directories, without generated ones.
func goFiles(t *testing.T, dirs ...string) (parsed []goFile) {
	t.Helper()
	for _, dir := range dirs {
		for _, path := range files(t, dir, ".go") {
			text, err := os.ReadFile(filepath.Join(root, path))
			if err != nil {
				t.Fatal(err)
			}
			set := token.NewFileSet()
			tree, err := parser.ParseFile(set, path, text, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if !ast.IsGenerated(tree) {
				parsed = append(parsed, goFile{path, set, tree})
			}
		}
	}
	return parsed
}

// product returns the Go files of what is shipped.
func product(t *testing.T) []goFile {
	t.Helper()
	return slices.DeleteFunc(goFiles(t, "cmd", "internal", "pkg"), func(f goFile) bool { return strings.HasSuffix(f.path, "_test.go") })
}

// judge fails the test if the value is over the bound, but for a part of the repository, which is only measured.
func judge(t *testing.T, what string, value, bound float64) {
	t.Helper()
	t.Logf("%-44s %6.2f, at most %.2f", what, value, bound)
	if *in == "" && value > bound {
		t.Errorf("%s: %.2f, which is over %.2f; -args -list shows the places", what, value, bound)
	}
}
