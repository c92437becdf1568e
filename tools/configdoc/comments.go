package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
)

const module = "github.com/kubecdc/kubecdc/"

// commentReader reads the comments of struct fields.
type commentReader struct {
	root    string
	structs map[string]map[string]string // "package path.Type" to field to text
}

// fieldDocs returns the text for each field of t. A field without a comment shares the one of the field before it, if that
// names it ("Cert and Key are …") or is its stem ("Password" of "PasswordFile"), else that of its struct.
func (c commentReader) fieldDocs(t reflect.Type) (map[string]string, error) {
	name := t.PkgPath() + "." + t.Name()
	if _, ok := c.structs[name]; !ok {
		if err := c.readPackage(t.PkgPath()); err != nil {
			return nil, err
		}
	}
	docs, ok := c.structs[name]
	if !ok {
		return nil, fmt.Errorf("no source found for %s", name)
	}
	return docs, nil
}

func (c commentReader) readPackage(pkg string) error {
	sources, err := filepath.Glob(filepath.Join(c.root, strings.TrimPrefix(pkg, module), "*.go"))
	if err != nil {
		return err
	}
	for _, source := range sources {
		file, err := parser.ParseFile(token.NewFileSet(), source, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if d, ok := n.(*ast.GenDecl); ok && d.Tok == token.TYPE {
				c.readTypes(pkg, d)
			}
			return true
		})
	}
	return nil
}

func (c commentReader) readTypes(pkg string, d *ast.GenDecl) {
	for _, spec := range d.Specs {
		spec, ok := spec.(*ast.TypeSpec)
		if !ok {
			continue
		}
		body, ok := spec.Type.(*ast.StructType)
		if !ok {
			continue
		}
		docs, before, last := map[string]string{}, "", ""
		for _, f := range body.Fields.List {
			text := cleanComment(f.Doc)
			if text == "" {
				text = cleanComment(f.Comment)
			}
			for _, name := range f.Names {
				switch {
				case text != "":
				case strings.Contains(before, name.Name), last != "" && strings.HasPrefix(name.Name, last):
					text = before
				default:
					text = cleanComment(d.Doc)
				}
				docs[name.Name], last = text, name.Name
			}
			before = text
		}
		c.structs[pkg+"."+spec.Name.Name] = docs
	}
}

// docLinkPattern is how Go comments refer to a name.
var docLinkPattern = regexp.MustCompile(`\[([A-Za-z][\w.]*)\]`)

// cleanComment makes one line of a comment.
func cleanComment(doc *ast.CommentGroup) string {
	return docLinkPattern.ReplaceAllString(strings.Join(strings.Fields(doc.Text()), " "), "$1")
}
