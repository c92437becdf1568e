package deltas

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// TestEveryRevisionIsToldOnceThroughCrashes plays random histories to a queue that is killed again and again. What was
// appended is durable up to a random observation; the next queue starts from there. As long as the watch can go on, each
// revision must be told exactly once and in order per object (I1, I3), with its class and its actor. After lost history, and
// after a lost journal, the state must be right (I8) at the end and wherever a snapshot ends.
func TestEveryRevisionIsToldOnceThroughCrashes(t *testing.T) {
	for seed := range uint64(400) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			w := newWorld(t, rand.New(rand.NewPCG(seed, 7)))
			for range 30 {
				w.live(w.rnd.IntN(12))
				if w.rnd.IntN(6) == 0 {
					w.lose()
				}
				if w.rnd.IntN(20) == 0 {
					w.breakJournal()
				}
				if w.rnd.IntN(10) > 0 || w.position != "" {
					w.watch()
				} else {
					w.stageOnly()
				}
				w.crash()
			}
			w.live(3)
			w.watch()
			w.popAll()
			w.check()
		})
	}
}

// world is an API server with a few objects, one queue at a time, and the journal.
type world struct {
	t   *testing.T
	rnd *rand.Rand

	revision int
	objects  map[string]*Object // what exists
	history  []watched          // what a watch can still tell
	compact  int                // revision below which history is lost

	q        *Queue
	appended []Observation // by the present queue, not all durable

	position string
	snapshot string
	begun    int    // snapshots
	lost     string // why the journal is new
	known    map[string]event.Known
	told     []*event.Change
	relisted map[int]bool      // revisions that a list may have skipped
	state    map[int]condition // of the object that was written at a revision
}

// condition is what the summary of an object is made of.
type condition struct {
	spec, status, labels int
	writer               string         // who wrote it; "" where the API server cannot tell
	class                event.Class    // what was written
	managers             map[string]int // and when they last did
}

func (c *condition) words() []string {
	words := []string{fmt.Sprint("spec=", c.spec), fmt.Sprint("status=", c.status), fmt.Sprint("labels=", c.labels)}
	for _, manager := range slices.Sorted(maps.Keys(c.managers)) {
		words = append(words, fmt.Sprint(manager, "@", c.managers[manager]))
	}
	return words
}

