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
		l := trimmer{b: *body, metadataOnly: metadataOnly}
		if len(*body) == 0 || rawjson.CheckEnd(l.b, l.trimObject(rawjson.SkipSpace(l.b, 0))) != nil {
			return nil, false
		}
		if len(l.edits) == 0 {
			continue
		}
		*body = l.edits.applyTo(l.b)
		for _, name := range l.omitted {
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

// trimmer removes the members that consumers can most easily do without.
type trimmer struct {
	b            []byte
	metadataOnly bool
	edits        edits
	omitted      []string
}

func (l *trimmer) trimObject(i int) int {
	out := remover{edits: &l.edits}
	m := rawjson.EnterObject(l.b, i)
	for m.Next() {
		switch string(m.Key) {
		case "apiVersion", "kind":
			out.keepItem(m.Comma)
			m.I = rawjson.SkipValue(l.b, m.I, 1)
		case "metadata":
			out.keepItem(m.Comma)
			m.I = l.trimMetadata(m.I)
		default:
			name, start := string(m.Key), m.I
			if m.I = rawjson.SkipValue(l.b, start, 1); m.I < 0 {
				break
			}
			if !l.metadataOnly && name != "status" {
				out.keepItem(m.Comma)
				break
			}
			out.removeItem(m.Comma, m.Start, m.I)
			l.omitted = append(l.omitted, name)
		}
	}
	return m.I
}

func (l *trimmer) trimMetadata(i int) int {
	if i >= len(l.b) || l.b[i] != '{' {
		return rawjson.SkipValue(l.b, i, 1)
	}
	out := remover{edits: &l.edits}
	m := rawjson.EnterObject(l.b, i)
	for m.Next() {
		switch {
		case string(m.Key) != "annotations" || m.I >= len(l.b) || l.b[m.I] != '{':
			out.keepItem(m.Comma)
			m.I = rawjson.SkipValue(l.b, m.I, 2)
		case l.metadataOnly:
			if m.I = rawjson.SkipValue(l.b, m.I, 2); m.I >= 0 {
				out.removeItem(m.Comma, m.Start, m.I)
				l.omitted = append(l.omitted, "metadata.annotations")
			}
		default:
			out.keepItem(m.Comma)
			m.I = l.trimAnnotations(m.I)
		}
	}
	return m.I
}

func (l *trimmer) trimAnnotations(i int) int {
	out := remover{edits: &l.edits}
	m := rawjson.EnterObject(l.b, i)
	for m.Next() {
		start := m.I
		if m.I = rawjson.SkipValue(l.b, start, 3); m.I < 0 {
			break
		}
		if m.I-start <= maxAnnotationBytes {
			out.keepItem(m.Comma)
			continue
		}
		out.removeItem(m.Comma, m.Start, m.I)
		if !slices.Contains(l.omitted, "metadata.annotations") {
			l.omitted = append(l.omitted, "metadata.annotations")
		}
	}
	return m.I
}
