// Package lives is a model of the life of a destination: partitions of a topic, or a stream, that are recreated, grow,
// shrink, are gone, are written by an older or foreign process, or go back to an older copy, at any moment of exporters that
// publish, crash, restart and take over from each other. It plays random histories of that with the product's own journal,
// delivery and replicated state, and compares what the destination holds with what was appended.
package lives

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/await"
)

// Bus is a destination and what may happen to it. Its functions fail the test themselves.
type Bus struct {
	// Open opens the sink of another process, which is a [sinks.Stateful]. observe is called with what is passed to Publish.
	Open func(observe func([]sinks.Message)) sinks.Sink
	// State opens the store of a replicated state for another process, and what closes its bus. It is called for histories
	// with fail-overs only.
	State func() (store sinks.StateStore, closed func())
	// Compare lets a sink that delivers nothing look for a loss, as it does after a while on its own. Nil: it does not.
	Compare func(sinks.Sink) error
	// Read returns what the destination holds. Only the order within a lane counts.
	Read func() []Stored
	// Events are what may happen, in any order.
	Events []Event
	// AtLeastOnce: even without an event, a restart may repeat what was in flight.
	AtLeastOnce bool
}

// Stored is one record of a destination.
type Stored struct{ Lane, Key, ID string }

// Event is something that happens to a destination.
type Event struct {
	Name string
	// Do lets it happen. meanwhile lets exporters publish, restart or take over; it is called once at most.
	Do func(random *rand.Rand, meanwhile func()) Effect
}

// Effect is what an event excuses.
type Effect int

// The effects; those of one event are added.
const (
	Removes Effect = 1 << iota // nothing sends again what was published before, because an operator has removed it
	Repeats                    // from here on records may be there twice, or before older ones

	Nothing Effect = 0
)

const (
	objects     = 12
	eachEvent   = 9 // events of a short history
	waitTimeout = 2 * time.Minute
	sinkName    = "main"
)

var resource = event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}

// Seeds returns the seeds to play: those of LIVES_SEEDS, which is a number of random ones or "=" and one seed, or few random
// ones.
func Seeds(t *testing.T, few int) (seeds []uint64) {
	t.Helper()
	text := cmp.Or(os.Getenv("LIVES_SEEDS"), strconv.Itoa(few))
	one, single := strings.CutPrefix(text, "=")
	n, err := strconv.ParseUint(one, 10, 64)
	switch {
	case err != nil:
		t.Fatalf("LIVES_SEEDS is %q; expected a number of seeds, or = and a seed", text)
	case single:
		return []uint64{n}
	}
	for range n {
		seeds = append(seeds, rand.Uint64()>>32)
	}
	return seeds
}

// world is what outlives a process.
type world struct {
	*testing.T
	bus        Bus
	random     *rand.Rand
	replicated bool
	events     int
	started    int

	active  *process
	older   []*process   // replaced, and still running
	former  *vfs.MemFS   // the disk of a process that was replaced; nil: none
	removed map[int]bool // versions that an operator has removed with their lanes

	repeats bool

	mu      sync.Mutex
	objects []int // by version - 1: the object that got it
	grown   chan struct{}
	passed  map[int]bool // versions that were passed to a sink
	missing uint64       // counted losses
	gaps    int          // that the destination had at the last check
}

// Play plays the history of a seed. Half of them have fail-overs over a replicated state, the others restarts on a journal.
func Play(t *testing.T, seed uint64, bus Bus) {
	w := &world{
		T: t, bus: bus, random: rand.New(rand.NewPCG(seed, 11)), replicated: bus.State != nil && seed%2 == 1,
		removed: map[int]bool{}, passed: map[int]bool{}, grown: make(chan struct{}), repeats: bus.AtLeastOnce,
	}
	t.Logf("seed %d, replicated state: %t; LIVES_SEEDS==%d plays it again", seed, w.replicated, seed)
	defer func() {
		for _, p := range append(w.older, w.active) {
			if p != nil {
				p.stop()
			}
		}
	}()
	w.active = w.start(newDisk())
	w.settle()
	for range eachEvent {
		w.playEvent()
		if w.random.IntN(2) == 0 {
			w.settle()
		}
	}
	w.settle()
	t.Logf("%d events, %d versions, %d counted as lost", w.events, len(w.objects), w.missing)
}

func newDisk() *vfs.MemFS { return vfs.NewCrashableMem() }

