package serve

import (
	"bytes"
	"encoding/json"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/jsonpath"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// ofAll are the types of the category "all", which no row has.
var ofAll = strings.Fields("pods replicationcontrollers services daemonsets.apps deployments.apps replicasets.apps statefulsets.apps " +
	"horizontalpodautoscalers.autoscaling cronjobs.batch jobs.batch")

// definition is what the definition of a custom resource says beside its names.
type definition struct {
	Spec struct {
		Group string
		Names struct {
			Plural, ListKind string
			Categories       []string
		}
		Versions []struct {
			Name                     string
			AdditionalPrinterColumns []column
			SelectableFields         []struct{ JSONPath string }
		}
	}
}

// column is a column of a custom resource.
type column struct {
	metav1.TableColumnDefinition
	JSONPath string
}

// describe takes columns, categories and fields from where they are known: for custom resources the definitions of the
// moment.
func (t *objects) describe(definitions *objects) {
	t.fields = fieldsOf[t.String()]
	for _, name := range ofAll {
		if name == t.String() {
			t.categories = []string{"all"}
		}
	}
	columns := []column{{metav1.TableColumnDefinition{Name: "Age", Type: "date"}, ".metadata.creationTimestamp"}}
	if definitions != nil {
		if o := definitions.find("", t.String()); o != nil {
			columns = t.define(o, columns)
		}
	}
	t.columns, t.cells = customColumns(columns)
	if text, ok := printers[t.String()]; ok {
		t.columns, t.cells = parseColumns(text)
	}
	switch t.String() {
	case "pods":
		t.cells = podCells
	case "events":
		t.cells = eventCells
	}
}

// define takes what a definition says, and returns its columns, or those of one without any.
func (t *objects) define(o *object, columns []column) []column {
	var d definition
	if json.Unmarshal(o.text(nil), &d) != nil {
		return columns
	}
	t.categories = d.Spec.Names.Categories
	if d.Spec.Names.ListKind != "" {
		t.listKind = d.Spec.Names.ListKind
	}
	for _, v := range d.Spec.Versions {
		if v.Name != t.Version {
			continue
		}
		for _, f := range v.SelectableFields {
			t.fields = append(t.fields, strings.TrimPrefix(f.JSONPath, "."))
		}
		if len(v.AdditionalPrinterColumns) > 0 {
			columns = v.AdditionalPrinterColumns
		}
	}
	return columns
}

// customColumns returns the headers of a custom resource, and what makes its cells as the API server does.
func customColumns(columns []column) ([]metav1.TableColumnDefinition, func(*content) []any) {
	headers, _ := parseColumns(name)
	var paths []*jsonpath.JSONPath
	var mu sync.Mutex // a path has a state
	for _, c := range columns {
		path := jsonpath.New(c.Name).AllowMissingKeys(true)
		if path.Parse("{"+c.JSONPath+"}") != nil {
			continue
		}
		headers, paths = append(headers, c.TableColumnDefinition), append(paths, path)
	}
	return headers, func(o *content) []any {
		var decoded map[string]any
		if json.Unmarshal(o.whole, &decoded) != nil {
			decoded = nil
		}
		cells := []any{o.text("metadata.name")}
		mu.Lock()
		defer mu.Unlock()
		for i, path := range paths {
			var cell any
			if found, err := path.FindResults(decoded); err == nil && len(found) > 0 && len(found[0]) > 0 {
				cell = o.customCell(path, headers[i+1].Type, found[0][0])
			}
			cells = append(cells, cell)
		}
		return cells
	}
}

// customCell returns a value as a cell of a type; nil for one of another type.
func (o *content) customCell(path *jsonpath.JSONPath, kind string, found reflect.Value) any {
	switch v := found.Interface().(type) {
	case float64:
		switch kind {
		case "integer":
			return int64(v)
		case "number":
			return v
		}
	case bool:
		if kind == "boolean" {
			return v
		}
	case string:
		if kind == "date" {
			if _, err := time.Parse(time.RFC3339, v); err != nil {
				return "<invalid>"
			}
			return o.since(v)
		}
	}
	if kind != "string" {
		return nil
	}
	var b bytes.Buffer
	if path.PrintResults(&b, []reflect.Value{found}) != nil {
		return nil
	}
	return b.String()
}

// cellsOf returns the cells of an object of a text.
func (t *objects) cellsOf(text rawjson.Value, now time.Time) []byte {
	b, err := json.Marshal(t.cells(newContent(text, now)))
	if err != nil {
		return []byte("[]") // unreachable: they are texts and numbers
	}
	return b
}

// render returns the cells of some objects.
func (t *objects) render(some []*object, now time.Time) [][]byte {
	cells := make([][]byte, len(some))
	var all sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for n := range workers {
		all.Go(func() {
			var text rawjson.Value
			for i := n; i < len(some); i += workers {
				text = some[i].text(text)
				cells[i] = t.cellsOf(text, now)
			}
		})
	}
	all.Wait()
	return cells
}
