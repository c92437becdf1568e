package attribution_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// heldWorld is a journal, of which a sink gets the changes with their authors, and what was written to it.
type heldWorld struct {
	t       *testing.T
	rng     *rand.Rand
	journal *journal.Journal
	holder  *attribution.Holder
	stop    func()

	versions  map[string]int
	unnamed   []*event.Change // that may get an author yet
	delivered uint64          // up to where the sink has settled everything
}

func newHeldWorld(t *testing.T, seed uint64) *heldWorld {
	j, err := journal.Open(journal.Options{Dir: t.TempDir(), Declaration: journal.Declaration{Sinks: []string{"trail", attribution.HolderSink}}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	running, end := context.WithCancel(context.Background())
	journaling := make(chan error, 1)
	go func() { journaling <- j.Run(running) }()
	w := &heldWorld{t: t, rng: rand.New(rand.NewPCG(seed, 0)), journal: j, versions: map[string]int{}}
	t.Cleanup(func() {
		w.stop()
		end()
		if err := errors.Join(<-journaling, j.Close()); err != nil {
			t.Error(err)
		}
	})
	w.start()
	return w
}

// start starts a holder, as a process does that follows another one.
func (w *heldWorld) start() {
	w.holder = attribution.NewHolder(attribution.HolderOptions{
		Journal: w.journal, Crowded: func() bool { return false }, Internal: []string{attribution.HolderSink},
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.holder.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			w.t.Error(err)
		}
	}
}

func (w *heldWorld) append(c *event.Change) {
	c.Cluster, c.ObservedAt = "c", time.Now().UTC()
	if c.Resource = pods; c.Name == "other" {
		c.Resource = event.Resource{Version: "v1", Resource: "secrets", Kind: "Secret"}
	}
	if err := w.journal.Append(w.t.Context(), event.Observation{Resource: c.Resource, Scope: "s", Changes: []*event.Change{c}}); err != nil {
		w.t.Fatal(err)
	}
	if err := w.journal.Flush(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// step does one random thing.
func (w *heldWorld) step() {
	held := &event.HeldInfo{Sinks: []string{"trail"}, Wait: time.Duration(w.rng.IntN(300)) * time.Millisecond}
	name := []string{"a", "b", "c", "other"}[w.rng.IntN(4)]
	switch w.rng.IntN(12) {
	default:
		w.versions[name]++
		c := &event.Change{Type: event.Updated, Name: name, UID: "u-" + name, ResourceVersion: fmt.Sprint(w.versions[name]), Held: held}
		w.append(c)
		w.unnamed = append(w.unnamed, c)
	case 5, 6, 7:
		if n := len(w.unnamed); n > 0 {
			i := w.rng.IntN(n)
			of := w.unnamed[i]
			w.unnamed = slices.Delete(w.unnamed, i, i+1)
			w.append(&event.Change{Type: event.Attributed, Name: of.Name, UID: of.UID, ResourceVersion: of.ResourceVersion, Held: of.Held,
				Attribution: &event.Attribution{Of: of.ID(), By: event.Identity{User: "ann"}, Certainty: event.Exact}})
		}
	case 8:
		w.append(&event.Change{Type: event.Gap, Gap: &event.GapInfo{From: fmt.Sprint(w.journal.Newest()), Reason: "a test"}, Held: held})
	case 9:
		w.append(&event.Change{Type: event.Updated, Name: "free", UID: "u-free", ResourceVersion: fmt.Sprint(w.journal.Newest())})
	case 10:
		w.stop()
		w.start()
	case 11:
		w.settleSink(w.journal.Newest())
	}
}

func (w *heldWorld) settleSink(upTo uint64) {
	if err := w.journal.Settle(w.t.Context(), "trail", event.Cursor{Low: upTo}, nil); err != nil {
		w.t.Fatal(err)
	}
	w.delivered = upTo
}

// records returns the held records and their copies.
func (w *heldWorld) records() (held, copies []event.Record) {
	for after := uint64(0); after < w.journal.Newest(); {
		records, err := w.journal.Read(w.t.Context(), after)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, r := range records {
			after = r.Offset
			switch {
			case r.Change.Held == nil:
			case r.Change.Held.Released:
				copies = append(copies, r)
			default:
				held = append(held, r)
			}
		}
	}
	return held, copies
}

// isComplete reports whether each change and control record has its copy.
func (w *heldWorld) isComplete() bool {
	held, copies := w.records()
	left := map[string]bool{}
	for _, r := range held {
		left[r.Change.ID()] = r.Change.Type != event.Attributed
	}
	for _, r := range copies {
		delete(left, r.Change.ID())
	}
	for _, lacks := range left {
		if lacks {
			return false
		}
	}
	return true
}

// check compares the copies with what was held.
func (w *heldWorld) check() {
	held, copies := w.records()
	copyOf, unknown := map[string]event.Record{}, map[string]bool{}
	for _, r := range copies {
		id := r.Change.ID()
		if _, twice := copyOf[id]; twice {
			w.t.Errorf("%s was released twice", id)
		}
		copyOf[id], unknown[id] = r, r.Change.Held.Unknown != ""
		if r.Change.Type == event.Updated && (r.Change.Attribution != nil) == unknown[id] {
			w.t.Errorf("%s went with %+v and %q", id, r.Change.Attribution, r.Change.Held.Unknown)
		}
	}
	last := map[string]uint64{} // copy, by object and by resource
	for _, r := range held {
		c := r.Change
		copied, released := copyOf[c.ID()]
		if c.Type == event.Attributed {
			if released != unknown[c.Attribution.Of] {
				w.t.Errorf("%s was released: %v", c.ID(), released)
			}
			continue
		}
		before, object := last["gap of "+c.Resource.String()], c.Resource.String()+"/"+c.Name
		if c.Type == event.Gap {
			before = last[c.Resource.String()]
		} else {
			before = max(before, last[object])
		}
		if copied.Offset < max(before, r.Offset) {
			w.t.Errorf("%s at %d was released at %d, before %d", c.ID(), r.Offset, copied.Offset, before)
		}
		last[c.Resource.String()] = max(last[c.Resource.String()], copied.Offset)
		if last[object] = copied.Offset; c.Type == event.Gap {
			last["gap of "+c.Resource.String()] = copied.Offset
		}
	}
}

// TestHeldRecordsAreReleasedOnceAndInOrder with authors that come at random times, or not at all, and processes that end at
// random moments. The cursor passes a record once the sink has settled its copy.
func TestHeldRecordsAreReleasedOnceAndInOrder(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newHeldWorld(t, seed)
			for range 150 {
				w.step()
				if w.rng.IntN(4) == 0 {
					w.checkCursor()
				}
			}
			w.await("the release of everything", w.isComplete)
			w.check()
			w.await("the cursor", func() bool {
				w.settleSink(w.journal.Newest())
				return w.journal.LowestCursor("trail") == w.journal.Newest()
			})
		})
	}
}

func (w *heldWorld) await(what string, ok func() bool) {
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatal("waited in vain for ", what)
		}
	}
}

func (w *heldWorld) checkCursor() {
	cursor, _, err := w.journal.Cursor(attribution.HolderSink)
	if err != nil {
		w.t.Fatal(err)
	}
	held, copies := w.records()
	for _, r := range held {
		if r.Offset > cursor.Low || r.Change.Type == event.Attributed {
			continue
		}
		if !slices.ContainsFunc(copies, func(c event.Record) bool { return c.Change.ID() == r.Change.ID() && c.Offset <= w.delivered }) {
			w.t.Errorf("the cursor %d is past %s at %d, which the sink lacks up to %d", cursor.Low, r.Change.ID(), r.Offset, w.delivered)
		}
	}
}
