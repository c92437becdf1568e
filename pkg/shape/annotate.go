package shape

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// Annotation is added to each object of a rule.
type Annotation struct {
	// Name, as in example.com/environment. It replaces an annotation of the object with that name.
	Name string `mapstructure:"name"`
	// Value of the annotation.
	Value string `mapstructure:"value"`
}

// validateAnnotations reports names that are invalid, given twice, or taken for copies of objects.
func validateAnnotations(problem problemFunc, added []Annotation) {
	for i, a := range added {
		at := "addAnnotations[" + strconv.Itoa(i) + "].name"
		switch {
		case !isQualifiedName(a.Name):
			problem(at, "%q is not an annotation name; write the complete name, as in example.com/owner", a.Name)
		case copyKindOf(a.Name) != noCopy:
			problem(at, "%q is redacted as a copy of the object", a.Name)
		case slices.ContainsFunc(added[:i], func(b Annotation) bool { return a.Name == b.Name }):
			problem(at, "%q is added already", a.Name)
		}
	}
}

// annotator adds the same annotations to objects. It is immutable; the zero value adds none.
type annotator struct {
	replaced *fieldSelector // removes those of the object with the same names
	members  string         // in JSON, without braces
}

func newAnnotator(added []Annotation) (annotator, error) {
	var paths []path.Path
	members := map[string]string{}
	for _, a := range added {
		paths, members[a.Name] = append(paths, path.OfNames("metadata", "annotations", a.Name)), a.Value
	}
	replaced, err := newFieldSelector(nil, paths)
	if err != nil {
		return annotator{}, err
	}
	text, err := json.Marshal(members)
	return annotator{replaced, string(text[1 : len(text)-1])}, err
}

// annotate adds the annotations to bodies, which may be nil. Those that it changes are copied.
func (a annotator) annotate(bodies ...*[]byte) (err error) {
	for _, body := range bodies {
		if a.members == "" || len(*body) == 0 {
			continue
		}
		if *body, err = a.replaced.selectFrom(*body); err != nil {
			return err
		}
		text := rawjson.Value(*body)
		from, to := text.Find("metadata")
		switch at, end := text[from:to].Find("annotations"); {
		case from == to || text[from] != '{': // no object of Kubernetes
		case at == end:
			*body = insertMembers(text, from, `"annotations":{`+a.members+"}")
		case text[from+at] == '{':
			*body = insertMembers(text, from+at, a.members)
		default: // null
			*body = slices.Concat(text[:from+at], []byte("{"+a.members+"}"), text[from+end:])
		}
	}
	return nil
}

// insertMembers returns b with members at the begin of the object at i.
func insertMembers(b []byte, i int, members string) []byte {
	if b[rawjson.SkipSpace(b, i+1)] != '}' {
		members += ","
	}
	return slices.Concat(b[:i+1], []byte(members), b[i+1:])
}
