package shape

import (
	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// identity names the members that say which object this is. They are in every event and cannot be taken out.
var identity = []path.Path{
	path.Of("apiVersion"), path.Of("kind"), path.Of("metadata", "name"), path.Of("metadata", "namespace"),
	path.Of("metadata", "uid"), path.Of("metadata", "resourceVersion"),
}

// identityTree is the tree of what says which object it is.
var identityTree, _ = path.NewTree(identity) // six names without wildcards

// fields leaves members of objects out. It is immutable.
type fields struct {
	keep *path.Tree // nil keeps all
	drop *path.Tree // nil drops none
}

// newFields returns nil where nothing is left out.
func newFields(keep, drop []path.Path) (f *fields, err error) {
	if len(keep)+len(drop) == 0 {
		return nil, nil
	}
	f = &fields{}
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

// of returns body without what is to be left out; body itself where that is nothing.
func (f *fields) of(body []byte) ([]byte, error) {
	c := cutting{b: body}
	start := rawjson.SkipSpace(body, 0)
	end := c.object(start, cut{keep: f.keep, drop: f.drop, id: identityTree, all: f.keep == nil}, 0)
	if err := rawjson.Closed(body, end); err != nil {
		return nil, err
	}
	return c.edits.apply(body), nil
}

// cut says what of a value stays.
type cut struct {
	keep, drop, id *path.Tree
	all            bool // everything, but for what drop says
	none           bool // nothing, but for what id says
}

// disposition is what becomes of a value.
type disposition int

const (
	whole disposition = iota
	part
	removed
)

// dispositionOf says what becomes of a value for which c is the cut.
func (c cut) dispositionOf(container bool) disposition {
	switch {
	case c.id != nil && c.id.Ends:
		return whole
	case c.none, !c.all && !container: // what keeps on within a value that has nothing within
		if c.id != nil && container {
			return part
		}
		return removed
	case c.all && c.drop == nil:
		return whole
	case container:
		return part
	}
	return whole
}

// member is the cut of the member of that name of a value that stays in part.
func (c cut) member(name []byte) cut { return c.next(c.keep.To(name), c.drop.To(name), c.id.To(name)) }

// element is the cut of an element.
func (c cut) element() cut { return c.next(c.keep.In(), c.drop.In(), nil) }

func (c cut) next(keep, drop, id *path.Tree) cut {
	n := cut{keep: keep, drop: drop, id: id, all: c.all || keep != nil && keep.Ends}
	n.none = c.none || drop != nil && drop.Ends || !n.all && keep == nil
	return n
}

// cutting is one pass over one object.
type cutting struct {
	b     []byte
	edits edits
}

func (w *cutting) object(i int, c cut, depth int) int {
	out := remover{edits: &w.edits}
	m := rawjson.Enter(w.b, i)
	for m.Next() {
		next := c.member(m.Key)
		if next.dispositionOf(w.container(m.I)) == removed {
			if m.I = rawjson.SkipValue(w.b, m.I, depth+1); m.I >= 0 {
				out.remove(m.Comma, m.Start, m.I)
			}
			continue
		}
		out.keep(m.Comma)
		m.I = w.value(m.I, next, depth+1)
	}
	return m.I
}

func (w *cutting) array(i int, c cut, depth int) int {
	out := remover{edits: &w.edits}
	e := rawjson.EnterArray(w.b, i)
	for e.Next() {
		next := c.element()
		if next.dispositionOf(w.container(e.I)) == removed {
			if e.I = rawjson.SkipValue(w.b, e.I, depth+1); e.I >= 0 {
				out.remove(e.Comma, e.Start, e.I)
			}
			continue
		}
		out.keep(e.Comma)
		e.I = w.value(e.I, next, depth+1)
	}
	return e.I
}

// value cuts a value that stays, whole or in part.
func (w *cutting) value(i int, c cut, depth int) int {
	switch {
	case depth > rawjson.Deepest:
		return rawjson.Fail(i)
	case c.dispositionOf(w.container(i)) == whole:
		return rawjson.SkipValue(w.b, i, depth)
	case w.b[i] == '{':
		return w.object(i, c, depth)
	default:
		return w.array(i, c, depth)
	}
}

func (w *cutting) container(i int) bool {
	return i < len(w.b) && (w.b[i] == '{' || w.b[i] == '[')
}
