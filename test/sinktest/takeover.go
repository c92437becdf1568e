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

// RunTakeOver proves that the sink described by h, which is a [sinks.Fenced], turns older processes away and tells what its
// lanes hold. Harness.New returns sinks that can be fenced; each call is another process of one group.
func RunTakeOver(t *testing.T, h Harness) {
	for _, promise := range []struct {
		name string
		test func(testing.TB, Harness)
	}{
		{"AnOlderProcessIsTurnedAwayForGood", turnedAway},
		{"ALaneIsNotedBeforeItsFirstMessage", notedFirst},
		{"ATailTellsWhatALaneHolds", tailTells},
		{"ThePlacesAreNotBehindWhatIsUnderWay", placesCover},
		{"TakeOversInFlightLoseRepeatAndReorderNothing", takeOvers},
	} {
		t.Run(promise.name, func(t *testing.T) { promise.test(t, h) })
	}
}

// group is what processes that take over from each other share: the lanes that are noted, with the newest places.
type group struct {
	mu     sync.Mutex
	places map[sinks.Lane]sinks.Place
	refuse error // what Note answers
}

func newGroup() *group { return &group{places: map[sinks.Lane]sinks.Place{}} }

func (g *group) note(_ context.Context, lanes map[sinks.Lane]sinks.Place) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refuse != nil {
		return g.refuse
	}
	for lane, place := range lanes {
		if _, known := g.places[lane]; !known {
			g.places[lane] = place
		}
	}
	return nil
}

func (g *group) noted() map[sinks.Lane]sinks.Place {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.places)
}

// moved notes newer places.
func (g *group) moved(to map[sinks.Lane]sinks.Place) {
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.Copy(g.places, to)
}

func (g *group) refusing(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refuse = err
}

// process is one that has taken over.
type process struct {
	publisher
	fenced sinks.Fenced
}

// takeOver opens another process, which turns those before away. The caller closes it.
func takeOver(t testing.TB, h Harness, g *group) process {
	t.Helper()
	sink, ok := h.New(t).(sinks.Fenced)
	if !ok {
		t.Fatal("the sink cannot be fenced")
	}
	p := process{publisher{t, sink}, sink}
	claim := sinks.Claim{Group: "sinktest", Owner: "a test", Note: g.note}
	p.eventually("fence", func(ctx context.Context) error {
		return sink.Fence(ctx, claim, slices.Collect(maps.Keys(g.noted())))
	})
	reached(t, sink)
	return p
}

func (p process) tail(lane sinks.Lane, from sinks.Place) (all []sinks.Emitted) {
	p.t.Helper()
	p.eventually("tail", func(ctx context.Context) error {
		all = nil
		return p.fenced.Tail(ctx, map[sinks.Lane]sinks.Place{lane: from}, func(_ sinks.Lane, e sinks.Emitted) error {
			all = append(all, e)
			return nil
		})
	})
	return all
}

func isDeposed(err error) bool {
	var deposed *sinks.DeposedError
	return errors.As(err, &deposed)
}

func turnedAway(t testing.TB, h Harness) {
	f, g := newFactory(), newGroup()
	messages := versions(f, 8, 12)
	older := takeOver(t, h, g)
	defer closeSink(t, older.sink)
	tr := newTruth(h, f, older.publisher, messages)
	half := map[sinks.Lane]int{}
	for lane, all := range tr.lanes {
		half[lane] = len(all) / 2
		older.all(lane, all[:half[lane]])
	}
	newer := takeOver(t, h, g)
	defer closeSink(t, newer.sink)
	for range 2 {
		for lane, all := range tr.lanes {
			older.refused(lane, all[half[lane]:])
		}
	}
	for lane, all := range tr.lanes {
		newer.all(lane, all[half[lane]:])
	}
	tr.once(t)
}

// refused publishes until the process is told that it is deposed, over a network that may break meanwhile. Nothing of the
// batch may be accepted.
func (p process) refused(lane sinks.Lane, batch []sinks.Message) {
	p.t.Helper()
	p.eventually("be turned away", func(ctx context.Context) error {
		n, err := p.publish(ctx, lane, batch)
		if n != 0 {
			p.t.Errorf("lane %s: the older process published %d: %v; want a DeposedError", lane, n, err)
		}
		if n != 0 || isDeposed(err) {
			return nil
		}
		return err
	})
}

