package shape

import (
	"slices"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

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
