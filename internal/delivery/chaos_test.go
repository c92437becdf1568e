package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// world is a journal and a destination that fail at random and outlive the pipelines that use them. It checks the invariants
// on every call.
type world struct {
	t       *testing.T
	records []event.Record

	mu           sync.Mutex
	random       *rand.Rand
	received     map[string][]uint64   // by object and topic: what the destination accepted, acknowledged or not, in order
	acked        map[uint64]bool       // what the pipeline got acknowledgements for
	dead         map[uint64]bool       // what is stored as a dead letter
	cursor       event.Cursor          // as stored
	inLane       map[sinks.Lane]bool   // lanes with a running Publish
	leftInFlight map[sinks.Lane]bool   // lanes with messages left in flight by the last Publish
	ackedTo      map[sinks.Lane]uint64 // of this process
	started      uint64                // where this process begins in lanes that the cursor does not name
	failingUntil map[sinks.Lane]time.Time
	killed       bool                           // the process was killed: its writes are lost
	lanes        int                            // of the destination's layout
	using        int                            // of the layout that this process uses
	routed       bool                           // some changes are for another topic, some not for this sink
	marks        map[uint64]map[sinks.Lane]bool // lanes that have a copy of a watermark, by offset
	pipeline     *Pipeline
}

// repartitionCount counts how often lanes were replaced, in all worlds.
var repartitionCount atomic.Int64

func newWorld(t *testing.T, seed uint64, changes, objects int) *world {
	w := &world{
		t:        t,
		random:   rand.New(rand.NewPCG(seed, 1)),
		received: map[string][]uint64{},
		acked:    map[uint64]bool{},
		dead:     map[uint64]bool{},
		marks:    map[uint64]map[sinks.Lane]bool{},
		lanes:    7,
	}
	for i := range changes {
		name := fmt.Sprint("object", w.random.IntN(objects))
		w.records = append(w.records, event.Record{Offset: uint64(i + 1), Change: &event.Change{
			Name: name, UID: name, ResourceVersion: fmt.Sprint(i + 1), Generation: int64(i + 1),
			After: make([]byte, w.random.IntN(2000)),
		}})
	}
	return w
}

// addWatermarks makes every 17th record a watermark.
func (w *world) addWatermarks() {
	for i := range w.records {
		if offset := w.records[i].Offset; offset%17 == 0 && !isNeverAccepted(offset) && !isNeverRoutable(offset) {
			w.records[i].Change = &event.Change{
				Type: event.Watermark, ResourceVersion: fmt.Sprint(offset), Generation: int64(offset), Watermark: &event.WatermarkInfo{Sequence: offset},
			}
			w.marks[offset] = map[sinks.Lane]bool{}
		}
	}
}

// recordWatermark checks a copy of a watermark that the destination accepts: everything of its lane that was read before
// stands before it.
func (w *world) recordWatermark(lane sinks.Lane, m sinks.Message) {
	w.marks[m.Offset][lane] = true
	var n, of int
	if _, err := fmt.Sscanf(string(lane), "%d of %d", &n, &of); err != nil || m.Change.Watermark.Lane != n || m.Change.Watermark.Lanes != of {
		w.t.Errorf("the copy %+v of a watermark is in lane %s", m.Change.Watermark, lane)
	}
	for _, r := range w.records[:m.Offset-1] {
		if r.Change.Type == event.Watermark || isNeverAccepted(r.Offset) || isNeverRoutable(r.Offset) {
			continue
		}
		to := w.routeOf(r.Change)
		if to.Skip || to.Topic != m.Topic || hashOf(r.Change)%of != n {
			continue
		}
		if !slices.Contains(w.received[r.Change.Name+to.topicName()], r.Offset) {
			w.t.Fatalf("lane %s has the watermark %d, and not the change %d", lane, m.Offset, r.Offset)
		}
	}
}

// checkWatermarks checks that each watermark is in every lane of one layout, or more.
func (w *world) checkWatermarks() {
	for offset, lanes := range w.marks {
		to := w.routeOf(w.records[offset-1].Change)
		found := map[int]int{}
		for lane := range lanes {
			var n, of int
			if _, err := fmt.Sscanf(string(lane), "%d of %d", &n, &of); err == nil {
				found[of]++
			}
		}
		complete := to.Skip
		for of, n := range found {
			complete = complete || n == of
		}
		if !complete {
			w.t.Errorf("the watermark %d is in %v only", offset, lanes)
		}
	}
}

