package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// arriveWithin bounds every wait for changes. It is far above what it takes, and no measurement.
const arriveWithin = 5 * time.Minute

// revision is one state of one object, or its end. Kubernetes gives each object a UID for life and each of its states a
// resourceVersion.
type revision struct {
	uid     string
	version string // resourceVersion, or ended
}

// ended stands for the resourceVersion of a delete, which the API server does not return.
const ended = "deleted"

// account compares what was written with what arrived. Its methods may be called concurrently.
type account struct {
	mu       sync.Mutex
	written  int                 // revisions that the API server has confirmed
	open     map[revision]string // those of them that have not arrived; the value names the object
	arrived  map[revision]bool
	ids      map[string]bool
	newest   map[string]uint64 // by UID: the newest resourceVersion that arrived
	repeated int
	reversed int
	gaps     int
	changed  chan struct{} // closed and replaced when something arrives
}

func newAccount() *account {
	return &account{
		open: make(map[revision]string), arrived: make(map[revision]bool), ids: make(map[string]bool),
		newest: make(map[string]uint64), changed: make(chan struct{}),
	}
}

// write notes a revision that the API server has confirmed. It may have arrived already.
func (a *account) write(r revision, object string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.written++
	if !a.arrived[r] {
		a.open[r] = object
	}
}

// knows reports whether an event with this ID has arrived before.
func (a *account) knows(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ids[id]
}

// receive notes an event that the subscriber has got.
func (a *account) receive(e *event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.announce()
	if a.ids[e.ID] {
		a.repeated++
		return
	}
	a.ids[e.ID] = true
	if e.Type == gap {
		a.gaps++
		return
	}
	if e.position <= a.newest[e.UID] {
		a.reversed++
	}
	a.newest[e.UID] = max(a.newest[e.UID], e.position)
	a.arrived[e.revision()] = true
	delete(a.open, e.revision())
}

// announce wakes waiting goroutines. The lock is held.
func (a *account) announce() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// tally is the account at one moment.
type tally struct {
	written  int // revisions that the API server has confirmed
	missing  int // those of them that have not arrived
	others   int // what arrived and was not written here: the API server itself writes too
	repeated int // events that arrived again, under the same ID
	reversed int // events that arrived after a newer one of the same object
	gaps     int // events that mark lost history
}

func (t tally) received() int { return t.written - t.missing }

// right reports whether the exporter kept its promise: nothing lost, nothing in the wrong order. A repetition would be
// allowed, since delivery is at least once.
func (t tally) right() bool { return t.missing == 0 && t.reversed == 0 && t.gaps == 0 }

func (a *account) tally() tally {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.count()
}

// count makes the tally. The lock is held.
func (a *account) count() tally {
	return tally{
		written: a.written, missing: len(a.open), others: len(a.arrived) - (a.written - len(a.open)),
		repeated: a.repeated, reversed: a.reversed, gaps: a.gaps,
	}
}

// await returns when the account satisfies a condition, which is tested again after each arrival.
func (a *account) await(ctx context.Context, satisfied func(tally) bool) error {
	ctx, cancel := context.WithTimeout(ctx, arriveWithin)
	defer cancel()
	for {
		a.mu.Lock()
		changed, now := a.changed, a.count()
		a.mu.Unlock()
		if satisfied(now) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %d of %d changes did not arrive: %s", ctx.Err(), now.missing, now.written, some(a.missing()))
		}
	}
}

// awaitAll returns when everything that is written so far has arrived.
func (a *account) awaitAll(ctx context.Context) error {
	return a.await(ctx, func(t tally) bool { return t.missing == 0 })
}

// missing names what has not arrived.
func (a *account) missing() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []string
	for r, object := range a.open {
		all = append(all, object+" "+r.version)
	}
	slices.Sort(all)
	return all
}

// some shows the first few of many.
func some(all []string) string {
	const most = 5
	text := strings.Join(all[:min(most, len(all))], "; ")
	if len(all) > most {
		text += fmt.Sprintf("; and %d more", len(all)-most)
	}
	return text
}