// written is the condition after another random write.
func (w *world) written(last *condition) condition {
	c := condition{managers: map[string]int{}, spec: 1}
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

type watched struct {
	kind     string
	object   *Object
	revision int
}

func newWorld(t *testing.T, rnd *rand.Rand) *world {
	w := &world{t: t, rnd: rnd, objects: map[string]*Object{}, known: map[string]event.Known{}, relisted: map[int]bool{}, state: map[int]condition{}, revision: 100}
	w.compact = w.revision
	w.start()
	return w
}

// live lets n things happen to random objects.
func (w *world) live(n int) {
	for range n {
		w.revision++
		name := "o" + strconv.Itoa(w.rnd.IntN(4))
		old := w.objects[name]
		o := NewObject("ns", name)
		o.ResourceVersion = strconv.Itoa(w.revision)
		o.Raw = []byte(o.ResourceVersion)
		kind := "MODIFIED"
		switch {
		case old == nil:
			kind, o.UID = "ADDED", fmt.Sprintf("%s-%d", name, w.revision)
		case w.rnd.IntN(3) == 0:
			kind, o.UID = "DELETED", old.UID
		default:
			o.UID = old.UID
		}
		var last *condition
		if old != nil {
			c := w.state[revisionOf(old.ResourceVersion)]
			last = &c
		}
		c := w.written(last)
		w.state[w.revision] = c
		o.Summary, o.Names = summarize(c.words())
		if kind == "DELETED" {
			delete(w.objects, name)
		} else {
			w.objects[name] = o
		}
		w.history = append(w.history, watched{kind, o, w.revision})
	}
}

// lose makes history so far unavailable to later watches.
func (w *world) lose() { w.compact = w.revision }

// breakJournal lets the next queue start with a new journal.
func (w *world) breakJournal() {
	w.position, w.snapshot, w.known, w.lost = "", "", map[string]event.Known{}, "the journal was broken"
	for r := range w.revision + 1 {
		w.relisted[r] = true
	}
	w.start()
}

func revisionOf(rv string) int { n, _ := strconv.Atoi(rv); return n }

func (w *world) start() {
	var known []event.Known
	for _, k := range w.known {
		known = append(known, k)
	}
	w.appended = nil
	w.q = NewQueue(QueueConfig{
		Scope: Scope{ID: "s", Cluster: "c", Resource: event.Resource{Resource: "pods"}}, Stored: event.Stored{Position: w.position, Snapshot: w.snapshot, Known: known},
		Origin: w.origin, Now: time.Now,
		Append:     func(_ context.Context, o Observation) error { w.appended = append(w.appended, o); return nil },
		SnapshotID: func() string { w.begun++; return fmt.Sprint("S", w.begun) },
	})
}

func (w *world) origin() Origin {
	switch {
	case w.position == "":
		return Origin{Kind: First, Reason: w.lost}
	case w.at() < w.compact:
		return Origin{Kind: Relisted, From: w.position, Reason: "expired"}
	}
	return Origin{Kind: Resumed}
}

func (w *world) at() int { return revisionOf(w.position) }

// watch lists or resumes, then plays what came after, popping now and then.
func (w *world) watch() {
	origin, from := w.origin(), w.at()
	var list []any
	if origin.Kind != Resumed {
		for _, o := range w.objects {
			if w.rnd.IntN(2) == 0 {
				staged, err := w.q.Stage(o)
				w.must(err)
				o = staged
			}
			list = append(list, o)
		}
		if w.lost == "" || w.rnd.IntN(2) == 0 {
			w.drain()
		}
		for r := from + 1; r <= w.revision; r++ {
			w.relisted[r] = true
		}
		from = w.revision
	}
	w.must(replace(w.t, w.q, list, strconv.Itoa(from)))
	for _, e := range w.history {
		if e.revision <= from {
			continue
		}
		switch e.kind {
		case "ADDED":
			w.must(w.q.Add(e.object))
		case "MODIFIED":
			w.must(w.q.Update(e.object))
		case "DELETED":
			w.must(w.q.Delete(e.object))
		}
		if w.rnd.IntN(3) == 0 {
			w.pop()
		}
	}
}

// stageOnly begins the first list, which never ends.
func (w *world) stageOnly() {
	for _, o := range w.objects {
		_, err := w.q.Stage(o)
		w.must(err)
	}
	for r := 0; r <= w.revision; r++ {
		w.relisted[r] = true
	}
}

func (w *world) must(err error) {
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) pop() bool {
	return pop(w.t, w.q)
}

func (w *world) drain() {
	for w.pop() {
	}
}

func (w *world) popAll() {
	w.drain()
	w.durable(len(w.appended))
}

// crash keeps a random part of what was appended and starts over from it.
func (w *world) crash() {
	for range w.rnd.IntN(20) {
		w.pop()
	}
	w.durable(w.rnd.IntN(len(w.appended) + 1))
	w.start()
}

func (w *world) durable(n int) {
	for _, o := range w.appended[:n] {
		w.told = append(w.told, o.Changes...)
		for _, k := range o.Known {
			w.known[k.Key] = k
		}
		for _, key := range o.Forget {
			delete(w.known, key)
		}
		if o.Snapshot != "" {
			w.snapshot = o.Snapshot
		}
		if o.Position != "" {
			w.position = o.Position
		}
	}
	w.appended = w.appended[n:]
}

func (w *world) check() {
	r := reader{t: w.t, state: map[string]*event.Change{}, last: map[string]int{}}
	times := map[string]int{}
	for _, c := range w.told {
		times[c.ID()]++
		r.read(c)
		w.checkUpdate(c)
	}
	state := map[string]string{}
	for name, c := range r.state {
		state[name] = c.ResourceVersion
	}
	for _, e := range w.history {
		want := map[string]event.Type{"ADDED": event.Added, "MODIFIED": event.Updated, "DELETED": event.Deleted}[e.kind]
		id := (&event.Change{Type: want, Cluster: "c", UID: e.object.UID, ResourceVersion: e.object.ResourceVersion}).ID()
		if !w.relisted[e.revision] && times[id] != 1 {
			w.t.Errorf("%s %s@%d was told %d times", e.kind, e.object.Name, e.revision, times[id])
		}
	}
	for name, o := range w.objects {
		if state[name] != o.ResourceVersion {
			w.t.Errorf("%s is at %s, the stream says %q", name, o.ResourceVersion, state[name])
		}
	}
	if len(state) != len(w.objects) {
		w.t.Errorf("%d objects exist, the stream says %d", len(w.objects), len(state))
	}
}

// checkUpdate holds class and actor of an update against who wrote what.
func (w *world) checkUpdate(c *event.Change) {
	wrote := w.state[revisionOf(c.ResourceVersion)]
	switch {
	case c.Type != event.Updated || c.Coalesced:
	case c.Class != wrote.class:
		w.t.Errorf("%s@%s has class %s, it was %s", c.Name, c.ResourceVersion, c.Class, wrote.class)
	case c.Actor == nil && wrote.writer != "", c.Actor != nil && c.Actor.Manager != wrote.writer:
		w.t.Errorf("%s@%s by %+v, it was %q", c.Name, c.ResourceVersion, c.Actor, wrote.writer)
	}
}

// reader is a consumer that knows nothing but the stream.
type reader struct {
	t        *testing.T
	state    map[string]*event.Change
	last     map[string]int
	snapshot string
	told     map[string]bool // within the snapshot
}

func (r *reader) read(c *event.Change) {
	switch c.Type {
	case event.Gap:
		return
	case event.SnapshotBegin:
		if r.snapshot == c.Snapshot.ID {
			r.t.Fatalf("snapshot %s begins again", r.snapshot)
		}
		r.snapshot, r.told = c.Snapshot.ID, map[string]bool{}
		return
	case event.SnapshotEnd:
		r.end(c)
		return
	case event.Snapshot:
		if c.Snapshot == nil || c.Snapshot.ID != r.snapshot {
			r.t.Fatalf("%s@%s belongs to snapshot %+v within %q", c.Name, c.ResourceVersion, c.Snapshot, r.snapshot)
		}
	}
	if c.Type != event.Deleted && string(c.After) != c.ResourceVersion {
		r.t.Fatalf("%s %s@%s told with body %q", c.Type, c.Name, c.ResourceVersion, c.After)
	}
	revision := revisionOf(c.ResourceVersion)
	if revision < r.last[c.Name] {
		r.t.Fatalf("%s told at %d after %d: a step back", c.Name, revision, r.last[c.Name])
	}
	r.last[c.Name] = revision
	if c.Type == event.Deleted {
		delete(r.state, c.Name)
		return
	}
	r.state[c.Name] = c
	if r.told != nil {
		r.told[c.Name] = true
	}
}

// end drops what the snapshot did not name and holds the rest against its digest.
func (r *reader) end(end *event.Change) {
	if end.Snapshot.ID != r.snapshot {
		r.t.Fatalf("snapshot %s ends within %q", end.Snapshot.ID, r.snapshot)
	}
	var digest event.Digest
	for name, c := range r.state {
		if !r.told[name] && revisionOf(c.ResourceVersion) <= revisionOf(end.Snapshot.Position) {
			delete(r.state, name)
			continue
		}
		digest.Add(c.Namespace, c.Name, c.UID, c.ResourceVersion)
	}
	if len(r.state) != end.Snapshot.Count || digest.String() != end.Snapshot.Digest {
		r.t.Fatalf("snapshot %s has %d objects, the stream says %d", r.snapshot, end.Snapshot.Count, len(r.state))
	}
	r.snapshot, r.told = "", nil
}
