package sinktest

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// RunFailover checks that the sink described by h, which is a [sinks.Fenced], locks out older processes and reads back its
// lanes. Each call of Harness.New is another process of one group.
func RunFailover(t *testing.T, h Harness) {
	for _, promise := range []struct {
		name string
		test func(testing.TB, Harness)
	}{
		{"AnOlderProcessIsLockedOutForGood", testOlderProcessIsDeposed},
		{"ALaneIsRecordedBeforeItsFirstMessage", testLanesAreRecordedFirst},
		{"ATailHasEverythingALaneHolds", testTailContents},
		{"ATailHasNothingOfAnotherDeployment", testTailOfSharedDestination},
		{"ProgressDoesNotPassMessagesInFlight", testProgressCoversInFlight},
		{"FailoversInFlightLoseRepeatAndReorderNothing", testInFlightFailovers},
	} {
		t.Run(promise.name, func(t *testing.T) { promise.test(t, h) })
	}
}

// exporterGroup is what the processes of a group share: the recorded lanes with their newest positions.
type exporterGroup struct {
	name      string
	mu        sync.Mutex
	progress  map[sinks.Lane]sinks.LanePosition
	recordErr error // returned by recordLanes
}

func newExporterGroup() *exporterGroup {
	return &exporterGroup{name: "sinktest", progress: map[sinks.Lane]sinks.LanePosition{}}
}

func (g *exporterGroup) recordLanes(_ context.Context, lanes map[sinks.Lane]sinks.LanePosition) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.recordErr != nil {
		return g.recordErr
	}
	for lane, place := range lanes {
		if _, known := g.progress[lane]; !known {
			g.progress[lane] = place
		}
	}
	return nil
}

func (g *exporterGroup) recordedLanes() map[sinks.Lane]sinks.LanePosition {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.progress)
}

// positionOf returns the position of a lane, which is recorded once.
func positionOf(all map[sinks.Lane]sinks.LanePosition, lane sinks.Lane) (position sinks.LanePosition, known bool) {
	for recorded, at := range all {
		if name, _ := sinks.SplitRecordedLane(recorded); name == lane {
			return at, true
		}
	}
	return 0, false
}

func (g *exporterGroup) recordedPosition(lane sinks.Lane) sinks.LanePosition {
	position, _ := positionOf(g.recordedLanes(), lane)
	return position
}

// updateProgress stores newer positions.
func (g *exporterGroup) updateProgress(to map[sinks.Lane]sinks.LanePosition) {
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.Copy(g.progress, to)
}

func (g *exporterGroup) setRecordErr(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.recordErr = err
}

// activeProcess is a process after its Fence.
type activeProcess struct {
	publisher
	fenced sinks.Fenced
}

// failOver opens another process, which locks out those before it. The caller closes it.
func failOver(t testing.TB, h Harness, g *exporterGroup) activeProcess {
	t.Helper()
	sink, ok := h.New(t).(sinks.Fenced)
	if !ok {
		t.Fatal("the sink cannot be fenced")
	}
	p := activeProcess{publisher{t, sink}, sink}
	claim := sinks.Claim{Group: g.name, Deployment: "id-of-" + g.name, Owner: "a test", RecordLanes: g.recordLanes}
	p.retryUntilDone("fence", func(ctx context.Context) error {
		waiting, err := sink.Fence(ctx, claim, slices.Collect(maps.Keys(g.recordedLanes())))
		return errors.Join(err, errors.Join(slices.Collect(maps.Values(waiting))...))
	})
	awaitReachable(t, sink)
	return p
}

func (p activeProcess) readTail(lane sinks.Lane, from sinks.LanePosition) (all []sinks.Emitted) {
	p.t.Helper()
	p.retryUntilDone("tail", func(ctx context.Context) error {
		all = nil
		waiting, err := p.fenced.ReadTail(ctx, map[sinks.Lane]sinks.Tail{lane: {From: from}}, func(_ sinks.Lane, e sinks.Emitted) error {
			all = append(all, e)
			return nil
		})
		return errors.Join(err, waiting[lane])
	})
	return all
}

func isDeposed(err error) bool {
	var deposed *sinks.DeposedError
	return errors.As(err, &deposed)
}

