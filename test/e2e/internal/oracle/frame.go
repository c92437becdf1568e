package oracle

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
)

// frame is one snapshot as a bus holds it.
type frame struct {
	scope   bus.Object // the resource, and the namespace if it is of one and has begun
	begun   bool
	end     *bus.Snapshot
	objects map[bus.Object]bus.Record // the last one of each that belongs to it
}

func control(kind string) bool {
	return kind == gap || kind == begin || kind == end || kind == watermark
}

// frame records the snapshot that a record belongs to.
func (s stream) frame(r bus.Record) {
	if r.Snapshot == nil {
		return
	}
	f := s.frames[r.Snapshot.ID]
	if f == nil {
		f = &frame{scope: bus.Object{Group: r.Group, Resource: r.Resource}, objects: make(map[bus.Object]bus.Record)}
		s.frames[r.Snapshot.ID] = f
	}
	switch r.Type {
	case begin:
		f.begun, f.scope = true, r.Object
	case end:
		f.end = r.Snapshot
	case deleted:
		delete(f.objects, r.Object)
	default:
		f.objects[r.Object] = r
	}
}

// position is where the first snapshot that takes the object ended: history is emitted from there on. 0 if none did.
func (s stream) position(o bus.Object) int64 {
	var first int64
	for _, f := range s.frames {
		if f.end == nil || f.scope.Group != o.Group || f.scope.Resource != o.Resource || f.scope.Namespace != "" && f.scope.Namespace != o.Namespace {
			continue
		}
		if at, err := strconv.ParseInt(f.end.Position, 10, 64); err == nil && (first == 0 || at < first) {
			first = at
		}
	}
	return first
}

// beginsAgain reports whether a gap of the resource of an object is from the beginning: what was there is emitted again.
func (s stream) beginsAgain(o bus.Object) bool {
	gaps := s.gaps[bus.Object{Group: o.Group, Resource: o.Resource}]
	return slices.ContainsFunc(gaps, func(g bus.Gap) bool { return g.From == "" })
}

// unframed returns the snapshots without a begin or an end, or with an end that does not match their records. A gap from the
// beginning may have an unfinished one before it.
func (s stream) unframed() []string {
	var wrong []string
	for id, f := range s.frames {
		switch {
		case s.beginsAgain(f.scope) && (!f.begun || f.end == nil):
		case !f.begun:
			wrong = append(wrong, fmt.Sprintf("snapshot %s has no begin", id))
		case f.end == nil:
			wrong = append(wrong, fmt.Sprintf("snapshot %s has no end", id))
		case f.end.Count != len(f.objects):
			wrong = append(wrong, fmt.Sprintf("snapshot %s ends with %d objects and told %d", id, f.end.Count, len(f.objects)))
		case f.end.Digest != f.digest():
			wrong = append(wrong, fmt.Sprintf("snapshot %s told other objects than it says at its end", id))
		}
	}
	for _, all := range s.objects {
		for _, r := range all {
			if r.Type == snapshot && r.Snapshot == nil {
				wrong = append(wrong, fmt.Sprintf("%v: record %s belongs to no snapshot", r.Object, r.ID))
			}
		}
	}
	return wrong
}

func (f *frame) digest() string {
	var d event.Digest
	for o, r := range f.objects {
		d.Add(o.Namespace, o.Name, r.UID, r.ResourceVersion)
	}
	return d.String()
}
