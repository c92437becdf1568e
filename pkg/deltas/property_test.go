package deltas

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// TestEveryRevisionIsToldOnceThroughCrashes plays random histories to a queue that is killed again and again. What was
// appended is durable up to a random observation; the next queue starts from there. As long as the watch can go on, each
// revision must be told exactly once and in order per object (I1, I3). After lost history the state must be right (I8).
func TestEveryRevisionIsToldOnceThroughCrashes(t *testing.T) {
	for seed := range uint64(400) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			w := newWorld(t, rand.New(rand.NewPCG(seed, 7)))
			for range 30 {
				w.live(w.rnd.IntN(12))
				if w.rnd.IntN(6) == 0 {
					w.lose()
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
	known    map[string]event.Known
	told     []*event.Change
	relisted map[int]bool // revisions that a list may have skipped
}

type watched struct {
	kind     string
	object   *Object
	revision int
}

func newWorld(t *testing.T, rnd *rand.Rand) *world {
	w := &world{t: t, rnd: rnd, objects: map[string]*Object{}, known: map[string]event.Known{}, relisted: map[int]bool{}, revision: 100}
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

func (w *world) start() {
	var known []event.Known
	for _, k := range w.known {
		known = append(known, k)
	}
	w.appended = nil
	w.q = NewQueue(QueueConfig{
		Scope: Scope{ID: "s", Cluster: "c", Resource: event.Resource{Resource: "pods"}}, Stored: event.Stored{Position: w.position, Known: known},
		Origin: w.origin, Now: time.Now,
		Append: func(_ context.Context, o Observation) error { w.appended = append(w.appended, o); return nil },
	})
}

func (w *world) origin() Origin {
	switch {
	case w.position == "":
		return Origin{Kind: First}
	case w.at() < w.compact:
		return Origin{Kind: Relisted, From: w.position, Reason: "expired"}
	}
	return Origin{Kind: Resumed}
}

func (w *world) at() int { n, _ := strconv.Atoi(w.position); return n }

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
		w.drain()
		for r := from + 1; r <= w.revision; r++ {
			w.relisted[r] = true
		}
		from = w.revision
	}
	w.must(w.q.Replace(list, strconv.Itoa(from)))
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
	if w.q.Stats().Queued == 0 {
		return false
	}
	_, err := w.q.fifo.Pop(func(obj any, _ bool) error { return w.q.process(context.Background(), obj.(cache.Deltas)) })
	w.must(err)
	return true
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
		if o.Position != "" {
			w.position = o.Position
		}
	}
	w.appended = w.appended[n:]
}

func (w *world) check() {
	state, times, last := map[string]string{}, map[string]int{}, map[string]int{}
	for _, c := range w.told {
		times[c.ID()]++
		if c.Type == event.Gap {
			continue
		}
		if c.Type != event.Deleted && string(c.After) != c.ResourceVersion {
			w.t.Fatalf("%s %s@%s told with body %q", c.Type, c.Name, c.ResourceVersion, c.After)
		}
		revision, _ := strconv.Atoi(c.ResourceVersion)
		if revision < last[c.Name] {
			w.t.Fatalf("%s told at %d after %d: a step back", c.Name, revision, last[c.Name])
		}
		last[c.Name] = revision
		if c.Type == event.Deleted {
			delete(state, c.Name)
		} else {
			state[c.Name] = c.ResourceVersion
		}
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
