package index

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	asked "github.com/kubecdc/kubecdc/internal/history"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

var pods = event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}

// world is a topic, and a cluster, with an exporter that delivers its changes there: each lane at its own pace.
type world struct {
	t       *testing.T
	begin   time.Time // about now: the end of a snapshot does not wait long for lanes that lag
	random  *rand.Rand
	lanes   [][]sinks.StoredRecord
	first   []int64
	pending [][]*event.Change // by lane, not delivered yet
	version int
	now     map[string]int // version, by name
	states  map[int]map[string]int
	sure    int             // everything is known from this version on
	rows    map[string]bool // IDs of what was delivered
	read    int             // records of lane 1 that were read before
	breakAt int             // records until a reading fails; 0: never
}

func newWorld(t *testing.T, seed uint64, lanes int) *world {
	return &world{t: t, begin: time.Now().Truncate(time.Millisecond).UTC(), random: rand.New(rand.NewPCG(seed, 1)), lanes: make([][]sinks.StoredRecord, lanes), first: make([]int64, lanes),
		pending: make([][]*event.Change, lanes), now: map[string]int{}, states: map[int]map[string]int{}, rows: map[string]bool{}}
}

func (w *world) at() time.Time { return w.begin.Add(time.Duration(w.version) * time.Millisecond) }

// step is the next version of the cluster.
func (w *world) step() { w.version++ }

func (w *world) record() { w.states[w.version] = maps.Clone(w.now) }

func (w *world) emit(c *event.Change) {
	c.Cluster, c.Resource, c.ObservedAt = "c", pods, w.at()
	lane := 0 // that of control records
	if c.Name != "" {
		c.Namespace, c.UID = "ns", "u-"+c.Name
		lane = (int(c.Name[1]) + 1) % len(w.lanes)
	}
	w.pending[lane] = append(w.pending[lane], c)
}

func body(name string, version int) []byte {
	return fmt.Appendf(nil, `{"metadata":{"name":%q,"resourceVersion":"%d"},"spec":{"n":%d}}`, name, version, version)
}

// change makes a change. If nothing is watched, the exporter does not see it.
func (w *world) change(watched bool) {
	w.step()
	name := fmt.Sprint("p", w.random.IntN(9), w.random.IntN(9))
	c := &event.Change{Type: event.Added, Name: name, ResourceVersion: strconv.Itoa(w.version), ChangedAt: event.ChangeTime{At: w.at()}}
	if _, exists := w.now[name]; exists {
		if c.Type = event.Updated; w.random.IntN(3) == 0 {
			c.Type = event.Deleted
		}
	}
	delete(w.now, name)
	if c.Type != event.Deleted {
		w.now[name], c.After = w.version, body(name, w.version)
	}
	w.record()
	if watched {
		w.emit(c)
	}
}

// list emits everything that exists, behind a gap if something was missed.
func (w *world) list(gap bool) {
	w.step()
	w.record()
	if w.sure = w.version; gap {
		w.emit(&event.Change{Type: event.Gap, ResourceVersion: strconv.Itoa(w.version), Gap: &event.GapInfo{To: strconv.Itoa(w.version), Reason: "lost"}})
	}
	id := fmt.Sprint("S", w.version)
	w.emit(&event.Change{Type: event.SnapshotBegin, Snapshot: &event.SnapshotInfo{ID: id}})
	for _, name := range slices.Sorted(maps.Keys(w.now)) {
		version := w.now[name]
		w.emit(&event.Change{Type: event.Snapshot, Name: name, ResourceVersion: strconv.Itoa(version), ListVersion: strconv.Itoa(w.version),
			Snapshot: &event.SnapshotInfo{ID: id}, After: body(name, version)})
	}
	w.emit(&event.Change{Type: event.SnapshotEnd, ResourceVersion: strconv.Itoa(w.version),
		Snapshot: &event.SnapshotInfo{ID: id, Position: strconv.Itoa(w.version), Count: len(w.now)}})
}

// deliver appends records to lanes; all of some lanes, and a part of others.
func (w *world) deliver(all bool) {
	for lane, waiting := range w.pending {
		n := len(waiting)
		if !all {
			n = w.random.IntN(n + 1)
		}
		for _, c := range waiting[:n] {
			w.store(lane, c)
			if c.Name != "" {
				w.rows[c.ID()] = true
			}
		}
		w.pending[lane] = waiting[n:]
		if back := min(w.random.IntN(8), n); w.random.IntN(3) == 0 { // a restart repeats a block
			for _, c := range waiting[n-back : n] {
				w.store(lane, c)
			}
		}
	}
}

