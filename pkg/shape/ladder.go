package shape

import (
	"slices"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// longestAnnotation is how long, in bytes as JSON, an annotation may be to stay in a change that is too large.
const longestAnnotation = 1 << 10

// Smaller returns a copy of a change that a destination refused as too large, with the next thing left out, or false when
// there is nothing more that may be. The steps: what an update carries beside the object (before, changed, patch); status
// and long annotations; everything but identity, labels and the rest of metadata. Omitted of the copy names what is left
// out, Change.ID stays. It is a pure function: a change that is walked down once more is the same at each step.
func Smaller(c *event.Change) (*event.Change, bool) {
	d := *c
	d.Omitted = slices.Clone(c.Omitted)
	body := &d.After
	if c.Type == event.Deleted {
		body = &d.Before
	} else if len(c.Before) > 0 {
		d.Before = nil
		omit(&d, "before")
	}
	if len(c.Patch) > 0 {
		d.Patch = nil
		omit(&d, "patch")
	}
	if len(c.Changed) > 0 {
		d.Changed = nil
		omit(&d, "changed")
	}
	if len(d.Omitted) > len(c.Omitted) {
		return &d, true
	}
	for _, metadataOnly := range []bool{false, true} {
		l := lightening{b: *body, metadataOnly: metadataOnly}
		if len(*body) == 0 || closed(l.b, l.object(skipSpace(l.b, 0))) != nil {
			return nil, false
		}
		if len(l.edits) == 0 {
			continue
		}
		*body = l.edits.apply(l.b)
		for _, name := range l.omitted {
			omit(&d, name)
		}
		return &d, true
	}
	return nil, false
}

func omit(c *event.Change, name string) {
	if !slices.Contains(c.Omitted, name) {
		c.Omitted = append(c.Omitted, name)
	}
}

// lightening takes out of an object what a consumer can best do without.
type lightening struct {
	b            []byte
	metadataOnly bool
	edits        edits
	omitted      []string
}

func (l *lightening) object(i int) int {
	out := remover{edits: &l.edits}
	m := enter(l.b, i)
	for m.next() {
		switch string(m.key) {
		case "apiVersion", "kind":
			out.keep(m.comma)
			m.i = skipValue(l.b, m.i, 1)
		case "metadata":
			out.keep(m.comma)
			m.i = l.metadata(m.i)
		default:
			name, start := string(m.key), m.i
			if m.i = skipValue(l.b, start, 1); m.i < 0 {
				break
			}
			if !l.metadataOnly && name != "status" {
				out.keep(m.comma)
				break
			}
			out.remove(m.comma, m.start, m.i)
			l.omitted = append(l.omitted, name)
		}
	}
	return m.i
}

func (l *lightening) metadata(i int) int {
	if i >= len(l.b) || l.b[i] != '{' {
		return skipValue(l.b, i, 1)
	}
	out := remover{edits: &l.edits}
	m := enter(l.b, i)
	for m.next() {
		switch {
		case string(m.key) != "annotations" || m.i >= len(l.b) || l.b[m.i] != '{':
			out.keep(m.comma)
			m.i = skipValue(l.b, m.i, 2)
		case l.metadataOnly:
			if m.i = skipValue(l.b, m.i, 2); m.i >= 0 {
				out.remove(m.comma, m.start, m.i)
				l.omitted = append(l.omitted, "metadata.annotations")
			}
		default:
			out.keep(m.comma)
			m.i = l.annotations(m.i)
		}
	}
	return m.i
}

func (l *lightening) annotations(i int) int {
	out := remover{edits: &l.edits}
	m := enter(l.b, i)
	for m.next() {
		start := m.i
		if m.i = skipValue(l.b, start, 3); m.i < 0 {
			break
		}
		if m.i-start <= longestAnnotation {
			out.keep(m.comma)
			continue
		}
		out.remove(m.comma, m.start, m.i)
		if !slices.Contains(l.omitted, "metadata.annotations") {
			l.omitted = append(l.omitted, "metadata.annotations")
		}
	}
	return m.i
}