// isNeverAccepted reports whether the destination permanently rejects this offset, in Publish or in Lane.
func isNeverAccepted(offset uint64) bool { return offset%97 == 0 }
func isNeverRoutable(offset uint64) bool { return offset%211 == 0 }

func (w *world) happensIn(percent int) bool { return w.random.IntN(100) < percent }

func (w *world) laneOf(c *event.Change) sinks.Lane {
	return worldLane(hashOf(c)%w.using, w.using, w.routeOf(c).topicName())
}

func hashOf(c *event.Change) (h int) {
	for _, b := range []byte(c.Name) {
		h = h*31 + int(b)
	}
	return h
}

func (w *world) AllLanes(c *event.Change, topic *sinks.Template) (all []sinks.Lane, _ error) {
	if want := w.routeOf(c); want.Skip || want.Topic != topic {
		w.t.Errorf("%d is not for the topic %v", c.Generation, topic)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := range w.using {
		all = append(all, worldLane(n, w.using, w.routeOf(c).topicName()))
	}
	return all, nil
}

func (w *world) StandsForSeveral(sinks.Lane) bool { return false }

func worldLane(n, of int, topic string) sinks.Lane {
	return sinks.Lane(strconv.Itoa(n) + " of " + strconv.Itoa(of) + " " + topic)
}

func (w *world) ResumeLanes(lanes []sinks.Lane) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.using = w.lanes
	for _, l := range lanes {
		if l == unroutableLane {
			continue
		}
		if _, err := fmt.Sscanf(string(l), "%d of %d", new(int), &w.using); err != nil {
			w.t.Errorf("lane %q: %v", l, err)
		}
	}
}

func (w *world) PendingRepartitions() []sinks.Repartition {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.using == w.lanes || w.happensIn(30) { // a repartition may be withdrawn
		return nil
	}
	r := sinks.Repartition{Reason: "grown"}
	for _, topic := range []string{"", "elsewhere"} {
		for n := range w.using {
			r.From = append(r.From, worldLane(n, w.using, topic))
		}
		for n := range w.lanes {
			r.To = append(r.To, worldLane(n, w.lanes, topic))
		}
	}
	return []sinks.Repartition{r}
}

func (w *world) ApplyRepartition(r sinks.Repartition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range r.From {
		if w.inLane[l] || w.leftInFlight[l] {
			w.t.Errorf("lane %s is replaced while something of it is under way", l)
		}
	}
	w.using = w.lanes
	w.started = 0 // queued changes moved to other lanes
	repartitionCount.Add(1)
}

var otherTopic = sync.OnceValue(func() *sinks.Template {
	topic, err := sinks.ParseTemplate("elsewhere")
	if err != nil {
		panic(err)
	}
	return topic
})

// routeOf is the Route of the world. The last changes of the journal are not for this sink.
func (w *world) routeOf(c *event.Change) Route {
	switch {
	case !w.routed:
		return Route{}
	case c.Generation%3 == 0, c.Generation > int64(len(w.records)-10):
		return Route{Skip: true}
	case c.Generation%3 == 1:
		return Route{Topic: otherTopic()}
	}
	return Route{}
}

func (r Route) topicName() string {
	if r.Topic == nil {
		return ""
	}
	return r.Topic.String()
}

func (w *world) Read(ctx context.Context, after uint64) ([]event.Record, error) {
	w.mu.Lock()
	n := min(after+1+uint64(w.random.IntN(50)), uint64(len(w.records)))
	w.mu.Unlock()
	if after == n {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return w.records[after:n], nil
}

func (w *world) Settle(_ context.Context, c event.Cursor, dead []event.DeadLetter) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.killed || w.happensIn(10) {
		return errors.New("disk: not written")
	}
	if c.Low < w.cursor.Low {
		w.t.Errorf("cursor goes back from %d to %d", w.cursor.Low, c.Low)
	}
	for _, d := range dead {
		if !isNeverAccepted(d.Offset) && !isNeverRoutable(d.Offset) || d.Reason == "" || d.Change.Generation != int64(d.Offset) {
			w.t.Errorf("false dead letter %d: %q", d.Offset, d.Reason)
		}
		w.dead[d.Offset] = true
	}
	for _, r := range w.records { // I2
		if r.Change.Type == event.Watermark { // see checkWatermarks
			continue
		}
		lane := unroutableLane
		if !isNeverRoutable(r.Offset) {
			lane = w.laneOf(r.Change)
		}
		passed, named := c.Lanes[string(lane)]
		if !named {
			passed = c.High
		}
		if r.Offset <= max(passed, c.Low) && !w.acked[r.Offset] && !w.dead[r.Offset] && !w.routeOf(r.Change).Skip {
			w.t.Errorf("cursor %+v passes %d, which is neither acknowledged nor a dead letter", c, r.Offset)
		}
	}
	w.cursor = c
	if w.happensIn(10) {
		return errors.New("disk: written, but nobody knows")
	}
	return nil
}

