package deltas

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// world is an API server with a few objects in two namespaces, and its complete history.
type world struct {
	rnd      *rand.Rand
	revision int
	objects  map[string]*Object // existing objects, by key
	labels   map[string]string  // of existing objects
	writes   []write            // one per revision
	compact  int                // revision up to which history is compacted
}

// write is the write of one revision: an object was created, changed or deleted.
type write struct {
	object    *Object // the written object; for a delete the last state, with the revision of the delete
	was, is   string  // label before and after; "" if the object does not exist
	condition objectParts
}

// selection is the selection of a rule: a label, which the API server evaluates, and a namespace, which the tracker
// evaluates.
type selection struct{ label, namespace string } // "" selects all

func (s selection) matchesLabel(label string) bool {
	return label != "" && (s.label == "" || s.label == label)
}

func (s selection) matchesNamespace(namespace string) bool {
	return s.namespace == "" || s.namespace == namespace
}

// objectParts is the input of an object's summary.
type objectParts struct {
	spec, status, labels int
	writer               string         // "" if managedFields do not show it
	class                event.Class    // the part that was written
	managers             map[string]int // time of the last write of each manager
}

func (c *objectParts) summaryWords() []string {
	words := []string{fmt.Sprint("spec=", c.spec), fmt.Sprint("status=", c.status), fmt.Sprint("labels=", c.labels)}
	for _, manager := range slices.Sorted(maps.Keys(c.managers)) {
		words = append(words, fmt.Sprint(manager, "@", c.managers[manager]))
	}
	return words
}

const firstRevision = 100

func newWorld(rnd *rand.Rand) *world {
	return &world{
		rnd: rnd, revision: firstRevision, compact: firstRevision,
		objects: map[string]*Object{}, labels: map[string]string{},
	}
}

// writeAt returns the write of a revision.
func (w *world) writeAt(revision int) write { return w.writes[revision-firstRevision-1] }

func revisionOf(rv string) int { n, _ := strconv.Atoi(rv); return n }

// writeRandomObjects makes n random writes.
func (w *world) writeRandomObjects(n int) {
	for range n {
		w.revision++
		o := NewObject("ns"+strconv.Itoa(w.rnd.IntN(2)), "o"+strconv.Itoa(w.rnd.IntN(3)))
		o.ResourceVersion = strconv.Itoa(w.revision)
		o.Raw = []byte(o.ResourceVersion)
		old, next := w.objects[o.Key()], write{object: o, was: w.labels[o.Key()]}
		var last *objectParts
		if old == nil {
			o.UID = fmt.Sprintf("%s-%d", o.Key(), w.revision)
		} else {
			o.UID, last = old.UID, &w.writes[revisionOf(old.ResourceVersion)-firstRevision-1].condition
		}
		next.condition = w.nextParts(last)
		o.Summary, o.Names = summaryFromWords(next.condition.summaryWords())
		switch {
		case old != nil && w.rnd.IntN(3) == 0:
			delete(w.objects, o.Key())
			delete(w.labels, o.Key())
		case old == nil || w.rnd.IntN(4) == 0:
			next.is = string('a' + rune(w.rnd.IntN(2)))
		default:
			next.is = next.was
		}
		if next.is != "" {
			w.objects[o.Key()], w.labels[o.Key()] = o, next.is
		}
		w.writes = append(w.writes, next)
	}
}

// nextParts returns the parts after a random write.
func (w *world) nextParts(last *objectParts) objectParts {
	c := objectParts{managers: map[string]int{}, spec: 1}
	if last != nil {
		c.spec, c.status, c.labels, c.managers = last.spec, last.status, last.labels, maps.Clone(last.managers)
	}
	switch w.rnd.IntN(3) {
	case 0:
		c.spec, c.class = w.revision, event.ClassSpec
	case 1:
		c.status, c.class = w.revision, event.ClassStatus
	default:
		c.labels, c.class = w.revision, event.ClassMetadata
	}
	if last == nil || w.rnd.IntN(4) > 0 {
		c.writer = fmt.Sprint("m", w.rnd.IntN(3))
		c.managers[c.writer] = w.revision
	}
	return c
}

// watchEvent returns the watch event of a write, if it is visible in the selection.
func (s selection) watchEvent(w write) (e Event, yes bool) {
	switch was, is := s.matchesLabel(w.was), s.matchesLabel(w.is); {
	case was && is:
		return Event{watch.Modified, w.object}, true
	case is:
		return Event{watch.Added, w.object}, true
	case was:
		return Event{watch.Deleted, w.object}, true
	}
	return e, false
}

// listAt returns the list at a revision, in random order.
func (w *world) listAt(s selection, revision int) []*Object {
	objects := map[string]*Object{}
	for _, wr := range w.writes[:revision-firstRevision] {
		if delete(objects, wr.object.Key()); s.matchesLabel(wr.is) {
			objects[wr.object.Key()] = wr.object
		}
	}
	list := slices.SortedFunc(maps.Values(objects), func(a, b *Object) int { return strings.Compare(a.Key(), b.Key()) })
	w.rnd.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// stateAt returns the expected state of a consumer at a revision: resourceVersions by key.
func (w *world) stateAt(s selection, revision int) map[string]string {
	state := map[string]string{}
	for _, o := range w.listAt(s, revision) {
		if s.matchesNamespace(o.Namespace) {
			state[o.Key()] = o.ResourceVersion
		}
	}
	return state
}

// earlierEvent returns the event of the previous write to the same object, if any.
func (w *world) earlierEvent(s selection, revision int) (Event, bool) {
	now := w.writeAt(revision).object
	for r := revision - 1; r > firstRevision; r-- {
		if wr := w.writeAt(r); wr.object.UID == now.UID {
			return s.watchEvent(wr)
		}
	}
	return Event{}, false
}