// playEvent lets something happen to the destination or to the active process, half of the time in the middle of a burst.
func (w *world) playEvent() {
	w.events++
	before := w.acked()
	if burst := w.random.IntN(2) == 0; burst {
		w.append(100 + w.random.IntN(500))
		if w.random.IntN(2) == 0 {
			await.Condition(w, "the first of a burst", waitTimeout, time.Millisecond, func() string {
				if w.ensureActive(); w.acked() > before {
					return ""
				}
				return "nothing is acknowledged"
			})
		}
	}
	n := w.random.IntN(len(w.bus.Events) + 3)
	if n >= len(w.bus.Events) {
		w.replaceProcess()
		return
	}
	e := w.bus.Events[n]
	w.Logf("version %d: %s", len(w.objects), e.Name)
	effect := e.Do(w.random, w.actMeanwhile)
	w.mu.Lock()
	defer w.mu.Unlock()
	if effect&Removes != 0 {
		maps.Copy(w.removed, w.passed)
	}
	w.repeats = w.repeats || effect&Repeats != 0
}

// actMeanwhile is what exporters do during an event.
func (w *world) actMeanwhile() {
	switch w.random.IntN(3) {
	case 0:
		w.append(50)
	case 1:
		w.append(50)
		w.replaceProcess()
	}
}

// replaceProcess restarts the active process, after a crash or not, or lets another one take over while it runs on.
func (w *world) replaceProcess() {
	p := w.active
	switch n := w.random.IntN(3); {
	case n == 0:
		w.Logf("version %d: crash", len(w.objects))
		crashed := p.crash(vfs.CrashCloneCfg{UnsyncedDataPercent: w.random.IntN(101), RNG: w.random})
		w.older = append(w.older, p)
		w.active = w.start(crashed)
	case n == 1 && w.replicated:
		w.Logf("version %d: fail-over", len(w.objects))
		w.older = append(w.older, p)
		disk := w.former
		if w.former = nil; disk == nil || w.random.IntN(2) == 0 {
			disk = newDisk()
		}
		w.active = w.start(disk)
	default:
		w.Logf("version %d: restart", len(w.objects))
		p.stop()
		w.active = w.start(p.disk)
	}
}

// stopOlder stops processes that were replaced.
func (w *world) stopOlder() {
	for _, p := range w.older {
		p.stop()
		if !p.crashed {
			w.former = p.disk
		}
	}
	w.older = nil
}

// ensureActive returns the active process, which takes over again after it was deposed without a successor: the destination
// went back, and does not know its claim.
func (w *world) ensureActive() *process {
	w.Helper()
	select {
	case <-w.active.ended:
	default:
		return w.active
	}
	if err := w.active.err; !w.replicated || !errors.As(err, new(*sinks.DeposedError)) {
		w.Fatalf("the process has ended: %v", err)
	}
	w.Logf("version %d: it takes over again: %v", len(w.objects), w.active.err)
	w.active.stop()
	w.active = w.start(w.active.disk)
	return w.active
}

// append adds so many versions of random objects to the history of the cluster.
func (w *world) append(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for range n {
		w.objects = append(w.objects, w.random.IntN(objects))
	}
	close(w.grown)
	w.grown = make(chan struct{})
}

// appendEach adds a version of each object.
func (w *world) appendEach() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for o := range objects {
		w.objects = append(w.objects, o)
	}
	close(w.grown)
	w.grown = make(chan struct{})
}

// after returns the versions behind one, and what is closed when there are more.
func (w *world) after(version int) (all []*event.Change, more <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for v := version + 1; v <= len(w.objects) && v <= version+50; v++ {
		all = append(all, change(w.objects[v-1], v))
	}
	return all, w.grown
}

func change(object, version int) *event.Change {
	name := fmt.Sprintf("o%d", object)
	return &event.Change{
		Type: event.Updated, Delta: event.DeltaUpdated, Cluster: "c", Namespace: "default", Name: name, UID: "uid-" + name,
		Resource: resource, ResourceVersion: strconv.Itoa(version), ObservedAt: time.Now().UTC(),
		After: fmt.Appendf(nil, `{"kind":"Pod","v":%d,"filling":%q}`, version, strings.Repeat("x", 200)),
	}
}

// versionOf returns the version of a change by its ID; 0 if it is not one of ours.
func versionOf(id string) int {
	parts := strings.Split(id, "/")
	if len(parts) < 4 || parts[0] != "c" || !strings.HasPrefix(parts[1], "uid-o") {
		return 0
	}
	v, _ := strconv.Atoi(parts[2])
	return v
}

func (w *world) observe(batch []sinks.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range batch {
		w.passed[versionOf(m.Change.ID())] = true
	}
}

func (w *world) acked() int64 {
	acked := w.active.acked.Load()
	for _, p := range w.older {
		acked += p.acked.Load()
	}
	return acked
}