func testOlderProcessIsDeposed(t testing.TB, h Harness) {
	f, g := newChangeFactory(), newExporterGroup()
	messages := makeVersions(f, 8, 12)
	older := failOver(t, h, g)
	defer closeSink(t, older.sink)
	tr := newPublishedTruth(h, f, older.publisher, messages)
	half := map[sinks.Lane]int{}
	for lane, all := range tr.lanes {
		half[lane] = len(all) / 2
		older.publishAll(lane, all[:half[lane]])
	}
	newer := failOver(t, h, g)
	defer closeSink(t, newer.sink)
	for range 2 {
		for lane, all := range tr.lanes {
			older.publishUntilDeposed(lane, all[half[lane]:])
		}
	}
	for lane, all := range tr.lanes {
		newer.publishAll(lane, all[half[lane]:])
	}
	tr.checkOnce(t)
}

// publishUntilDeposed publishes until the process gets a DeposedError, over a network that may break meanwhile. The
// destination must accept nothing of the batch.
func (p activeProcess) publishUntilDeposed(lane sinks.Lane, batch []sinks.Message) {
	p.t.Helper()
	p.retryUntilDone("be deposed", func(ctx context.Context) error {
		n, err := p.publishBatch(ctx, lane, batch)
		if n != 0 {
			p.t.Errorf("lane %s: the older process published %d: %v; want a DeposedError", lane, n, err)
		}
		if n != 0 || isDeposed(err) {
			return nil
		}
		return err
	})
}

func testLanesAreRecordedFirst(t testing.TB, h Harness) {
	f, g := newChangeFactory(), newExporterGroup()
	p := failOver(t, h, g)
	defer closeSink(t, p.sink)
	m := f.newMessage(f.newChange(0, 1))
	lane := p.laneOf(m.Change)
	if _, noted := positionOf(g.recordedLanes(), lane); noted {
		t.Skip("the destination has one lane, which is recorded already")
	}
	g.setRecordErr(errors.New("the state cannot be written"))
	if n, err := p.publishBatch(t.Context(), lane, []sinks.Message{m}); n != 0 || err == nil {
		t.Errorf("published %d to a lane that could not be recorded: %v", n, err)
	}
	for _, d := range h.Read(t) {
		if f.ownsID(d.ID) {
			t.Errorf("%s is there", d.ID)
		}
	}
	g.setRecordErr(nil)
	p.publishAll(lane, []sinks.Message{m})
	if _, noted := positionOf(g.recordedLanes(), lane); !noted {
		t.Errorf("lane %s was not recorded", lane)
	}
}

func testTailContents(t testing.TB, h Harness) {
	f, g := newChangeFactory(), newExporterGroup()
	messages := makeVersions(f, 8, 5)
	for object := range 8 {
		messages = append(messages, f.newMessage(f.newDeleted(object, 6)))
	}
	messages = append(messages, f.newMessage(f.newGap()))
	before := failOver(t, h, g)
	lanes := before.byLane(messages)
	for lane, batch := range lanes {
		before.publishAll(lane, batch)
	}
	closeSink(t, before.sink)
	p := failOver(t, h, g)
	defer closeSink(t, p.sink)
	for lane, batch := range lanes {
		all := p.readOwnTail(f, lane, g.recordedPosition(lane))
		compareTail(t, h, lane, batch, all)
		if len(all) < 2 {
			continue
		}
		middle := len(all) / 2
		if rest := p.readOwnTail(f, lane, all[middle].Position); !slices.Equal(rest, all[middle:]) {
			t.Errorf("lane %s from %d: %v\nwant %v", lane, all[middle].Position, rest, all[middle:])
		}
		if rest := p.readOwnTail(f, lane, all[len(all)-1].Position+1); len(rest) != 0 {
			t.Errorf("lane %s has %v after its end", lane, rest)
		}
	}
	gone, tails := errors.New("stop here"), map[sinks.Lane]sinks.Tail{}
	for lane, position := range g.recordedLanes() {
		tails[lane] = sinks.Tail{From: position}
	}
	p.retryUntilDone("end a tail", func(ctx context.Context) error {
		_, err := p.fenced.ReadTail(ctx, tails, func(sinks.Lane, sinks.Emitted) error { return gone })
		if errors.Is(err, gone) {
			return nil
		}
		return errors.Join(errors.New("the error of the callback was not returned"), err) // err may be one of the network
	})
}

