package verify

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
	"github.com/kubecdc/kubecdc/test/parts/planting"
)

var pods = event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}

var podScope = selection.Scope{ID: "pods", Resource: pods, Namespaced: true}

// world is a cluster with a history, and what an exporter has delivered of it.
type world struct {
	t       *testing.T
	random  *rand.Rand
	version int
	now     map[string]version         // by name
	states  map[int]map[string]version // by version of the cluster
	oldest  int                        // exact lists before it are refused as expired
	inexact bool                       // all exact lists are refused

	lanes    [][]stored
	first    []int64 // by lane
	replaces bool
	epoch    string
	sequence uint64
	live     func() // is called before lanes are looked up

	format     format.Format
	bodies     bool   // contents are compared
	keyed      bool   // records have keys and headers
	beforeRead func() // is called before lanes are read
}

// stored is a record in a lane.
type stored struct {
	at     int64
	change *event.Change
	value  []byte // nil if it removes a key, and does not name the object
	key    string
	header map[string]string
}

func newWorld(t *testing.T, seed uint64, lanes int) *world {
	return &world{
		t: t, bodies: true, random: rand.New(rand.NewPCG(seed, 1)), version: 100, now: map[string]version{}, states: map[int]map[string]version{},
		lanes: make([][]stored, lanes), first: make([]int64, lanes), epoch: "E" + event.EpochSeparator + podScope.Fingerprint(),
	}
}

// laneOf returns the lane of an object.
func (w *world) laneOf(name string) int {
	sum := 0
	for _, c := range name {
		sum += int(c)
	}
	return sum % len(w.lanes)
}

func (w *world) appendRecord(lane int, c *event.Change) {
	at := w.first[lane]
	if n := len(w.lanes[lane]); n > 0 {
		at = w.lanes[lane][n-1].at + 1 + int64(w.random.IntN(2)) // with holes, as control records leave
	}
	w.lanes[lane] = append(w.lanes[lane], w.encode(at, c))
}

// encode returns a record as a sink writes it, with its key if the world has a format.
func (w *world) encode(at int64, c *event.Change) stored {
	if !w.keyed {
		return stored{at: at, change: c, value: format.AppendJSON(nil, c)}
	}
	r := planting.Encode(w.format, c)
	return stored{at: at, change: c, key: r.Key, value: r.Value, header: r.Headers}
}

func bodyOf(name, uid string, v int) []byte {
	return fmt.Appendf(nil, `{"metadata":{"name":%q,"namespace":"ns","uid":%q,"resourceVersion":"%d"},"spec":{"step":%d}}`, name, uid, v, v)
}

// change makes a change of an object, and delivers it.
func (w *world) change(name string) {
	w.version += 1 + w.random.IntN(3)
	c := &event.Change{
		Cluster: "c", Resource: pods, Namespace: "ns", Name: name, ResourceVersion: strconv.Itoa(w.version), ObservedAt: time.Unix(int64(w.version), 0),
	}
	old, exists := w.now[name]
	switch {
	case !exists:
		c.Type, c.UID = event.Added, fmt.Sprintf("uid-%s-%d", name, w.version)
	case w.random.IntN(4) == 0:
		c.Type, c.UID = event.Deleted, old.uid
	default:
		c.Type, c.UID = event.Updated, old.uid
	}
	if c.Type == event.Deleted {
		delete(w.now, name)
	} else {
		c.After = bodyOf(name, c.UID, w.version)
		w.now[name] = version{uid: c.UID, resourceVersion: c.ResourceVersion}
	}
	w.appendRecord(w.laneOf(name), c)
}

// changes makes random changes.
func (w *world) changes(n int) {
	for range n {
		w.change("pod-" + strconv.Itoa(w.random.IntN(20)))
	}
}