func notedFirst(t testing.TB, h Harness) {
	f, g := newFactory(), newGroup()
	p := takeOver(t, h, g)
	defer closeSink(t, p.sink)
	m := f.message(f.change(0, 1))
	lane := p.lane(m.Change)
	if _, noted := g.noted()[lane]; noted {
		t.Skip("the destination has one lane, which is noted already")
	}
	g.refusing(errors.New("the state cannot be written"))
	if n, err := p.publish(t.Context(), lane, []sinks.Message{m}); n != 0 || err == nil {
		t.Errorf("published %d to a lane that could not be noted: %v", n, err)
	}
	for _, d := range h.Read(t) {
		if f.owns(d.ID) {
			t.Errorf("%s is there", d.ID)
		}
	}
	g.refusing(nil)
	p.all(lane, []sinks.Message{m})
	if _, noted := g.noted()[lane]; !noted {
		t.Errorf("lane %s was not noted", lane)
	}
}

func tailTells(t testing.TB, h Harness) {
	f, g := newFactory(), newGroup()
	messages := versions(f, 8, 5)
	for object := range 8 {
		messages = append(messages, f.message(f.deleted(object, 6)))
	}
	messages = append(messages, f.message(f.gap()))
	before := takeOver(t, h, g)
	lanes := before.byLane(messages)
	for lane, batch := range lanes {
		before.all(lane, batch)
	}
	closeSink(t, before.sink)
	p := takeOver(t, h, g)
	defer closeSink(t, p.sink)
	for lane, batch := range lanes {
		all := p.owned(f, lane, g.noted()[lane])
		compareTail(t, h, lane, batch, all)
		if len(all) < 2 {
			continue
		}
		middle := len(all) / 2
		if rest := p.owned(f, lane, all[middle].Place); !slices.Equal(rest, all[middle:]) {
			t.Errorf("lane %s from %d: %v\nwant %v", lane, all[middle].Place, rest, all[middle:])
		}
		if rest := p.owned(f, lane, all[len(all)-1].Place+1); len(rest) != 0 {
			t.Errorf("lane %s has %v behind its end", lane, rest)
		}
	}
	gone := errors.New("enough")
	p.eventually("end a tail", func(ctx context.Context) error {
		err := p.fenced.Tail(ctx, g.noted(), func(sinks.Lane, sinks.Emitted) error { return gone })
		if errors.Is(err, gone) {
			return nil
		}
		return errors.Join(errors.New("an error of the caller became another one"), err) // of a bad network, perhaps
	})
}

// owned is what a tail has of the factory's.
func (p process) owned(f *factory, lane sinks.Lane, from sinks.Place) []sinks.Emitted {
	p.t.Helper()
	return slices.DeleteFunc(p.tail(lane, from), func(e sinks.Emitted) bool { return !f.owns(e.ID) })
}

// compareTail compares what a tail has with what was published. A record that stands for a change besides its own, as a
// tombstone, is the same once more.
func compareTail(t testing.TB, h Harness, lane sinks.Lane, want []sinks.Message, got []sinks.Emitted) {
	t.Helper()
	var told []event.Emitted
	for i, e := range got {
		if i > 0 && e.Place <= got[i-1].Place {
			t.Errorf("lane %s: place %d follows %d", lane, e.Place, got[i-1].Place)
		}
		if len(told) == 0 || told[len(told)-1] != e.Emitted {
			told = append(told, e.Emitted)
		}
	}
	if h.ObjectsApart {
		slices.SortFunc(told, func(a, b event.Emitted) int { return strings.Compare(a.ID, b.ID) })
		want = slices.Clone(want)
		slices.SortFunc(want, func(a, b sinks.Message) int { return strings.Compare(a.Change.ID(), b.Change.ID()) })
	}
	if len(told) != len(want) {
		t.Fatalf("lane %s: %d messages are told of, want %d", lane, len(told), len(want))
	}
	for i, m := range want {
		if w := m.Change.Emitted(); told[i] != w {
			t.Errorf("lane %s, message %d: told %+v\nwant %+v", lane, i, told[i], w)
		}
	}
}

// placesCover takes places between two halves: the second lies behind them, and some of what was acknowledged before may.
func placesCover(t testing.TB, h Harness) {
	f, g := newFactory(), newGroup()
	p := takeOver(t, h, g)
	lanes := p.byLane(versions(f, 8, 10))
	for lane, batch := range lanes {
		p.all(lane, batch[:len(batch)/2])
	}
	places := p.fenced.Places()
	for lane, batch := range lanes {
		if place, known := places[lane]; !known || place < g.noted()[lane] {
			t.Errorf("lane %s: place %d, %t, noted at %d", lane, place, known, g.noted()[lane])
		}
		p.all(lane, batch[len(batch)/2:])
	}
	closeSink(t, p.sink)
	next := takeOver(t, h, g)
	defer closeSink(t, next.sink)
	behind, published := 0, 0
	for lane, batch := range lanes {
		all, second := next.owned(f, lane, places[lane]), batch[len(batch)/2:]
		compareTail(t, h, lane, second, all[max(0, len(all)-len(second)):])
		behind, published = behind+len(all), published+len(batch)
	}
	if behind >= published {
		t.Errorf("all %d messages lie behind the places: they go on nowhere", behind)
	}
}

