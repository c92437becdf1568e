package shape

import (
	"slices"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// identityPaths are the members that identify an object. They are part of every event and cannot be removed.
var identityPaths = []path.Path{
	path.OfNames("apiVersion"), path.OfNames("kind"),
	path.OfNames("metadata", "name"), path.OfNames("metadata", "namespace"),
	path.OfNames("metadata", "uid"), path.OfNames("metadata", "resourceVersion"),
}

// identityTree is the tree of identityPaths.
var identityTree, _ = path.NewTree(identityPaths) // the error is impossible: six names without wildcards

// metadataFields keeps what is read of an object if only its metadata is.
var metadataFields, _ = newFieldSelector([]path.Path{path.OfNames("metadata")}, nil) // the error is impossible, too

// fieldSelector removes members of objects. It is immutable.
type fieldSelector struct {
	keep *path.Tree // nil keeps all
	drop *path.Tree // nil drops none
}

// newFieldSelector returns nil if nothing is removed.
func newFieldSelector(keep, drop []path.Path) (f *fieldSelector, err error) {
	if len(keep)+len(drop) == 0 {
		return nil, nil
	}
	f = &fieldSelector{}
	if len(keep) > 0 {
		if f.keep, err = path.NewTree(keep); err != nil {
			return nil, err
		}
	}
	if len(drop) > 0 {
		f.drop, err = path.NewTree(drop)
	}
	return f, err
}

// selectFrom returns body without the removed members; body itself if there are none.
func (f *fieldSelector) selectFrom(body []byte) ([]byte, error) {
	c := selectionPass{b: body}
	start := rawjson.SkipSpace(body, 0)
	end := c.selectMembers(start, selection{keep: f.keep, drop: f.drop, id: identityTree, all: f.keep == nil}, 0)
	if err := rawjson.CheckEnd(body, end); err != nil {
		return nil, err
	}
	return c.edits.applyTo(body), nil
}

// selection defines which parts of a value are kept.
type selection struct {
	keep, drop, id *path.Tree
	all            bool // keep everything except drop
	none           bool // keep nothing except id
}

// disposition is the treatment of one value.
type disposition int

const (
	keepWhole disposition = iota
	keepPart
	removeAll
)

// dispositionOf returns the treatment of a value. container is set for objects and arrays.
func (c selection) dispositionOf(container bool) disposition {
	switch {
	case c.id != nil && c.id.Ends:
		return keepWhole
	case c.none, !c.all && !container: // the kept path continues below a scalar, which has nothing to keep
		if c.id != nil && container {
			return keepPart
		}
		return removeAll
	case c.all && c.drop == nil:
		return keepWhole
	case container:
		return keepPart
	}
	return keepWhole
}

func (c selection) narrowTo(keep, drop, id *path.Tree) selection {
	n := selection{keep: keep, drop: drop, id: id, all: c.all || keep != nil && keep.Ends}
	n.none = c.none || drop != nil && drop.Ends || !n.all && keep == nil
	return n
}

// selectionPass is one pass over one object.
type selectionPass struct {
	b     []byte
	edits edits
}

func (w *selectionPass) selectMembers(i int, c selection, depth int) int {
	out := remover{edits: &w.edits}
	m := rawjson.EnterObject(w.b, i)
	for m.Next() {
		next := c.narrowTo(c.keep.MemberOrNil(m.Key), c.drop.MemberOrNil(m.Key), c.id.MemberOrNil(m.Key))
		m.I = w.selectItem(&out, m.Comma, m.Start, m.I, next, depth+1)
	}
	return m.I
}

func (w *selectionPass) selectElements(i int, c selection, depth int) int {
	out := remover{edits: &w.edits}
	e := rawjson.EnterArray(w.b, i)
	for e.Next() {
		next := c.narrowTo(c.keep.ElementOrNil(), c.drop.ElementOrNil(), nil)
		e.I = w.selectItem(&out, e.Comma, e.Start, e.I, next, depth+1)
	}
	return e.I
}

// selectItem removes or processes a member or an element, from its start, with the value at i, and returns the index after
// that.
func (w *selectionPass) selectItem(out *remover, comma, start, i int, c selection, depth int) int {
	if c.dispositionOf(w.isContainer(i)) != removeAll {
		out.keepItem(comma)
		return w.selectValue(i, c, depth)
	}
	if i = rawjson.SkipValue(w.b, i, depth); i >= 0 {
		out.removeItem(comma, start, i)
	}
	return i
}

// selectValue processes a value that is kept, completely or partly, and returns the index after it.
func (w *selectionPass) selectValue(i int, c selection, depth int) int {
	switch {
	case depth > rawjson.MaxDepth:
		return rawjson.FailAt(i)
	case c.dispositionOf(w.isContainer(i)) == keepWhole:
		return rawjson.SkipValue(w.b, i, depth)
	case w.b[i] == '{':
		return w.selectMembers(i, c, depth)
	default:
		return w.selectElements(i, c, depth)
	}
}

func (w *selectionPass) isContainer(i int) bool {
	return i < len(w.b) && (w.b[i] == '{' || w.b[i] == '[')
}

// maxAnnotationBytes is the maximum size, as JSON, of an annotation that the second truncation step keeps.
const maxAnnotationBytes = 1 << 10

// TruncateOnce applies the next truncation step to a change that a destination rejected as too large. It returns a copy, or
// false if no step is left. The steps are: remove before and changed of an update; remove status and long
// annotations; remove all except identity, labels and other metadata. The removed members are added to Omitted; Change.ID
// stays the same. TruncateOnce is pure, so repeating the steps gives the same results.
func TruncateOnce(c *event.Change) (*event.Change, bool) {
	d := *c
	d.Omitted = slices.Clone(c.Omitted)
	body := &d.After
	if c.Type == event.Deleted {
		body = &d.Before
	} else if len(c.Before) > 0 {
		d.Before = nil
		markOmitted(&d, "before")
	}
	if len(c.Changed) > 0 {
		d.Changed = nil
		markOmitted(&d, "changed")
	}
	if len(d.Omitted) > len(c.Omitted) {
		return &d, true
	}
	for _, metadataOnly := range []bool{false, true} {
		trimmed, omitted := trim(*body, metadataOnly)
		if len(omitted) == 0 {
			continue
		}
		*body = trimmed
		for _, name := range omitted {
			markOmitted(&d, name)
		}
		return &d, true
	}
	return nil, false
}

func markOmitted(c *event.Change, name string) {
	if !slices.Contains(c.Omitted, name) {
		c.Omitted = append(c.Omitted, name)
	}
}

// trim removes the members that consumers can most easily do without, and returns their names; none if the body is no JSON.
func trim(body rawjson.Value, metadataOnly bool) (trimmed []byte, omitted []string) {
	var keep, drop []path.Path
	if metadataOnly {
		keep = []path.Path{path.OfNames("metadata")}
	}
	for key, value := range body.Members() {
		switch name := string(key); {
		case name == "apiVersion", name == "kind":
		case name == "metadata":
			for _, long := range longAnnotations(value.Member("annotations"), metadataOnly) {
				drop, omitted = append(drop, long), append(omitted, "metadata.annotations")
			}
		case metadataOnly:
			omitted = append(omitted, name)
		case name == "status":
			drop, omitted = append(drop, path.OfNames(name)), append(omitted, name)
		}
	}
	f, err := newFieldSelector(keep, drop)
	if f == nil || err != nil {
		return nil, nil
	}
	if trimmed, err = f.selectFrom(body); err != nil {
		return nil, nil
	}
	return trimmed, omitted
}

// longAnnotations returns the paths of annotations that are too long, or with all that of all of them.
func longAnnotations(annotations rawjson.Value, all bool) (long []path.Path) {
	if all && len(annotations) > 0 && annotations[0] == '{' {
		return []path.Path{path.OfNames("metadata", "annotations")}
	}
	for name, value := range annotations.Members() {
		if len(value) > maxAnnotationBytes {
			long = append(long, path.OfNames("metadata", "annotations", string(name)))
		}
	}
	return long
}