func (w *world) Lane(c *event.Change) (sinks.Lane, error) { return w.LaneTo(c, nil) }

func (w *world) LaneTo(c *event.Change, topic *sinks.Template) (sinks.Lane, error) {
	if want := w.routeOf(c); want.Skip || want.Topic != topic {
		w.t.Errorf("%d is not for the topic %v", c.Generation, topic)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if isNeverRoutable(uint64(c.Generation)) {
		return "", &sinks.RejectedError{Reason: "no such topic, ever"}
	}
	return w.laneOf(c), nil
}

func (w *world) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	w.checkCall(lane, batch)
	checkSums(w.t, w.pipeline.backlog)
	w.mu.Lock()
	takes := time.Duration(w.random.IntN(20)) * time.Millisecond
	w.mu.Unlock()
	time.Sleep(takes)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inLane[lane] = false
	told, err := w.randomOutcome(ctx, lane, batch)
	w.leftInFlight[lane] = told < len(batch) && err == nil
	accepted := told
	if told < len(batch) && !isNeverAccepted(batch[told].Offset) && w.happensIn(30) {
		accepted++ // the acknowledgement was lost
	}
	for _, m := range batch[:accepted] {
		if m.Change.Type == event.Watermark {
			w.recordWatermark(lane, m)
			continue
		}
		w.received[m.Change.Name+w.routeOf(m.Change).topicName()] = append(w.received[m.Change.Name+w.routeOf(m.Change).topicName()], m.Offset)
	}
	for _, m := range batch[:told] {
		w.acked[m.Offset] = true
		w.ackedTo[lane] = m.Offset
	}
	return told, err
}

// checkCall checks that the contract allows a call.
func (w *world) checkCall(lane sinks.Lane, batch []sinks.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inLane[lane] {
		w.t.Errorf("two calls at once for lane %s", lane)
	}
	w.inLane[lane] = true
	previous, known := w.ackedTo[lane]
	if !known {
		previous = w.started
	}
	for _, m := range batch {
		if m.Offset <= previous {
			w.t.Errorf("lane %s: %d sent after %d was acknowledged or sent", lane, m.Offset, previous)
		}
		if m.Change.Type != event.Watermark && w.laneOf(m.Change) != lane || m.Change.Generation != int64(m.Offset) || m.Topic != w.routeOf(m.Change).Topic {
			w.t.Errorf("lane %s was given %d, which is not its own", lane, m.Offset)
		}
		previous = m.Offset
	}
}

// randomOutcome returns how many messages the destination acknowledges, and an error.
func (w *world) randomOutcome(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	if w.happensIn(2) {
		w.failingUntil[lane] = time.Now().Add(time.Duration(w.random.IntN(3000)) * time.Millisecond)
	}
	if time.Now().Before(w.failingUntil[lane]) {
		return 0, errors.New("this lane fails")
	}
	n := len(batch)
	if w.happensIn(40) {
		n = w.random.IntN(len(batch))
	}
	for i, m := range batch[:n] {
		if isNeverAccepted(m.Offset) {
			return i, &sinks.RejectedError{Reason: "can never be accepted"}
		}
	}
	switch {
	case n == len(batch):
		return n, nil
	case ctx.Err() != nil:
		return n, ctx.Err()
	case n > 0 && w.happensIn(50):
		return n, nil // the rest is in flight
	case w.happensIn(20):
		return n, &sinks.UnavailableError{Reason: "away", After: time.Duration(w.random.IntN(2)) * 50 * time.Millisecond}
	default:
		return n, errors.New("try again")
	}
}

func (w *world) Close(context.Context) error { return nil }