// testTailOfSharedDestination has another deployment, and an exporter without a state, write newer versions of objects with
// the same names, as exporters of other clusters do.
func testTailOfSharedDestination(t testing.TB, h Harness) {
	f, g, other := newChangeFactory(), newExporterGroup(), newExporterGroup()
	other.name = "another"
	messages := makeVersions(f, 8, 4)
	before := failOver(t, h, g)
	lanes := before.byLane(messages)
	for lane, batch := range lanes {
		before.publishAll(lane, batch)
	}
	stranger := failOver(t, h, other)
	unfenced := publisher{t, h.New(t)}
	awaitReachable(t, unfenced.sink)
	for object := range 8 {
		for version, by := range map[int]publisher{1000: stranger.publisher, 2000: unfenced} {
			m := f.newMessage(f.newChange(object, version))
			by.publishAll(by.laneOf(m.Change), []sinks.Message{m})
		}
	}
	for _, s := range []sinks.Sink{before.sink, stranger.sink, unfenced.sink} {
		closeSink(t, s)
	}
	p := failOver(t, h, g)
	defer closeSink(t, p.sink)
	for lane, batch := range lanes {
		compareTail(t, h, lane, batch, p.readOwnTail(f, lane, g.recordedPosition(lane)))
	}
}

// readOwnTail returns the messages of the factory in a tail.
func (p activeProcess) readOwnTail(f *changeFactory, lane sinks.Lane, from sinks.LanePosition) []sinks.Emitted {
	p.t.Helper()
	return slices.DeleteFunc(p.readTail(lane, from), func(e sinks.Emitted) bool { return !f.ownsID(e.ID) })
}

// compareTail compares a tail with what was published. A second record of the same change, such as a tombstone, counts as
// one with it.
func compareTail(t testing.TB, h Harness, lane sinks.Lane, want []sinks.Message, got []sinks.Emitted) {
	t.Helper()
	var emitted []event.EmittedRecord
	for i, e := range got {
		if i > 0 && e.Position <= got[i-1].Position {
			t.Errorf("lane %s: position %d follows %d", lane, e.Position, got[i-1].Position)
		}
		if len(emitted) == 0 || emitted[len(emitted)-1] != e.EmittedRecord {
			emitted = append(emitted, e.EmittedRecord)
		}
	}
	if h.OrderPerObject {
		slices.SortFunc(emitted, func(a, b event.EmittedRecord) int { return strings.Compare(a.ID, b.ID) })
		want = slices.Clone(want)
		slices.SortFunc(want, func(a, b sinks.Message) int { return strings.Compare(a.Change.ID(), b.Change.ID()) })
	}
	if len(emitted) != len(want) {
		t.Fatalf("lane %s: the tail has %d messages, want %d", lane, len(emitted), len(want))
	}
	for i, m := range want {
		if w := m.Change.EmittedRecord(); emitted[i] != w {
			t.Errorf("lane %s, message %d: %+v\nwant %+v", lane, i, emitted[i], w)
		}
	}
}

// testProgressCoversInFlight takes the progress between two halves: the second half lies after it, and part of the first
// may.
func testProgressCoversInFlight(t testing.TB, h Harness) {
	f, g := newChangeFactory(), newExporterGroup()
	p := failOver(t, h, g)
	lanes := p.byLane(makeVersions(f, 8, 10))
	for lane, batch := range lanes {
		p.publishAll(lane, batch[:len(batch)/2])
	}
	progress := p.fenced.LaneProgress()
	for lane, batch := range lanes {
		if place, known := positionOf(progress, lane); !known || place < g.recordedPosition(lane) {
			t.Errorf("lane %s: position %d, %t, recorded at %d", lane, place, known, g.recordedPosition(lane))
		}
		p.publishAll(lane, batch[len(batch)/2:])
	}
	closeSink(t, p.sink)
	next := failOver(t, h, g)
	defer closeSink(t, next.sink)
	after, published := 0, 0
	for lane, batch := range lanes {
		from, _ := positionOf(progress, lane)
		all, second := next.readOwnTail(f, lane, from), batch[len(batch)/2:]
		compareTail(t, h, lane, second, all[max(0, len(all)-len(second)):])
		after, published = after+len(all), published+len(batch)
	}
	if after >= published {
		t.Errorf("all %d messages lie after the progress: it does not advance", after)
	}
}