// mark delivers a watermark.
func (w *world) mark() {
	w.states[w.version] = maps.Clone(w.now)
	w.sequence++
	c := &event.Change{Type: event.Watermark, Cluster: "c", Resource: pods, ResourceVersion: strconv.Itoa(w.version), ObservedAt: time.Unix(int64(w.version), 0)}
	count, digest := w.digest()
	c.Watermark = &event.WatermarkInfo{Epoch: w.epoch, Sequence: w.sequence, Algorithm: event.DigestAlgorithm, Count: count, Digest: digest}
	for i := range w.lanes {
		w.appendRecord(i, c.WithLane(i, len(w.lanes)))
	}
}

// snapshot delivers all objects between the frames of a snapshot.
func (w *world) snapshot() {
	id := strconv.Itoa(w.version)
	frame := func(kind event.Type) *event.Change {
		return &event.Change{Type: kind, Cluster: "c", Resource: pods, ObservedAt: time.Unix(int64(w.version), 0), Snapshot: &event.SnapshotInfo{ID: id}}
	}
	w.appendRecord(0, frame(event.SnapshotBegin))
	for name, v := range w.now {
		n, _ := strconv.Atoi(v.resourceVersion)
		w.appendRecord(w.laneOf(name), &event.Change{
			Type: event.Snapshot, Cluster: "c", Resource: pods, Namespace: "ns", Name: name, UID: v.uid, ResourceVersion: v.resourceVersion,
			ListVersion: id, ObservedAt: time.Unix(int64(w.version), 0), Snapshot: &event.SnapshotInfo{ID: id}, After: bodyOf(name, v.uid, n),
		})
	}
	end := frame(event.SnapshotEnd)
	end.ResourceVersion, end.Snapshot.Position = id, id
	end.Snapshot.Count, end.Snapshot.Digest = w.digest()
	w.appendRecord(0, end)
}

// truncate removes the first records of a lane.
func (w *world) truncate(lane, records int) {
	w.lanes[lane] = w.lanes[lane][records:]
	w.first[lane] = w.lanes[lane][0].at
}

func (w *world) digest() (int, string) {
	var d event.Digest
	for name, v := range w.now {
		d.Add("ns", name, v.uid, v.resourceVersion)
	}
	return len(w.now), d.String()
}

// restart repeats the ends of all lanes, as an exporter does that was killed, and begins another epoch.
func (w *world) restart() {
	for i, lane := range w.lanes {
		for _, r := range slices.Clone(lane[len(lane)-w.random.IntN(min(len(lane), 8)+1):]) {
			w.appendRecord(i, r.change)
		}
	}
	w.epoch, w.sequence = fmt.Sprintf("E%d", w.version)+event.EpochSeparator+podScope.Fingerprint(), 0
}

// StoredLanes implements [sinks.StoredReader].
func (w *world) Targets(context.Context, ...string) ([]string, error) { return nil, nil }

func (w *world) StoredLanes(context.Context, string) ([]sinks.StoredLane, error) {
	if w.live != nil {
		w.live()
	}
	var all []sinks.StoredLane
	for i, lane := range w.lanes {
		l := sinks.StoredLane{Target: "pods", Index: i, Count: len(w.lanes), First: w.first[i], End: w.first[i], Replaces: w.replaces, Truncated: w.first[i] > 0}
		if n := len(lane); n > 0 {
			l.End = lane[n-1].at + 1
		}
		all = append(all, l)
	}
	return all, nil
}

// ReadStored implements [sinks.StoredReader].
func (w *world) ReadStored(_ context.Context, spans []sinks.StoredSpan, each func(sinks.StoredRecord) error) error {
	if w.beforeRead != nil {
		w.beforeRead()
	}
	next := make([]int, len(spans))
	for {
		var open []int
		for i, s := range spans {
			lane := w.lanes[s.Index]
			for next[i] < len(lane) && lane[next[i]].at < s.From {
				next[i]++
			}
			if next[i] < len(lane) && lane[next[i]].at < s.To {
				open = append(open, i)
			}
		}
		if len(open) == 0 {
			return nil
		}
		i := open[w.random.IntN(len(open))]
		r := w.lanes[spans[i].Index][next[i]]
		next[i]++
		if err := each(sinks.StoredRecord{
			Lane: i, Position: r.at, Key: r.key, Value: r.value, Header: func(name string) string { return r.header[name] },
			RemovesUnnamed: r.value == nil,
		}); err != nil {
			return err
		}
	}
}