// settle publishes one more version of each object, waits until everything is delivered and the destination was compared
// with that, and checks what it holds.
func (w *world) settle() {
	w.Helper()
	w.stopOlder()
	w.appendEach()
	await.Condition(w, "everything is delivered", waitTimeout, 10*time.Millisecond, func() string {
		p := w.ensureActive()
		cursor, _, err := p.journal.Cursor(sinkName)
		newest := p.journal.Newest()
		if err != nil || int(p.appended.Load()) < len(w.objects) || cursor.Low < newest {
			return fmt.Sprintf("appended %d of %d, delivered %d of %d: %v %s", p.appended.Load(), len(w.objects), cursor.Low, newest, err, p.problems())
		}
		err = w.bus.Compare(p.sink)
		var lost *sinks.LostError
		if errors.As(err, &lost) {
			p.interrupt(lost)
			return "a loss that is delivered again"
		}
		if err != nil {
			return err.Error()
		}
		return p.problems()
	})
	w.check()
}

// check compares what the destination holds with what was appended.
func (w *world) check() {
	w.Helper()
	kept := w.active.keptVersions()
	lanes := map[string]map[string][]int{} // by key and lane
	held := map[int]int{}
	gaps := 0
	for _, r := range w.bus.Read() {
		if strings.Contains(r.ID, "/"+string(event.Gap)+"/") { // only the journal of a process before had what was lost
			gaps++
		}
		if v := versionOf(r.ID); v > 0 {
			if lanes[r.Key] == nil {
				lanes[r.Key] = map[string][]int{}
			}
			lanes[r.Key][r.Lane] = append(lanes[r.Key][r.Lane], v)
			held[v]++
		}
	}
	if gaps > w.gaps {
		w.excuseLost()
	}
	w.gaps = gaps
	newest, uncounted := map[int]int{}, []int(nil)
	var lost []int
	for i, object := range w.objects {
		v := i + 1
		newest[object] = v
		switch {
		case held[v] > 1 && !w.repeats:
			w.Errorf("version %d is there %d times", v, held[v])
		case held[v] > 0 || w.removed[v]:
		case kept[v]:
			lost = append(lost, v)
		default:
			uncounted = append(uncounted, v)
		}
	}
	if len(lost) > 0 {
		w.Errorf("%d versions are missing that the journal keeps: %s", len(lost), ranges(lost))
	}
	// The markers of a take-over stand where a partition had records before: the number may lack as many.
	if n := w.countedMissing(); uint64(len(uncounted)) > n && (n == 0 || !w.replicated) {
		w.Errorf("%d versions are missing, %d are counted as lost: %s", len(uncounted), n, ranges(uncounted))
	}
	if len(lanes) != objects {
		w.Errorf("%d objects are there", len(lanes))
	}
	for key, ofKey := range lanes {
		w.checkObject(key, ofKey, newest)
	}
	if w.Failed() {
		w.FailNow()
	}
}

// checkObject checks the lanes that hold an object: those that it was moved to have the newer versions.
func (w *world) checkObject(key string, lanes map[string][]int, newest map[int]int) {
	w.Helper()
	object := -1
	lastOf := map[string]int{}
	for lane, versions := range lanes {
		object = w.objects[versions[0]-1]
		lastOf[lane] = versions[len(versions)-1]
		if !w.repeats && !slices.IsSorted(versions) {
			w.Errorf("%s goes back in lane %s: %v", key, lane, versions)
		}
	}
	for lane, versions := range lanes {
		if slices.Contains(versions, newest[object]) && lastOf[lane] != newest[object] {
			w.Errorf("%s: behind its newest version %d lane %s has %d", key, newest[object], lane, lastOf[lane])
		}
	}
	if last := slices.Max(slices.Collect(maps.Values(lastOf))); last != newest[object] {
		w.Errorf("%s ends with version %d, and has %d", key, last, newest[object])
	}
}

// ranges shortens a list of ascending numbers.
func ranges(all []int) string {
	var b strings.Builder
	for i, v := range all {
		if i == 0 || all[i-1] != v-1 {
			fmt.Fprintf(&b, " %d", v)
			if i+1 < len(all) && all[i+1] == v+1 {
				b.WriteByte('-')
			}
		} else if i+1 == len(all) || all[i+1] != v+1 {
			fmt.Fprint(&b, v)
		}
	}
	return b.String()
}

// excuseLost counts everything until now as lost.
func (w *world) excuseLost() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.missing += uint64(len(w.objects))
}

func (w *world) countedMissing() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.missing
}
