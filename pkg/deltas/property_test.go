package deltas

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// TestEveryRevisionIsEmittedOnceThroughCrashes runs random histories through a follower that crashes repeatedly. After a
// crash, a random prefix of the observations is durable, and the next process resumes from it. Lists fail, history and the
// journal are lost, and the rules are edited.
//
// Every watch event is emitted exactly once and in order per object (I1, I3), with its class and actor. At every position
// the consumer's state equals that of the API server, with matching count and digest at the end of a snapshot, and an object
// that was replaced was deleted first (I8). No two changes have the same ID.
func TestEveryRevisionIsEmittedOnceThroughCrashes(t *testing.T) {
	for seed := range uint64(400) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			h := newHistory(t, rand.New(rand.NewPCG(seed, 7)))
			for range 40 {
				h.world.writeRandomObjects(h.rnd.IntN(12))
				h.injectFault()
				h.runProcess(h.rnd.IntN(5))
				if h.rnd.IntN(2) == 0 {
					h.crashProcess()
				}
			}
			h.world.writeRandomObjects(3)
			for h.process.stored.Position != strconv.Itoa(h.world.revision) {
				h.runProcess(10)
			}
			h.makeDurable(len(h.appended))
			h.checkEmittedOnce()
		})
	}
}

// history is a world, the process that currently follows it, and the journal.
type history struct {
	t     *testing.T
	rnd   *rand.Rand
	world *world

	process   *follower
	selection selection
	appended  []appended // by the current process, not all durable

	stored   event.StoredScope
	known    map[string]event.Known
	consumer consumer
	expected map[string]int // IDs of watch events, with the number of times they must be emitted
	names    int            // counter for names of snapshots and passes
}

// appended is an observation with its expected IDs and its selection.
type appended struct {
	event.Observation
	expected  []string
	selection selection
}

func newHistory(t *testing.T, rnd *rand.Rand) *history {
	h := &history{t: t, rnd: rnd, world: newWorld(rnd), known: map[string]event.Known{}, expected: map[string]int{}}
	h.consumer = consumer{history: h, state: map[string]*event.Change{}, last: map[string]int{}, times: map[string]int{}}
	h.startProcess()
	return h
}

// edited is the prefix of comparisons with edited rules.
const edited = "P"

func (h *history) newName(prefix string) string { h.names++; return fmt.Sprint(prefix, h.names) }

// injectFault injects a random fault other than a crash.
func (h *history) injectFault() {
	switch h.rnd.IntN(16) {
	case 0, 1:
		h.world.compact = h.world.revision
	case 2:
		h.crashProcess()
		h.stored, h.known = event.StoredScope{LostReason: "the journal was broken"}, map[string]event.Known{}
		h.consumer.snapshot = "" // it will never end
		h.startProcess()
	case 3, 4:
		h.crashProcess()
		h.editRules()
		h.startProcess()
	}
}

// editRules stores what pkg/source stores when the selection changes. An unfinished snapshot continues as a comparison,
// because consumers wait for its end.
func (h *history) editRules() {
	next := event.StoredScope{LostReason: "the rules were edited", Pass: h.newName(edited)}
	if h.stored.Position == "" {
		next.Snapshot = h.stored.Snapshot
	}
	h.stored = next
	h.selection = selection{
		label:     []string{"", "a", "b"}[h.rnd.IntN(3)],
		namespace: []string{"", "ns0", "ns1"}[h.rnd.IntN(3)],
	}
}

// startProcess starts a process from the durable state.
func (h *history) startProcess() {
	known := NewKnownSet()
	for _, k := range h.known {
		known.Add(k)
	}
	s := Scope{ID: "s", Cluster: "c", Resource: event.Resource{Resource: "pods"}, Selected: h.selection.label != ""}
	h.appended = nil
	h.process = &follower{
		t: h.t, stored: h.stored, tracker: NewTracker(s, known, h.selection.matchesNamespace, time.Now),
		append: func(o event.Observation) {
			h.appended = append(h.appended, appended{Observation: o, selection: h.selection})
		},
		newName: h.newName,
	}
}

// crashProcess keeps a random prefix of the observations and restarts.
func (h *history) crashProcess() {
	h.makeDurable(h.rnd.IntN(len(h.appended) + 1))
	h.startProcess()
}

func (h *history) makeDurable(n int) {
	for _, o := range h.appended[:n] {
		storeKnown(h.known, o.Observation)
		storeScope(&h.stored, o.Observation)
		for _, id := range o.expected {
			h.expected[id]++
		}
		for _, c := range o.Changes {
			h.consumer.applyChange(c)
		}
		if o.Position != "" {
			h.consumer.compareState(o.selection, o.Position)
		}
	}
	h.appended = h.appended[n:]
}

// runProcess lists if necessary, then watches for at most n batches. The process may crash at any time.
func (h *history) runProcess(n int) {
	f := h.process
	if f.stored.Position != "" && revisionOf(f.stored.Position) < h.world.compact {
		f.loseHistory("history expired")
	}
	if f.stored.Position == "" && !h.listObjects() {
		return
	}
	for range n {
		if h.watchBatch(); h.rnd.IntN(3) == 0 {
			h.syncRandomObject()
		}
	}
}