// Close implements [sinks.StoredReader].
func (w *world) Close(context.Context) error { return nil }

// list lists the cluster.
func (w *world) list(_ context.Context, _ selection.Scope, at string, to source.Reading) (string, string, error) {
	state, position := w.now, strconv.Itoa(w.version)
	if at != "" {
		v, _ := strconv.Atoi(at)
		switch {
		case w.inexact:
			return "", "", apierrors.NewBadRequest("resourceVersionMatch is not supported")
		case v < w.oldest:
			return "", "", apierrors.NewResourceExpired("compacted")
		}
		state, position = w.states[v], at
	}
	if err := to.Begin(position); err != nil {
		return "", "", err
	}
	for name, v := range state {
		o := deltas.NewObject("ns", name)
		n, _ := strconv.Atoi(v.resourceVersion)
		o.UID, o.ResourceVersion, o.Raw = v.uid, v.resourceVersion, bodyOf(name, v.uid, n)
		if err := to.Visit(o); err != nil {
			return "", "", err
		}
	}
	return position, "", nil
}

// verify verifies the world, with contents.
func (w *world) verify() *ScopeResult { return w.verifyAfter(nil).Resources[0] }

// verifyAfter verifies the world at a watermark behind these positions.
func (w *world) verifyAfter(ends []int64) *Result {
	w.t.Helper()
	o := Options{
		Sink: "bus", Cluster: "c", Targets: []Target{{Scope: podScope, Topic: "pods"}}, Reader: w, List: w.list, Wait: 10 * time.Second,
		Format: w.format, Shape: func(_ selection.Scope, o *deltas.Object) ([]byte, error) { return o.Raw, nil }, After: map[string][]int64{"pods": ends},
	}
	if !w.bodies {
		o.Shape = nil
	}
	r, err := Run(w.t.Context(), o)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// emitAgain delivers what differs again, as a signal has the exporter do it.
func (w *world) emitAgain(d Differing) {
	id := fmt.Sprint("again-", w.version)
	c := event.Change{
		Cluster: "c", Resource: pods, Namespace: "ns", ListVersion: strconv.Itoa(w.version), ObservedAt: time.Unix(int64(w.version), 0),
		Snapshot: &event.SnapshotInfo{ID: id},
	}
	for _, key := range d.Existing {
		name := strings.TrimPrefix(key, "ns/")
		v, again := w.now[name], c
		n, _ := strconv.Atoi(v.resourceVersion)
		again.Type, again.Name, again.UID, again.ResourceVersion, again.After = event.Snapshot, name, v.uid, v.resourceVersion, bodyOf(name, v.uid, n)
		w.appendRecord(w.laneOf(name), &again)
	}
	for _, key := range d.Absent {
		again := c
		again.Type, again.Name, again.Pass = event.Deleted, strings.TrimPrefix(key, "ns/"), id+key
		again.ResourceVersion, again.Coalesced, again.FinalStateUnknown = again.ListVersion, true, true
		w.appendRecord(w.laneOf(again.Name), &again)
	}
}

// live makes a world with a history: a snapshot, changes, restarts and watermarks.
func newLivedWorld(t *testing.T, seed uint64) *world {
	w := newWorld(t, seed, 1+int(seed%3))
	for range 3 + w.random.IntN(5) {
		w.changes(w.random.IntN(40))
		w.mark()
		if w.random.IntN(3) == 0 {
			w.changes(w.random.IntN(5))
			w.restart()
		}
	}
	w.mark()
	w.changes(w.random.IntN(10))
	return w
}