// testInFlightFailovers has processes take over from each other while batches are in flight. The older one publishes until
// it is deposed.
func testInFlightFailovers(t testing.TB, h Harness) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 6))
	const lives, objects, each = 8, 16, 40
	f, g := newChangeFactory(), newExporterGroup()
	p := failOver(t, h, g)
	messages := makeVersions(f, objects, each)
	tr := newPublishedTruth(h, f, p.publisher, messages)
	begin := map[sinks.Lane]int{} // what the progress of the group covers
	for life := 1; ; life++ {
		term := p.startTerm(tr.lanes, p.unpublishedFrom(g, tr.lanes, begin), random.Uint64())
		if life == lives {
			term.running.Wait()
			closeSink(t, p.sink)
			break
		}
		term.recordProgress(g, begin, random)
		next := failOver(t, h, g)
		term.running.Wait() // it has published all it could
		closeSink(t, p.sink)
		p = next
	}
	tr.checkOnce(t)
}

// unpublishedFrom returns the index of the first message of each lane that is neither covered nor in the tail.
func (p activeProcess) unpublishedFrom(g *exporterGroup, lanes map[sinks.Lane][]sinks.Message,
	begin map[sinks.Lane]int,
) map[sinks.Lane]int {
	p.t.Helper()
	from, progress := map[sinks.Lane]int{}, g.recordedLanes()
	for lane, messages := range lanes {
		place, noted := positionOf(progress, lane)
		if from[lane] = begin[lane]; !noted {
			continue
		}
		held := map[string]bool{}
		for _, e := range p.readTail(lane, place) {
			held[e.ID] = true
		}
		for from[lane] < len(messages) && held[messages[from[lane]].Change.ID()] {
			from[lane]++
		}
		for _, m := range messages[from[lane]:] {
			if held[m.Change.ID()] {
				p.t.Errorf("lane %s has %s, but not the message before it", lane, m.Change.ID())
			}
		}
	}
	return from
}

// publishingTerm is the term of one process: it publishes until everything is published or it is deposed.
type publishingTerm struct {
	p       activeProcess
	running sync.WaitGroup // one per lane

	mu    sync.Mutex
	moved *sync.Cond
	given map[sinks.Lane]int // messages handed to Publish
	acked map[sinks.Lane]int
	ended map[sinks.Lane]bool
}

// startTerm publishes all lanes concurrently.
func (p activeProcess) startTerm(lanes map[sinks.Lane][]sinks.Message, from map[sinks.Lane]int,
	seed uint64,
) *publishingTerm {
	r := &publishingTerm{p: p, given: maps.Clone(from), acked: maps.Clone(from), ended: map[sinks.Lane]bool{}}
	r.moved = sync.NewCond(&r.mu)
	for lane, messages := range lanes {
		seed++
		random, start := rand.New(rand.NewPCG(seed, 7)), from[lane]
		r.running.Go(func() { r.publishLane(lane, messages, start, random) })
	}
	return r
}

func (r *publishingTerm) publishLane(lane sinks.Lane, messages []sinks.Message, at int, random *rand.Rand) {
	defer r.updateTerm(func() { r.ended[lane] = true })
	r.p.retryUntilDone("publish "+string(lane), func(ctx context.Context) error {
		for at < len(messages) {
			to := min(len(messages), at+1+random.IntN(4))
			r.updateTerm(func() { r.given[lane] = max(r.given[lane], to) })
			n, err := r.p.publishBatch(ctx, lane, messages[at:to])
			at += n
			r.updateTerm(func() { r.acked[lane] = at })
			if isDeposed(err) {
				return nil
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (r *publishingTerm) updateTerm(what func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	what()
	r.moved.Broadcast()
}

// recordProgress waits until something was published, takes the progress, and stores it when everything handed to Publish
// until then is acknowledged.
func (r *publishingTerm) recordProgress(g *exporterGroup, begin map[sinks.Lane]int, random *rand.Rand) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, lane := range slices.Sorted(maps.Keys(r.given)) {
		goal := r.acked[lane] + random.IntN(3)
		for r.acked[lane] < goal && !r.ended[lane] {
			r.moved.Wait()
		}
	}
	progress := r.p.fenced.LaneProgress()
	targets := maps.Clone(r.given)
	for lane, target := range targets {
		for r.acked[lane] < target && !r.ended[lane] {
			r.moved.Wait()
		}
		if r.acked[lane] < target {
			return
		}
	}
	for recorded := range progress {
		lane, _ := sinks.SplitRecordedLane(recorded)
		begin[lane] = targets[lane]
	}
	g.updateProgress(progress)
}