// listObjects lists, repeating lists that fail. It returns false if the process crashed.
func (h *history) listObjects() bool {
	h.process.startList(strconv.Itoa(h.world.revision))
	for {
		revision, whole := h.readAll()
		if whole {
			h.process.finishList(strconv.Itoa(revision))
			h.checkMissing(revision)
			return true
		}
		if h.rnd.IntN(3) == 0 {
			h.crashProcess()
			return false
		}
		h.world.writeRandomObjects(h.rnd.IntN(4))
		h.process.restartList()
	}
}

// readAll reads the objects of one revision in pages, or as a WatchList with the events that follow.
func (h *history) readAll() (revision int, whole bool) {
	w, watchList := h.world, h.rnd.IntN(2) == 0
	revision = w.revision
	events := addedEvents(w.listAt(h.selection, revision)...)
	w.writeRandomObjects(h.rnd.IntN(6))
	if watchList {
		for ; revision < w.revision; revision++ {
			if e, yes := h.selection.watchEvent(w.writeAt(revision + 1)); yes {
				events = append(events, e)
			}
		}
	}
	for len(events) > 0 {
		if h.rnd.IntN(12) == 0 {
			return 0, false
		}
		n := 1 + h.rnd.IntN(len(events))
		h.process.storeObservation(h.process.tracker.ObserveEvents(events[:n], ""))
		events = events[n:]
	}
	return revision, h.rnd.IntN(12) > 0
}

// watchBatch observes a batch of events after the position.
func (h *history) watchBatch() {
	w, from := h.world, revisionOf(h.process.stored.Position)
	if from == w.revision {
		return
	}
	to := from + 1 + h.rnd.IntN(min(w.revision-from, 8))
	var batch []Event
	var expected []string
	for r := from + 1; r <= to; r++ {
		e, yes := h.selection.watchEvent(w.writeAt(r))
		if !yes {
			continue
		}
		if past, yes := w.earlierEvent(h.selection, r); yes && e.Type == watch.Modified && h.rnd.IntN(4) == 0 {
			batch = append(batch, past) // replayed by another API server
		}
		batch = append(batch, e)
		if h.selection.matchesNamespace(e.Object.Namespace) {
			expected = append(expected, changeIDOf(e))
		}
	}
	h.process.storeObservation(h.process.tracker.ObserveEvents(batch, strconv.Itoa(to)))
	h.appended[len(h.appended)-1].expected = expected
}

// changeIDOf returns the ID of the change that an event normally produces.
func changeIDOf(e Event) string {
	c := event.Change{Cluster: "c", UID: e.Object.UID, ResourceVersion: e.Object.ResourceVersion}
	switch e.Type {
	case watch.Added:
		c.Type = event.Added
	case watch.Modified:
		c.Type = event.Updated
	case watch.Deleted:
		c.Type = event.Deleted
	}
	return c.ID()
}

// syncRandomObject resyncs a random current or past state.
func (h *history) syncRandomObject() {
	if len(h.world.writes) == 0 {
		return
	}
	o := h.world.writes[h.rnd.IntN(len(h.world.writes))].object
	if now := h.world.objects[o.Key()]; now != nil && h.rnd.IntN(2) == 0 {
		o = now
	}
	h.process.storeObservation(h.process.tracker.ObserveSynced(o, h.newName("sync"), ""))
}

// checkMissing checks the deletes inferred from a list: no existing selected object was deleted, and objects left the
// selection only if it was edited.
func (h *history) checkMissing(revision int) {
	exists := map[string]*Object{}
	for _, o := range h.world.listAt(h.selection, revision) {
		exists[o.UID] = o
	}
	for _, a := range h.appended {
		if a.selection != h.selection {
			continue
		}
		for _, c := range a.Changes {
			switch o := exists[c.UID]; {
			case c.Type != event.Deleted || !c.FinalStateUnknown:
			case o != nil && h.selection.matchesNamespace(o.Namespace) && revisionOf(o.ResourceVersion) <= revisionOf(c.ResourceVersion):
				h.t.Errorf("%s was emitted, but the object exists at %d in version %s", describeChange(c), revision, o.ResourceVersion)
			case c.Left != (strings.HasPrefix(c.Pass, edited) && c.Delta == event.DeltaDeleted):
				h.t.Errorf("%s was emitted, but left is set only if the rules were edited", describeChange(c))
			}
		}
	}
}

func (h *history) checkEmittedOnce() {
	for id, n := range h.expected {
		if n != 1 || h.consumer.times[id] != 1 {
			h.t.Errorf("%s was watched %d times and emitted %d times", id, n, h.consumer.times[id])
		}
	}
	h.consumer.compareState(h.selection, strconv.Itoa(h.world.revision))
}