func (w *world) store(lane int, c *event.Change) {
	at := w.first[lane]
	if n := len(w.lanes[lane]); n > 0 {
		at = w.lanes[lane][n-1].Position + 1
	}
	key := c.Key()
	headers := map[string]string{format.HeaderID: c.ID(), format.HeaderKey: key, format.HeaderType: string(c.Type), format.HeaderCluster: c.Cluster}
	header := func(name string) string { return headers[name] }
	w.lanes[lane] = append(w.lanes[lane], sinks.StoredRecord{Position: at, Key: key, Value: format.AppendJSON(nil, c), Header: header})
}

func (w *world) Targets(context.Context, ...string) ([]string, error) { return []string{"pods"}, nil }

func (w *world) StoredLanes(context.Context, string) (all []sinks.StoredLane, err error) {
	for i, lane := range w.lanes {
		l := sinks.StoredLane{Target: "pods", Index: i, Count: len(w.lanes), First: w.first[i], End: w.first[i], Truncated: w.first[i] > 0}
		if n := len(lane); n > 0 {
			l.End = lane[n-1].Position + 1
		}
		all = append(all, l)
	}
	return all, nil
}

var errBroken = errors.New("broken")

func (w *world) ReadStored(_ context.Context, spans []sinks.StoredSpan, each func(sinks.StoredRecord) error) error {
	for i, s := range spans {
		for _, r := range w.lanes[s.Index] {
			if r.Position < s.From || r.Position >= s.To {
				continue
			}
			if w.breakAt--; w.breakAt == 0 {
				return errBroken
			}
			r.Lane = i
			if err := each(r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *world) Close(context.Context) error { return nil }

// fill fills an index, by a process of its own.
func (w *world) fill(dir string) error {
	s := &Source{Dir: dir, Of: "it", Reader: w, Say: func(string) {}}
	return s.Fill(w.t.Context())
}

// must fills the index through processes that end in between.
func (w *world) must(dir string) {
	w.t.Helper()
	for {
		w.breakAt = w.random.IntN(200)
		err := w.fill(dir)
		if err == nil {
			return
		}
		if !errors.Is(err, errBroken) {
			w.t.Fatal(err)
		}
	}
}

// state returns what an index has at a version.
func (w *world) state(dir string, version int) map[string]int {
	w.t.Helper()
	s, err := history.Open(history.Folder(dir))
	if err != nil {
		w.t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // it was read
	found := map[string]int{}
	for row, err := range s.StateAt(w.t.Context(), w.begin.Add(time.Duration(version)*time.Millisecond), history.Match{}) {
		if err != nil {
			w.t.Fatal(err)
		}
		if found[row.Name], err = strconv.Atoi(row.ResourceVersion); err != nil {
			w.t.Error(err)
		}
		if row.Object != string(body(row.Name, found[row.Name])) {
			w.t.Errorf("%s: %s", row.Name, row.Object)
		}
	}
	return found
}

// isUnknown reports whether the history names doubts about a version.
func (w *world) isUnknown(dir string, version int) bool {
	w.t.Helper()
	h, err := asked.Open(dir)
	if err != nil {
		w.t.Fatal(err)
	}
	defer h.Close() //nolint:errcheck // it was read
	d, err := h.DoubtAt(w.t.Context(), asked.Scope{}, asked.Moment{Time: w.begin.Add(time.Duration(version) * time.Millisecond)})
	if err != nil {
		w.t.Fatal(err)
	}
	return d.Any()
}

// rowsOf returns the rows of an index by what its changes are known by.
func (w *world) rowsOf(dir string) (all []history.Facts) {
	w.t.Helper()
	s, err := history.Open(history.Folder(dir))
	if err != nil {
		w.t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // it was read
	for row, err := range s.Rows(w.t.Context(), history.Query{}) {
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, row.Facts)
	}
	return all
}

func lessAtOnce(t *testing.T) {
	changes, ahead, least := batchChanges, maxAheadItems, minAheadItems
	batchChanges, maxAheadItems, minAheadItems = 50, 60, 2
	t.Cleanup(func() { batchChanges, maxAheadItems, minAheadItems = changes, ahead, least })
}

// TestStatesOfAnIndexAreThoseOfTheCluster with lanes that lag, blocks that come again, snapshots behind changes that
// nothing watched, and processes that end at any record: nothing that exists vanishes meanwhile, no row is lost or
// doubled, and in the end the states at all moments are those of the cluster.
func TestStatesOfAnIndexAreThoseOfTheCluster(t *testing.T) {
	lessAtOnce(t)
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w, dir := newWorld(t, seed, 1+int(seed%4)), filepath.Join(t.TempDir(), "index")
			w.list(false)
			unknown := 0
			for range 8 {
				for range w.random.IntN(40) {
					w.change(true)
				}
				if w.random.IntN(3) == 0 {
					w.deliver(true) // what a lost journal had is delivered, or never
					for range w.random.IntN(10) {
						w.change(false)
					}
					w.list(true)
				}
				w.deliver(false)
				w.must(dir)
				if len(w.rows) == 0 {
					continue
				}
				got := w.state(dir, w.version)
				for name, version := range w.now {
					c := event.Change{Type: event.Added, Cluster: "c", UID: "u-" + name, ResourceVersion: strconv.Itoa(version)}
					updated := c
					updated.Type = event.Updated
					if (w.rows[c.ID()] || w.rows[updated.ID()]) && got[name] != version {
						t.Fatalf("%s vanished: it has version %d, want %d", name, got[name], version)
					}
				}
			}
			w.deliver(true)
			w.must(dir)
			for range 20 {
				v := 1 + w.random.IntN(w.version)
				want := w.states[v]
				if w.isUnknown(dir, v) {
					unknown++
					continue
				}
				if got := w.state(dir, v); !maps.Equal(got, want) {
					t.Fatalf("at %d: %v\nwant %v", v, got, want)
				}
			}
			if t.Logf("%d moments of 20 are unknown", unknown); unknown > 15 {
				t.Error("too few are known to be meaningful")
			}
			seen := map[string]int{}
			for _, f := range w.rowsOf(dir) {
				if f.Name != "" {
					seen[fmt.Sprint(f.Type, f.Name, f.ResourceVersion, f.ObservedAt)]++
				}
			}
			if len(seen) != len(w.rows) || slices.Max(slices.Collect(maps.Values(seen))) > 1 {
				t.Errorf("%d different rows, want %d, each once", len(seen), len(w.rows))
			}
		})
	}
}

// TestRecordsThatAreGoneAreAGap lets retention, a topic that is made again, and an older copy take records away that were
// not read, or take them back: from there on states are unknown, until the next whole list, and then right.
func TestRecordsThatAreGoneAreAGap(t *testing.T) {
	lessAtOnce(t)
	for name, take := range map[string]func(*world){
		"retention": func(w *world) {
			w.first[1] = w.lanes[1][len(w.lanes[1])-1].Position
			w.lanes[1] = w.lanes[1][len(w.lanes[1])-1:]
		},
		"all of it": func(w *world) { w.first[1], w.lanes[1] = w.lanes[1][len(w.lanes[1])-1].Position+1, nil },
		"made again": func(w *world) {
			w.lanes, w.first = make([][]sinks.StoredRecord, 3), make([]int64, 3)
			for range 300 {
				w.change(true)
			}
			w.deliver(true)
		},
		"older copy":      func(w *world) { w.lanes[1] = w.lanes[1][:10] },
		"fewer lanes":     func(w *world) { w.lanes, w.first = w.lanes[:2], w.first[:2] },
		"a row was there": func(w *world) { w.lanes[1][w.read].Value = []byte(`{"kind":"Pod"}`) },
	} {
		t.Run(name, func(t *testing.T) {
			w, dir := newWorld(t, 1, 3), filepath.Join(t.TempDir(), "index")
			w.list(false)
			grow := func() {
				for range 60 {
					w.change(true)
				}
				w.deliver(true)
			}
			grow()
			w.must(dir)
			known := w.version
			w.read = len(w.lanes[1])
			if w.isUnknown(dir, known) {
				t.Fatal("unknown before")
			}
			grow()
			take(w)
			w.must(dir)
			if w.isUnknown(dir, known-30) || !w.isUnknown(dir, known+10) || !w.isUnknown(dir, w.version) {
				t.Errorf("unknown at %d, %d and %d: %v, %v, %v", known-30, known+10, w.version, w.isUnknown(dir, known-30), w.isUnknown(dir, known+10),
					w.isUnknown(dir, w.version))
			}
			w.step()
			w.pending = make([][]*event.Change, len(w.lanes))
			w.list(false)
			w.deliver(true)
			w.must(dir)
			if w.isUnknown(dir, w.version) || !maps.Equal(w.state(dir, w.version), w.now) {
				t.Errorf("after a list: %v, %v\nwant %v", w.isUnknown(dir, w.version), w.state(dir, w.version), w.now)
			}
		})
	}
}

// TestATopicWithoutItsBeginningIsUnknown although the borders of its snapshot are there.
func TestATopicWithoutItsBeginningIsUnknown(t *testing.T) {
	w, dir := newWorld(t, 1, 3), filepath.Join(t.TempDir(), "index")
	for range 50 {
		w.change(false)
	}
	w.list(false)
	w.deliver(true)
	w.first[1], w.lanes[1] = 3, w.lanes[1][3:]
	w.must(dir)
	if !w.isUnknown(dir, w.version) {
		t.Errorf("it has %v, and there is %v", w.state(dir, w.version), w.now)
	}
}

// TestACommandWaitsForAnotherOne that fills the index, until it has what there was.
func TestACommandWaitsForAnotherOne(t *testing.T) {
	w, dir := newWorld(t, 1, 2), filepath.Join(t.TempDir(), "index")
	w.list(false)
	w.deliver(true)
	other := &Source{Dir: dir, Of: "it", Reader: w, Say: func(string) {}}
	if err := other.fillOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.change(true)
	w.deliver(true)
	said := make(chan string, 9)
	second := &Source{Dir: dir, Of: "it", Reader: w, Say: func(line string) { said <- line }}
	done := make(chan error, 1)
	go func() { done <- second.Fill(t.Context()) }()
	if line := <-said; !strings.Contains(line, "another command") {
		t.Error(line)
	}
	if err := other.fillOnce(t.Context()); err != nil { // it has not ended
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := w.state(dir, w.version); !maps.Equal(got, w.now) {
		t.Errorf("%v, want %v", got, w.now)
	}
	if err := other.release(); err != nil {
		t.Error(err)
	}
	third := &Source{Dir: dir, Of: "something else", Reader: w}
	if err := third.Fill(t.Context()); err == nil || !strings.Contains(err.Error(), "is an index of it") {
		t.Error(err)
	}
}

// TestChangesHaveTheirDifferences if the record lists them, has the state before, or the index has it; and an object that
// is not whole says so.
func TestChangesHaveTheirDifferences(t *testing.T) {
	w, dir := newWorld(t, 1, 1), filepath.Join(t.TempDir(), "index")
	object := func(n int) []byte { return fmt.Appendf(nil, `{"spec":{"n":%d}}`, n) }
	emit := func(version string, c event.Change) {
		w.step()
		c.Type, c.Name, c.ResourceVersion = event.Updated, "p00", version
		w.emit(&c)
		w.deliver(true)
	}
	emit("1", event.Change{After: object(1), Changed: []byte(`[{"path":"/spec/n","from":0,"to":1}]`)})
	emit("2", event.Change{After: object(2), Changed: []byte(`["/spec/n"]`)})
	w.must(dir)
	emit("3", event.Change{After: object(3)})
	emit("4", event.Change{After: object(5), Before: object(4)})
	emit("5", event.Change{After: object(6), Omitted: []string{"before", "status"}})
	w.must(dir)
	s, err := history.Open(history.Folder(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // it was read
	want := []string{"0 1", "1 2", "2 3", "4 5", "5 6"}
	for row, err := range s.Rows(t.Context(), history.Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(row.Changed, func(d history.Difference) bool { return d.Path == "/spec/n" })
		if len(want) == 0 || i < 0 || row.Changed[i].From+" "+row.Changed[i].To != want[0] {
			t.Fatalf("version %s: %v, want %v", row.ResourceVersion, row.Changed, want)
		}
		if want = want[1:]; len(want) == 0 && row.Object != `{"kubecdcOmitted":["status"],"spec":{"n":6}}` {
			t.Error(row.Object)
		}
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}