// runProcess runs a pipeline until f, called concurrently, kills, stops or drains it. It returns the error of Run.
func (w *world) runProcess(f func(p *Pipeline, stop context.CancelFunc)) error {
	w.mu.Lock()
	w.killed, w.inLane, w.leftInFlight = false, map[sinks.Lane]bool{}, map[sinks.Lane]bool{}
	w.ackedTo, w.failingUntil = map[sinks.Lane]uint64{}, map[sinks.Lane]time.Time{}
	w.started = max(w.cursor.High, w.cursor.Low)
	for lane, offset := range w.cursor.Lanes {
		w.ackedTo[sinks.Lane(lane)] = offset // I3 across a restart: nothing that the stored cursor passed is sent again
	}
	cfg := Config{
		Retry:         RetryConfig{Min: 5 * time.Millisecond, Max: 200 * time.Millisecond},
		WindowBytes:   int64(1000 + w.random.IntN(200_000)),
		Workers:       1 + w.random.IntN(5),
		BatchMessages: 1 + w.random.IntN(30),
		Route:         w.routeOf,
	}
	p := New("chaos", w, "", w, w.cursor, cfg, slog.New(slog.DiscardHandler))
	w.pipeline = p
	w.mu.Unlock()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go f(p, stop)
	go func() { // the destination's layout changes while the pipeline works
		w.mu.Lock()
		after := time.Duration(w.random.IntN(3000)) * time.Millisecond
		w.mu.Unlock()
		select {
		case <-time.After(after):
			w.mu.Lock()
			w.lanes++
			w.mu.Unlock()
		case <-ctx.Done():
		}
	}()
	err := p.Run(ctx)
	if s := p.Stats(); s.ContractViolations != 0 {
		w.t.Errorf("%d breaches of contract seen where there were none", s.ContractViolations)
	}
	return err
}

// runRestarts runs pipelines that are killed or stopped at random moments. Sometimes the destination's layout changes
// between two of them.
func (w *world) runRestarts(n int) {
	for range n {
		err := w.runProcess(func(_ *Pipeline, stop context.CancelFunc) {
			w.mu.Lock()
			lives := time.Duration(w.random.IntN(1000)) * time.Millisecond
			w.mu.Unlock()
			time.Sleep(lives)
			w.mu.Lock()
			w.killed = w.happensIn(70)
			w.mu.Unlock()
			stop()
		})
		if !errors.Is(err, context.Canceled) {
			w.t.Errorf("a stopped pipeline returned %v", err)
		}
		w.mu.Lock()
		if w.happensIn(10) {
			w.lanes++
		}
		w.mu.Unlock()
	}
}

// drainAll drains, with further pipelines if storing the last cursor failed.
func (w *world) drainAll() {
	end := uint64(len(w.records))
	for {
		err := w.runProcess(func(p *Pipeline, _ context.CancelFunc) { p.Drain(end) })
		if err == nil {
			break // only the last write of the cursor may have failed otherwise
		}
	}
	if w.cursor.Low != end {
		w.t.Errorf("drained, but the cursor is at %d of %d", w.cursor.Low, end)
	}
}

// checkHistory compares what the destination has with the journal.
func (w *world) checkHistory() {
	expected := map[string][]uint64{}
	for _, r := range w.records {
		to := w.routeOf(r.Change)
		key := r.Change.Name + to.topicName()
		switch {
		case r.Change.Type == event.Watermark:
		case to.Skip:
			if w.dead[r.Offset] {
				w.t.Errorf("%d is a dead letter and not for this sink", r.Offset)
			}
		case isNeverAccepted(r.Offset) || isNeverRoutable(r.Offset):
			if !w.dead[r.Offset] {
				w.t.Errorf("%d was rejected and is no dead letter", r.Offset)
			}
		default:
			expected[key] = append(expected[key], r.Offset)
		}
	}
	for name, want := range expected {
		// I3: a consumer that drops duplicates gets every change once, in journal order.
		if got := firstSeen(w.received[name]); fmt.Sprint(got) != fmt.Sprint(want) {
			w.t.Errorf("%s: first seen %v, want %v", name, got, want)
		}
	}
}

func firstSeen(offsets []uint64) (first []uint64) {
	seen := map[uint64]bool{}
	for _, o := range offsets {
		if !seen[o] {
			first = append(first, o)
		}
		seen[o] = true
	}
	return first
}

func TestNothingIsLostOrReorderedWhateverFails(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, seed, 1500, 60)
				w.drainAll()
				w.checkHistory()
			})
		})
	}
}

// TestEveryChangeStandsBeforeTheWatermark: whatever fails, a watermark in a lane follows every change of that lane that was
// read before it; every lane gets it. Changes that are not for this sink affect no others; each topic keeps its order.
func TestEveryChangeStandsBeforeTheWatermark(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3000+seed, 2000, 60)
				w.routed = seed%3 == 0
				w.addWatermarks()
				w.runRestarts(15)
				w.drainAll()
				w.checkHistory()
				w.checkWatermarks()
			})
		})
	}
	if repartitionCount.Load() == 0 {
		t.Error("no lane was ever replaced: the test has lost its reach")
	}
}