// takeOvers lets processes take over from each other while batches are in flight. The older one goes on until it is told.
func takeOvers(t testing.TB, h Harness) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 6))
	const lives, objects, each = 8, 16, 40
	f, g := newFactory(), newGroup()
	p := takeOver(t, h, g)
	messages := versions(f, objects, each)
	tr := newTruth(h, f, p.publisher, messages)
	begin := map[sinks.Lane]int{} // what is covered by the places of the group
	for life := 1; ; life++ {
		reign := p.reign(tr.lanes, p.rest(g, tr.lanes, begin), random.Uint64())
		if life == lives {
			reign.running.Wait()
			closeSink(t, p.sink)
			break
		}
		reign.mark(g, begin, random)
		next := takeOver(t, h, g)
		reign.running.Wait() // it has published all it could
		closeSink(t, p.sink)
		p = next
	}
	tr.once(t)
}

// rest is what of each lane is neither covered nor in the tail.
func (p process) rest(g *group, lanes map[sinks.Lane][]sinks.Message, begin map[sinks.Lane]int) map[sinks.Lane]int {
	p.t.Helper()
	from, places := map[sinks.Lane]int{}, g.noted()
	for lane, messages := range lanes {
		place, noted := places[lane]
		if from[lane] = begin[lane]; !noted {
			continue
		}
		held := map[string]bool{}
		for _, e := range p.tail(lane, place) {
			held[e.ID] = true
		}
		for from[lane] < len(messages) && held[messages[from[lane]].Change.ID()] {
			from[lane]++
		}
		for _, m := range messages[from[lane]:] {
			if held[m.Change.ID()] {
				p.t.Errorf("lane %s has %s, and not what comes before it", lane, m.Change.ID())
			}
		}
	}
	return from
}

// reign is the time in which a process publishes.
type reign struct {
	p       process
	running sync.WaitGroup // ends when all is published, or the process was told that it is deposed

	mu    sync.Mutex
	moved *sync.Cond
	given map[sinks.Lane]int // messages handed to Publish
	acked map[sinks.Lane]int
	ended map[sinks.Lane]bool
}

// reign publishes all lanes concurrently.
func (p process) reign(lanes map[sinks.Lane][]sinks.Message, from map[sinks.Lane]int, seed uint64) *reign {
	r := &reign{p: p, given: maps.Clone(from), acked: maps.Clone(from), ended: map[sinks.Lane]bool{}}
	r.moved = sync.NewCond(&r.mu)
	for lane, messages := range lanes {
		seed++
		random, start := rand.New(rand.NewPCG(seed, 7)), from[lane]
		r.running.Go(func() { r.publish(lane, messages, start, random) })
	}
	return r
}

func (r *reign) publish(lane sinks.Lane, messages []sinks.Message, at int, random *rand.Rand) {
	defer r.note(func() { r.ended[lane] = true })
	r.p.eventually("publish "+string(lane), func(ctx context.Context) error {
		for at < len(messages) {
			to := min(len(messages), at+1+random.IntN(4))
			r.note(func() { r.given[lane] = max(r.given[lane], to) })
			n, err := r.p.publish(ctx, lane, messages[at:to])
			at += n
			r.note(func() { r.acked[lane] = at })
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

func (r *reign) note(what func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	what()
	r.moved.Broadcast()
}

// mark waits until something was published, takes the places, and notes them when what was given until then is acknowledged.
func (r *reign) mark(g *group, begin map[sinks.Lane]int, random *rand.Rand) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, lane := range slices.Sorted(maps.Keys(r.given)) {
		goal := r.acked[lane] + random.IntN(3)
		for r.acked[lane] < goal && !r.ended[lane] {
			r.moved.Wait()
		}
	}
	places := r.p.fenced.Places()
	marks := maps.Clone(r.given)
	for lane, mark := range marks {
		for r.acked[lane] < mark && !r.ended[lane] {
			r.moved.Wait()
		}
		if r.acked[lane] < mark {
			return
		}
	}
	for lane := range places {
		begin[lane] = marks[lane]
	}
	g.moved(places)
}
