package shape

import (
	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// identityPaths names the members that say which object this is. They are in every event and cannot be taken out.
var identityPaths = []path.Path{
	path.OfNames("apiVersion"), path.OfNames("kind"), path.OfNames("metadata", "name"), path.OfNames("metadata", "namespace"),
	path.OfNames("metadata", "uid"), path.OfNames("metadata", "resourceVersion"),
}

// identityTree is the tree of what says which object it is.
var identityTree, _ = path.NewTree(identityPaths) // six names without wildcards

// fieldSelector leaves members of objects out. It is immutable.
type fieldSelector struct {
	keep *path.Tree // nil keeps all
	drop *path.Tree // nil drops none
}

// newFieldSelector returns nil where nothing is left out.
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

// selectFrom returns body without what is to be left out; body itself where that is nothing.
func (f *fieldSelector) selectFrom(body []byte) ([]byte, error) {
	c := selectionPass{b: body}
	start := rawjson.SkipSpace(body, 0)
	end := c.selectMembers(start, selection{keep: f.keep, drop: f.drop, id: identityTree, all: f.keep == nil}, 0)
	if err := rawjson.CheckEnd(body, end); err != nil {
		return nil, err
	}
	return c.edits.applyTo(body), nil
}

// selection says what of a value stays.
type selection struct {
	keep, drop, id *path.Tree
	all            bool // everything, but for what drop says
	none           bool // nothing, but for what id says
}

// disposition is what becomes of a value.
type disposition int

const (
	keepWhole disposition = iota
	keepPart
	removeAll
)

// dispositionOf says what becomes of a value for which c is the cut.
func (c selection) dispositionOf(container bool) disposition {
	switch {
	case c.id != nil && c.id.Ends:
		return keepWhole
	case c.none, !c.all && !container: // what keeps on within a value that has nothing within
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

// memberSelection is the cut of the member of that name of a value that stays in part.
func (c selection) memberSelection(name []byte) selection {
	return c.narrowTo(c.keep.MemberOrNil(name), c.drop.MemberOrNil(name), c.id.MemberOrNil(name))
}

// elementSelection is the cut of an element.
func (c selection) elementSelection() selection {
	return c.narrowTo(c.keep.ElementOrNil(), c.drop.ElementOrNil(), nil)
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
		next := c.memberSelection(m.Key)
		if next.dispositionOf(w.isContainer(m.I)) == removeAll {
			if m.I = rawjson.SkipValue(w.b, m.I, depth+1); m.I >= 0 {
				out.removeItem(m.Comma, m.Start, m.I)
			}
			continue
		}
		out.keepItem(m.Comma)
		m.I = w.selectValue(m.I, next, depth+1)
	}
	return m.I
}

func (w *selectionPass) selectElements(i int, c selection, depth int) int {
	out := remover{edits: &w.edits}
	e := rawjson.EnterArray(w.b, i)
	for e.Next() {
		next := c.elementSelection()
		if next.dispositionOf(w.isContainer(e.I)) == removeAll {
			if e.I = rawjson.SkipValue(w.b, e.I, depth+1); e.I >= 0 {
				out.removeItem(e.Comma, e.Start, e.I)
			}
			continue
		}
		out.keepItem(e.Comma)
		e.I = w.selectValue(e.I, next, depth+1)
	}
	return e.I
}

// selectValue cuts a value that stays, whole or in part.
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
