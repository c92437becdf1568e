package style

import (
	"fmt"
	"go/ast"
	"maps"
	"path"
	"regexp"
	"slices"
	"testing"
)

// Bounds of names and types.
const (
	maxOneWord    = 15.0 // percent of the functions
	minNameLength = 9.5  // letters, mean
	maxMethods    = 30   // of a type
	maxFiles      = 4    // that hold a type's methods
)

var oneWord = regexp.MustCompile(`^[a-z][a-z0-9]*$`)

// TestFunctionsAreNamedByVerbAndObject measures names: one lower-case word is clear next to its neighbours only, and cannot
// be searched for.
func TestFunctionsAreNamedByVerbAndObject(t *testing.T) {
	functions, short, letters := 0, 0, 0
	for _, f := range product(t) {
		for _, d := range f.tree.Decls {
			d, ok := d.(*ast.FuncDecl)
			if !ok || d.Name.Name == "init" || d.Name.Name == "main" {
				continue
			}
			functions++
			letters += len(d.Name.Name)
			if oneWord.MatchString(d.Name.Name) {
				short++
				if *list {
					fmt.Printf("%s:%d: one word: %s %s\n", f.path, f.line(d), receiver(d), d.Name.Name)
				}
			}
		}
	}
	if functions == 0 {
		t.Skip("no functions in the directories that -in names")
	}
	t.Logf("%d functions", functions)
	judge(t, "functions named by one word, percent", 100*float64(short)/float64(functions), maxOneWord)
	mean := float64(letters) / float64(functions)
	t.Logf("mean length of a name: %.2f, at least %.2f", mean, minNameLength)
	if *in == "" && mean < minNameLength {
		t.Errorf("function names have %.2f letters on average, less than %.2f", mean, minNameLength)
	}
}

// TestNoTypeIsTooLarge: a type with very many methods, or with methods in very many files, has no border inside.
func TestNoTypeIsTooLarge(t *testing.T) {
	methods := map[string]int{}
	in := map[string]map[string]bool{}
	for _, f := range product(t) {
		for _, d := range f.tree.Decls {
			d, ok := d.(*ast.FuncDecl)
			if !ok || d.Recv == nil {
				continue
			}
			name := path.Dir(f.path) + "." + receiver(d)
			methods[name]++
			if in[name] == nil {
				in[name] = map[string]bool{}
			}
			in[name][f.path] = true
		}
	}
	largest := slices.SortedFunc(maps.Keys(methods), func(a, b string) int { return methods[b] - methods[a] })
	for _, name := range largest[:min(10, len(largest))] {
		t.Logf("%3d methods in %d files: %s", methods[name], len(in[name]), name)
	}
	for _, name := range largest {
		if methods[name] > maxMethods || len(in[name]) > maxFiles {
			t.Errorf("%s has %d methods in %d files; at most %d in %d", name, methods[name], len(in[name]), maxMethods, maxFiles)
		}
	}
}

// receiver returns the name of the type that the function belongs to; "" for none.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	for expr := d.Recv.List[0].Type; ; {
		switch e := expr.(type) {
		case *ast.StarExpr:
			expr = e.X
		case *ast.IndexExpr:
			expr = e.X
		case *ast.IndexListExpr:
			expr = e.X
		case *ast.Ident:
			return e.Name
		default:
			return ""
		}
	}
}
