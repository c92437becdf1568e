package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/history"
)

// world is a cluster with known changes, and the rows that an exporter wrote of them.
type world struct {
	t       *testing.T
	rnd     *rand.Rand
	dir     string
	writer  *history.Writer
	now     time.Time
	version int
	truth   []truth
	alive   map[history.Key]truth
	written map[history.Key]truth // what the rows say exists
	lost    []lostHistory
	rows    []history.Row
	lags    bool          // rows are read some at a time and written by object, with times that are bounds
	read    []history.Row // and not yet written
}

// truth is a version of an object.
type truth struct {
	key     history.Key
	at      time.Time
	version int
	uid     string
	deleted bool
}

// lostHistory is an interval of which a resource has no rows: the first time is that of the last row before it.
type lostHistory struct {
	resource     string
	from, to     time.Time
	after, until int
}

var resources = []event.Resource{{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"}, {Version: "v1", Resource: "pods", Kind: "Pod"}}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, rnd: rand.New(rand.NewPCG(seed, 45)), dir: t.TempDir(), now: time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC),
		version: 100, alive: map[history.Key]truth{}, written: map[history.Key]truth{}}
	var err error
	if w.writer, err = history.OpenWriter(history.Folder(w.dir)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.writer.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// open opens what is written, until the test ends.
func (w *world) open() *History {
	w.t.Helper()
	h, err := Open(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := h.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return h
}

func (w *world) pass(atMost time.Duration) {
	w.now = w.now.Add(time.Duration(1 + w.rnd.Int64N(int64(atMost))))
}

// write adds a row; some come to the folder in a file, and files are merged.
func (w *world) write(row history.Row) {
	row.Cluster, row.ObservedAt = "c", w.now
	if w.rows = append(w.rows, row); w.rnd.IntN(40) == 0 {
		w.flush()
	}
}

func (w *world) flush() {
	if len(w.rows) == 0 {
		return
	}
	b, err := w.writer.NewBatch(w.rows)
	if err == nil {
		err = b.Commit()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	if w.rows = nil; w.rnd.IntN(4) == 0 {
		for more := true; more; {
			if more, err = w.writer.Compact(false); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

// change makes a random change in the cluster, and returns it.
func (w *world) change(resource event.Resource) truth {
	w.pass(20 * time.Second)
	w.version += 1 + w.rnd.IntN(3)
	key := history.Key{Cluster: "c", Group: resource.Group, Resource: resource.Resource, Namespace: []string{"shop", "ops"}[w.rnd.IntN(2)], Name: fmt.Sprint("o", w.rnd.IntN(5))}
	v := truth{key: key, at: w.now, version: w.version, uid: w.alive[key].uid}
	if _, exists := w.alive[key]; !exists {
		v.uid = fmt.Sprint("u", w.version)
	} else if w.rnd.IntN(3) == 0 {
		v.deleted = true
	}
	w.truth = append(w.truth, v)
	if delete(w.alive, key); !v.deleted {
		w.alive[key] = v
	}
	return v
}

func (w *world) stateRow(kind string, r event.Resource, v truth) history.Row {
	row := history.Row{Facts: history.Facts{Group: r.Group, Version: r.Version, Resource: r.Resource, Kind: r.Kind, Namespace: v.key.Namespace, Name: v.key.Name,
		UID: v.uid, ResourceVersion: strconv.Itoa(v.version), Type: kind}}
	if kind != "deleted" {
		row.Object = fmt.Sprintf(`{"metadata":{"name":%q,"resourceVersion":"%d"},"spec":{"version":%d}}`, v.key.Name, v.version, v.version)
	}
	return row
}

// observe writes the row of a change that a watch brings.
func (w *world) observe(r event.Resource, v truth) {
	kind := "updated"
	if _, exists := w.written[v.key]; !exists {
		kind = "added"
	}
	if v.deleted {
		kind = "deleted"
	}
	row := w.stateRow(kind, r, v)
	row.ChangedAt, row.NotBefore = v.at.Truncate(time.Microsecond), v.at.Add(-time.Second).Truncate(time.Microsecond)
	w.now = w.now.Add(time.Millisecond)
	w.read = append(w.read, row)
	if delete(w.written, v.key); !v.deleted {
		w.written[v.key] = v
	}
	if w.rnd.IntN(3) == 0 {
		about := w.stateRow("attributed", r, v)
		about.Object, about.User, about.Attribution = "", "alice", event.Exact
		w.read = append(w.read, about)
	}
	if w.rnd.IntN(8) == 0 { // a replay of the past
		w.read = append(w.read, w.stateRow("replayed", r, w.truth[w.rnd.IntN(len(w.truth))]))
	}
	if !w.lags || w.rnd.IntN(6) == 0 {
		w.writeRead()
	}
}

// writeRead writes what was read.
func (w *world) writeRead() {
	if w.lags {
		slices.SortStableFunc(w.read, func(a, b history.Row) int { return a.Key().Compare(b.Key()) })
	}
	for _, row := range w.read {
		if w.lags && !row.ChangedAt.IsZero() && w.rnd.IntN(2) == 0 {
			row.ChangedAt = row.ChangedAt.Add(time.Duration(w.rnd.Int64N(int64(w.now.Sub(row.ChangedAt))))).Truncate(time.Microsecond)
		}
		w.write(row)
	}
	w.read = nil
}

func (w *world) control(r event.Resource, kind string, position int) {
	w.write(history.Row{Facts: history.Facts{Group: r.Group, Version: r.Version, Resource: r.Resource, Kind: r.Kind, Type: kind, ResourceVersion: strconv.Itoa(position)}})
}

// snapshot writes a whole list.
func (w *world) snapshot(r event.Resource) {
	position := w.version
	w.control(r, "snapshot.begin", position)
	for _, v := range w.sorted(w.alive, r) {
		w.pass(time.Second)
		row := w.stateRow("snapshot", r, v)
		if w.rnd.IntN(2) == 0 { // the object has the time
			row.ChangedAt = v.at.Truncate(time.Microsecond)
		}
		w.write(row)
		w.written[v.key] = v
	}
	w.control(r, "snapshot.end", position)
	for _, v := range w.sorted(w.written, r) {
		if w.alive[v.key].version == 0 {
			delete(w.written, v.key)
		}
	}
}

func (w *world) sorted(of map[history.Key]truth, r event.Resource) (all []truth) {
	for key, v := range of {
		if key.Resource == r.Resource {
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b truth) int { return a.key.Compare(b.key) })
	return all
}

// lose makes changes that nothing watches, and what an exporter writes then: a gap, and the differences or a whole list.
func (w *world) lose(r event.Resource, journal bool) {
	l := lostHistory{resource: r.Resource, from: w.now, after: w.version}
	for range 1 + w.rnd.IntN(8) {
		w.change(r)
	}
	w.pass(time.Minute)
	gap := history.Row{Facts: history.Facts{Group: r.Group, Version: r.Version, Resource: r.Resource, Kind: r.Kind, Type: "gap",
		ResourceVersion: strconv.Itoa(w.version), GapFrom: strconv.Itoa(l.after), GapTo: strconv.Itoa(w.version), GapReason: "compacted"}}
	if journal {
		gap.GapFrom = ""
	}
	w.write(gap)
	if l.until = w.version; journal {
		w.snapshot(r)
	} else {
		w.writeDifferences(r)
	}
	l.to = w.now
	w.lost = append(w.lost, l)
}

func (w *world) writeDifferences(r event.Resource) {
	for _, v := range w.sorted(w.written, r) {
		if w.alive[v.key].uid != v.uid {
			w.pass(time.Second)
			row := w.stateRow("deleted", r, v)
			row.ChangedAt = w.now.Truncate(time.Microsecond)
			w.write(row)
			delete(w.written, v.key)
		}
	}
	for _, v := range w.sorted(w.alive, r) {
		if w.written[v.key] != v {
			w.pass(time.Second)
			kind := "updated"
			if _, exists := w.written[v.key]; !exists {
				kind = "added"
			}
			row := w.stateRow(kind, r, v)
			row.ChangedAt = w.now.Truncate(time.Microsecond)
			w.write(row)
			w.written[v.key] = v
		}
	}
}

func (w *world) run(steps int, losses bool) {
	for _, r := range resources {
		for range 5 {
			w.change(r)
		}
	}
	for _, r := range resources {
		w.lost = append(w.lost, lostHistory{resource: r.Resource, until: w.version})
		w.snapshot(r)
		w.lost[len(w.lost)-1].to = w.now
	}
	for range steps {
		r := resources[w.rnd.IntN(len(resources))]
		n := w.rnd.IntN(60)
		if n < 4 {
			w.writeRead()
		}
		switch {
		case losses && n < 2:
			w.lose(r, n == 0)
		case n == 2: // for a sink that asks for it
			w.snapshot(r)
		case n == 3:
			if all := w.sorted(w.alive, r); len(all) > 0 {
				w.write(w.stateRow("sync", r, all[0]))
			}
		default:
			w.observe(r, w.change(r))
		}
	}
	w.writeRead()
	w.flush()
}

// stateOf returns the versions of a resource at a moment, and whether it is in lost history.
func (w *world) stateOf(resource string, m Moment) (state []string, lost bool) {
	version, _ := strconv.Atoi(m.Version)
	newest := map[history.Key]truth{}
	for _, v := range w.truth {
		before := !v.at.Truncate(time.Microsecond).After(m.Time)
		if m.Version != "" {
			before = v.version <= version
		}
		if before && v.key.Resource == resource {
			newest[v.key] = v
		}
	}
	for key, v := range newest {
		if !v.deleted {
			state = append(state, fmt.Sprintf("%s/%s@%d", key.Namespace, key.Name, v.version))
		}
	}
	slices.Sort(state)
	return state, slices.ContainsFunc(w.lost, func(l lostHistory) bool {
		if m.Version != "" {
			return l.resource == resource && version > l.after && version < l.until
		}
		return l.resource == resource && m.Time.After(l.from) && m.Time.Before(l.to)
	})
}

func (w *world) moment() Moment {
	first := w.truth[0]
	if w.rnd.IntN(2) == 0 {
		return Moment{Version: strconv.Itoa(first.version + w.rnd.IntN(w.version-first.version+1))}
	}
	return Moment{Time: first.at.Add(time.Duration(w.rnd.Int64N(int64(w.now.Sub(first.at)))))}
}

// TestStatesAreThoseOfTheClusterOrSaidToBeUnknown asks random histories for states at random moments, by time and by
// version.
func TestStatesAreThoseOfTheClusterOrSaidToBeUnknown(t *testing.T) {
	known, unknown := 0, 0
	for seed := range uint64(8) {
		w := newWorld(t, seed)
		w.run(120, seed%4 > 0)
		h := w.open()
		for range 25 {
			m, r := w.moment(), resources[w.rnd.IntN(len(resources))]
			want, lost := w.stateOf(r.Resource, m)
			var got []string
			doubt, err := h.Get(t.Context(), Scope{Types: []event.Resource{r}}, m, func(row *history.Row) error {
				got = append(got, fmt.Sprintf("%s/%s@%s", row.Namespace, row.Name, row.ResourceVersion))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(got)
			switch {
			case lost && !doubt.Any():
				t.Fatalf("seed %d: %s at %s is in lost history, and that is not said: %v", seed, r, m, got)
			case doubt.Any():
				unknown++
			case !slices.Equal(got, want):
				t.Fatalf("seed %d: %s at %s is\n%v\nwant\n%v", seed, r, m, got, want)
			default:
				known++
			}
			if seed%4 == 0 && !lost && doubt.Any() {
				t.Errorf("seed %d: %s at %s is known, and said not to be: %s", seed, r, m, strings.Join(doubt.Lines(), "; "))
			}
		}
	}
	t.Logf("%d states equal those of the cluster, %d are unknown", known, unknown)
	if known < 100 || unknown < 10 {
		t.Error("too few to be meaningful")
	}
}