// consumer rebuilds the state from the stream alone.
type consumer struct {
	*history
	state    map[string]*event.Change
	last     map[string]int // newest revision, by key
	times    map[string]int // number of times that an ID was read
	snapshot string
	named    map[string]bool // listed in the current snapshot
}

func (r *consumer) applyChange(c *event.Change) {
	if r.times[c.ID()]++; r.times[c.ID()] > 1 && c.Type != event.Gap { // two gaps may end at the same position if nothing happened in between
		r.t.Fatalf("a second change has the ID %s: %s", c.ID(), describeChange(c))
	}
	switch c.Type {
	case event.Gap:
	case event.SnapshotBegin:
		if r.snapshot != "" {
			r.t.Fatalf("snapshot %s begins within %s", c.Snapshot.ID, r.snapshot)
		}
		r.snapshot, r.named = c.Snapshot.ID, map[string]bool{}
	case event.SnapshotEnd:
		r.checkSnapshotEnd(c)
	default:
		r.applyObject(c)
	}
}

func (r *consumer) applyObject(c *event.Change) {
	key := c.Namespace + "/" + c.Name
	if c.Snapshot != nil && c.Snapshot.ID != r.snapshot || c.Type == event.Snapshot && c.Snapshot == nil {
		r.t.Fatalf("within snapshot %q: %s", r.snapshot, describeChange(c))
	}
	if c.Type != event.Deleted && string(c.After) != c.ResourceVersion {
		r.t.Fatalf("body %q: %s", c.After, describeChange(c))
	}
	revision := revisionOf(c.ResourceVersion)
	if revision < r.last[key] {
		r.t.Fatalf("out of order, after %d: %s", r.last[key], describeChange(c))
	}
	r.last[key] = revision
	had := r.state[key]
	if had != nil && had.UID != c.UID && (r.snapshot == "" || r.named[key]) { // I8; an object that a snapshot lacks is deleted
		r.t.Fatalf("its delete is missing, %s: %s", describeChange(had), describeChange(c))
	}
	switch c.Type {
	case event.Deleted:
		delete(r.state, key)
		return
	case event.Sync:
		if had == nil || had.ResourceVersion != c.ResourceVersion {
			r.t.Fatalf("what was emitted last is %+v: %s", had, describeChange(c))
		}
	case event.Updated:
		r.checkUpdate(c)
	case event.Added:
		r.checkAdded(c)
	}
	r.state[key] = c
	if r.named != nil {
		r.named[key] = true
	}
}

// checkAdded checks the actor of an added object: the writer of the label that selects an object is not its creator, so an
// actor must be the writer of this very version.
func (r *consumer) checkAdded(c *event.Change) {
	if wrote := r.world.writeAt(revisionOf(c.ResourceVersion)).condition; c.Actor != nil && (c.Coalesced || c.Actor.Manager != wrote.writer) {
		r.t.Errorf("it was %q: %s, by %q", wrote.writer, describeChange(c), c.Actor.Manager)
	}
}

// checkUpdate checks the class and the actor of an update.
func (r *consumer) checkUpdate(c *event.Change) {
	wrote := r.world.writeAt(revisionOf(c.ResourceVersion)).condition
	switch {
	case c.Coalesced && c.Actor != nil:
		r.t.Errorf("several may have written it: %s", describeChange(c))
	case c.Coalesced:
	case c.Class != wrote.class:
		r.t.Errorf("it was %s: %s", wrote.class, describeChange(c))
	case c.Actor == nil && wrote.writer != "", c.Actor != nil && c.Actor.Manager != wrote.writer:
		r.t.Errorf("it was %q: %s", wrote.writer, describeChange(c))
	}
}

// checkSnapshotEnd removes the objects that the snapshot lacks and compares the others with its digest.
func (r *consumer) checkSnapshotEnd(end *event.Change) {
	if end.Snapshot.ID != r.snapshot {
		r.t.Fatalf("snapshot %s ends within %q", end.Snapshot.ID, r.snapshot)
	}
	var digest event.Digest
	for key, c := range r.state {
		if !r.named[key] {
			delete(r.state, key)
			continue
		}
		digest.Add(c.Namespace, c.Name, c.UID, c.ResourceVersion)
	}
	if len(r.state) != end.Snapshot.Count || digest.String() != end.Snapshot.Digest {
		r.t.Fatalf("%s, the stream has %d objects, digest %s", describeChange(end), len(r.state), digest.String())
	}
	r.snapshot, r.named = "", nil
}

// compareState compares the consumer's state with that of the API server at a position, and the known objects with that
// state.
func (r *consumer) compareState(s selection, position string) {
	state, known := map[string]string{}, map[string]string{}
	for key, c := range r.state {
		state[key] = c.ResourceVersion
	}
	for key, k := range r.known {
		known[key] = k.ResourceVersion
	}
	if want := r.world.stateAt(s, revisionOf(position)); !maps.Equal(state, want) || !maps.Equal(known, want) {
		r.t.Fatalf("at %s the API server has %v, the stream has %v, known is %v", position, want, state, known)
	}
}
