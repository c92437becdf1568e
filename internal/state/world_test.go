package state

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// fakeCluster is an API server with one history for all of its resources.
type fakeCluster struct {
	random    *rand.Rand
	version   int
	compacted int // watches cannot resume from before this version
	history   []clusterEvent
	existing  map[string]map[string]deltas.Object // by resource and key
	uids      int
}

type clusterEvent struct {
	version  int
	resource string
	event    deltas.Event
}

var resources = map[string]event.Resource{
	"pods":             {Version: "v1", Resource: "pods", Kind: "Pod"},
	"deployments.apps": {Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"},
}

func newFakeCluster(random *rand.Rand) *fakeCluster {
	c := &fakeCluster{random: random, version: 100, existing: map[string]map[string]deltas.Object{}}
	for name := range resources {
		c.existing[name] = map[string]deltas.Object{}
	}
	return c
}

// changeObject adds, updates or deletes a random object.
func (c *fakeCluster) changeObject() {
	resource := slices.Sorted(maps.Keys(resources))[c.random.IntN(len(resources))]
	name := fmt.Sprintf("o%d", c.random.IntN(8))
	o, exists := c.existing[resource]["ns/"+name]
	c.version++
	kind := watch.Modified
	switch {
	case !exists:
		c.uids++
		o, kind = *deltas.NewObject("ns", name), watch.Added
		o.UID = fmt.Sprintf("00000000-0000-4000-8000-%012d", c.uids)
	case c.random.IntN(3) == 0:
		kind = watch.Deleted
	}
	o.ResourceVersion = strconv.Itoa(c.version)
	o.Raw = fmt.Appendf(nil, `{"v":%d}`, c.version)
	c.existing[resource][o.Key()] = o
	if kind == watch.Deleted {
		delete(c.existing[resource], o.Key())
	}
	c.history = append(c.history, clusterEvent{c.version, resource, deltas.Event{Type: kind, Object: &o}})
}

// newestVersion is the version of the last event.
func (c *fakeCluster) newestVersion() int {
	if len(c.history) == 0 {
		return 0
	}
	return c.history[len(c.history)-1].version
}

// process is an exporter.
type process struct {
	t        testing.TB
	w        *world
	members  []string // its sinks
	fs       vfs.FS
	journal  *journal.Journal
	shutDown func()
	writer   *Writer
	scopes   map[string]*scope
	sinks    map[string]*topicSink
	pipes    map[string]*pipe
	deposed  bool
	// forbidden is a resource that the process is not allowed to read; "" for none.
	forbidden string
}

// scope is a source of one resource: it does what pkg/source does, without an API server.
type scope struct {
	tracker *deltas.Tracker
	stored  event.StoredScope
	list    *deltas.List
}

// pipe is a pipeline: each lane advances on its own, and the offset that all have passed is settled.
type pipe struct {
	low       uint64
	read      uint64
	waiting   []event.Record // read, but not delivered
	delivered func(sinks.Lane, *event.Change) bool
	whyHeld   func(sinks.Lane) error
	held      map[uint64]bool // offsets that were read while their lane was held
}

// world holds everything that outlives a process.
type world struct {
	t            testing.TB
	random       *rand.Rand
	cluster      *fakeCluster
	bus          *memoryBus
	topics       map[string]*memoryTopic
	snapshots    int
	lists        int
	predecessors []*process // deposed, but still running
	started      int
	watermarks   int
	varyMembers  bool // processes may lack the second sink
	onlyFirst    bool // processes lack it
}

// topicWidth is how many lanes each topic has.
const topicWidth = 3

func newWorld(t testing.TB, seed uint64, compact bool) *world {
	random := rand.New(rand.NewPCG(seed, 12))
	w := &world{t: t, random: random, cluster: newFakeCluster(random), bus: &memoryBus{atomicBytes: 400}, topics: map[string]*memoryTopic{}}
	for _, name := range []string{"first", "second"} {
		w.topics[name] = newMemoryTopic(name, topicWidth)
		w.topics[name].compact = compact
	}
	return w
}

// startProcess starts a standby process on a journal, a new one if fs is nil.
func (w *world) startProcess(fs vfs.FS) *process {
	if fs == nil {
		fs = vfs.NewMem()
	}
	members := []string{"first", "second"}
	if w.onlyFirst || w.varyMembers && w.started > 0 && w.random.IntN(2) == 0 {
		members = members[:1]
	}
	w.started++
	j, err := journal.Open(journal.Options{Dir: "journal", FS: fs, Declaration: journal.Declaration{Sinks: append([]string{Sink}, members...), ClusterName: "c"}, Logger: quiet})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()
	p := &process{t: w.t, w: w, members: members, fs: fs, journal: j, scopes: map[string]*scope{}, sinks: map[string]*topicSink{}, pipes: map[string]*pipe{}}
	p.shutDown = sync.OnceFunc(func() {
		p.deposed = true
		cancel()
		if err := errors.Join(<-done, j.Close()); err != nil {
			w.t.Error(err)
		}
	})
	p.writer, err = New(Options{Group: "g", Lease: "ns/g", Owner: "p", Journal: j, Logger: quiet},
		&memoryStore{memoryBus: w.bus, seen: w.bus.purges})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(p.shutDown)
	if w.random.IntN(2) == 0 {
		p.writer.sinks.carryAfter = 0
	}
	return p
}

// takeOver makes p the active process.
func (p *process) takeOver() error {
	all := map[string]sinks.Fenced{}
	for _, name := range p.members {
		p.sinks[name] = p.w.topics[name].openSink()
		all[name] = p.sinks[name]
	}
	taken, err := p.writer.TakeOver(p.t.Context(), TakeOverOptions{Sinks: all})
	if err != nil {
		return err
	}
	if taken.Fresh != (taken.Previous.Identity == "") {
		p.t.Errorf("at %d: took over from %+v: %+v", p.w.cluster.version, taken.Previous, taken)
	}
	for _, name := range p.members {
		c, _, err := p.journal.Cursor(name)
		if err != nil {
			p.t.Fatal(err)
		}
		p.pipes[name] = &pipe{low: c.Low, read: c.Low, delivered: p.writer.Delivered(name), whyHeld: p.writer.WhyHeld(name), held: map[uint64]bool{}}
	}
	for name, r := range resources {
		known := deltas.NewKnownSet()
		stored, err := p.journal.LoadResource(name, known.Add)
		if err != nil {
			p.t.Fatal(err)
		}
		lost, err := p.journal.ResetReason()
		if err != nil {
			p.t.Fatal(err)
		}
		s := &scope{stored: event.StoredScope{ID: name, LostReason: lost}}
		if len(stored.Scopes) > 0 {
			s.stored = stored.Scopes[0]
		}
		s.tracker = deltas.NewTracker(deltas.Scope{ID: name, Cluster: "c", Resource: r}, known, nil, func() time.Time { return time.Unix(0, 0).UTC() })
		s.tracker.KeepSum()
		p.scopes[name] = s
	}
	return nil
}

func (p *process) appendObservation(s *scope, o event.Observation, err error) {
	if err != nil {
		p.t.Fatal(err)
	}
	if len(o.Changes)+len(o.Known)+len(o.RemovedKeys) == 0 && o.LostReason == "" && (o.Position == "" || o.Position == s.stored.Position) {
		return
	}
	if err := p.journal.Append(p.t.Context(), o); err != nil {
		p.t.Fatal(err)
	}
	if o.LostReason != "" {
		s.stored.Position, s.stored.Snapshot, s.stored.LostReason = "", "", o.LostReason
	}
	if o.Snapshot != "" {
		s.stored.Snapshot = o.Snapshot
	}
	if o.Position != "" {
		s.stored.Position, s.stored.LostReason, s.stored.Pass = o.Position, "", ""
	}
}

// watchScope reads a few events, or lists if the scope has no valid position.
func (p *process) watchScope(name string) {
	s, c := p.scopes[name], p.w.cluster
	if name == p.forbidden {
		return
	}
	if s.stored.Position == "" {
		p.listAll(name, s, "")
		return
	}
	p.emitWatermark(s)
	at, _ := strconv.Atoi(s.stored.Position)
	if at < c.compacted {
		from := s.stored.Position
		s.stored.Position, s.stored.Snapshot, s.stored.LostReason = "", "", "expired"
		p.listAll(name, s, from)
		return
	}
	var batch []deltas.Event
	position, most := s.stored.Position, 1+p.w.random.IntN(6)
	for _, h := range c.history {
		if h.version > at && len(batch) < most {
			if position = strconv.Itoa(h.version); h.resource == name {
				batch = append(batch, h.event)
			}
		}
	}
	o, err := s.tracker.ObserveEvents(batch, position)
	p.appendObservation(s, o, err)
	p.flushJournal()
}

// emitWatermark sometimes emits a watermark for every lane.
func (p *process) emitWatermark(s *scope) {
	if p.w.random.IntN(2) == 0 {
		return
	}
	p.w.watermarks++
	info := event.WatermarkInfo{Epoch: fmt.Sprint("W", p.w.watermarks), Sequence: 1}
	var copies []*event.Change
	for lane := range topicWidth {
		copies = append(copies, s.tracker.NewWatermark(s.stored.Position, info).WithLane(lane, topicWidth))
	}
	p.appendObservation(s, s.tracker.NewObservation(copies...), nil)
}

// listAll lists the scope, and sometimes stops in the middle.
func (p *process) listAll(name string, s *scope, from string) {
	p.w.cluster.version++ // of an unwatched resource
	now := strconv.Itoa(p.w.cluster.version)
	p.w.lists++
	list := deltas.List{Pass: s.stored.Pass, Name: fmt.Sprint("L", p.w.lists), Position: now}
	switch {
	case s.list != nil:
		list = *s.list
	case s.stored.Snapshot != "":
		list.Snapshot = &event.SnapshotInfo{ID: s.stored.Snapshot}
	default:
		var first []*event.Change
		if s.stored.LostReason == "" && s.tracker.KnownCount() > 0 {
			s.stored.LostReason = "broken off"
		}
		if s.stored.LostReason != "" {
			first = append(first, s.tracker.NewGap(from, now, s.stored.LostReason))
		}
		lost, id := s.stored.LostReason, ""
		if s.tracker.KnownCount() == 0 {
			p.w.snapshots++
			id = fmt.Sprint("S", p.w.snapshots)
			first, list.Snapshot = append(first, s.tracker.NewSnapshotBegin(id)), &event.SnapshotInfo{ID: id}
		}
		o := s.tracker.NewObservation(first...)
		o.LostReason, o.Snapshot = lost, id
		p.appendObservation(s, o, nil)
	}
	s.list = &list
	s.tracker.StartList(list)
	living := p.w.cluster.existing[name]
	for i, key := range slices.Sorted(maps.Keys(living)) {
		if p.w.random.IntN(20) == 0 && i > 0 {
			p.flushJournal() // interrupted; the next call continues the list
			return
		}
		o := living[key]
		observed, err := s.tracker.ObserveEvents([]deltas.Event{{Type: watch.Added, Object: &o}}, "")
		p.appendObservation(s, observed, err)
	}
	for more := true; more; {
		var o event.Observation
		var err error
		o, more, err = s.tracker.ObserveMissing()
		p.appendObservation(s, o, err)
	}
	p.appendObservation(s, s.tracker.FinishList(now), nil)
	s.list = nil
	p.flushJournal()
}

func (p *process) flushJournal() {
	if err := p.journal.Flush(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

// deliverNext publishes the first waiting change of a random lane, and sometimes settles.
func (p *process) deliverNext(name string) {
	q, sink := p.pipes[name], p.sinks[name]
	for q.read < p.journal.Newest() && len(q.waiting) < 12 {
		records, err := p.journal.Read(p.t.Context(), q.read)
		if err != nil {
			p.t.Fatal(err)
		}
		for _, r := range records {
			q.read = r.Offset
			if r.Change.Gap != nil && r.Change.Gap.Sink != "" && r.Change.Gap.Sink != name {
				continue
			}
			lane, _ := sink.Lane(r.Change)
			if q.whyHeld(lane) != nil {
				q.held[r.Offset] = true
			} else if q.delivered != nil && q.delivered(lane, r.Change) {
				continue
			}
			q.waiting = append(q.waiting, r)
		}
	}
	if len(q.waiting) > 0 {
		chosen, _ := sink.Lane(q.waiting[p.w.random.IntN(len(q.waiting))].Change)
		first := slices.IndexFunc(q.waiting, func(r event.Record) bool { lane, _ := sink.Lane(r.Change); return lane == chosen })
		r := q.waiting[first]
		if q.whyHeld(chosen) != nil {
			return
		}
		skip := q.held[r.Offset] && q.delivered != nil && q.delivered(chosen, r.Change)
		if !skip && !p.publishRecord(sink, chosen, r) {
			return
		}
		q.waiting = slices.Delete(q.waiting, first, first+1)
	}
	if q.low = q.read; len(q.waiting) > 0 {
		q.low = q.waiting[0].Offset - 1
	}
	if p.w.random.IntN(3) == 0 {
		if err := p.journal.Settle(p.t.Context(), name, event.Cursor{Low: q.low}, nil); err != nil {
			p.t.Fatal(err)
		}
	}
}

// publishRecord publishes one change and reports success. The sink may have to record a lane, which the goroutine of Run
// does: here that is the caller.
func (p *process) publishRecord(sink *topicSink, lane sinks.Lane, r event.Record) bool {
	ctx, cancel := context.WithCancel(p.t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := sink.Publish(ctx, lane, []sinks.Message{{Offset: r.Offset, Change: r.Change}})
		done <- err
	}()
	for {
		select {
		case do := <-p.writer.requests:
			p.isDeposed(do(p.t.Context()))
		case err := <-done:
			return !p.isDeposed(err)
		}
	}
}

// isDeposed reports whether err means that p was deposed or killed, and marks p as deposed. Other errors fail the test.
func (p *process) isDeposed(err error) bool {
	var deposed *sinks.DeposedError
	switch {
	case err == nil:
		return false
	case errors.As(err, &deposed), errors.Is(err, errKilled):
		p.deposed = true
		return true
	}
	p.t.Fatal(err)
	return true
}

// errKilled simulates a process that ends in the middle of a write.
var errKilled = fmt.Errorf("killed: %w", &sinks.DeposedError{Reason: "killed"})

// stepRandomly does one step of watching, delivering or writing the state.
func (p *process) stepRandomly() {
	if p.deposed {
		return
	}
	names, topics := slices.Sorted(maps.Keys(p.scopes)), slices.Sorted(maps.Keys(p.pipes))
	switch n := p.w.random.IntN(20); {
	case n == 0:
		p.readWaiting()
	case n < 4:
		p.watchScope(names[p.w.random.IntN(len(names))])
	case n < 12:
		p.deliverNext(topics[0])
	case n < 17:
		p.deliverNext(topics[len(topics)-1])
	default:
		p.isDeposed(p.writer.checkpoints.advanceState(p.t.Context()))
	}
}

// readWaiting lets the lanes answer that did not, and reads them.
func (p *process) readWaiting() {
	for name, t := range p.w.topics {
		t.unstick()
		p.isDeposed(p.writer.ReadWaitingLanes(p.t.Context(), name, p.sinks[name]))
	}
}

// settleAll watches, delivers and writes until nothing is left.
func (p *process) settleAll() {
	p.readWaiting()
	p.deliverAll()
	p.isDeposed(p.writer.checkpoints.advanceState(p.t.Context()))
}

// deliverAll watches and delivers until nothing is left. It visits names in order, so that a seed draws the same numbers.
func (p *process) deliverAll() {
	for done := false; !done; {
		done = true
		for _, name := range slices.Sorted(maps.Keys(p.scopes)) {
			p.watchScope(name)
			at, _ := strconv.Atoi(p.scopes[name].stored.Position)
			done = done && (at >= p.w.cluster.newestVersion() && at >= p.w.cluster.compacted || name == p.forbidden)
		}
		for _, name := range slices.Sorted(maps.Keys(p.pipes)) {
			q := p.pipes[name]
			for q.low < p.journal.Newest() {
				p.deliverNext(name)
				if p.deposed {
					p.t.Fatal("the last process was deposed")
				}
			}
			if err := p.journal.Settle(p.t.Context(), name, event.Cursor{Low: q.low}, nil); err != nil {
				p.t.Fatal(err)
			}
		}
	}
}

// objectsAt returns the objects of a resource that existed at a version, as "UID@version" by key.
func (c *fakeCluster) objectsAt(resource string, version int) map[string]string {
	objects := map[string]string{}
	for _, h := range c.history {
		if h.resource != resource || h.version > version {
			continue
		}
		objects[h.event.Object.Key()] = h.event.Object.UID + "@" + h.event.Object.ResourceVersion
		if h.event.Type == watch.Deleted {
			delete(objects, h.event.Object.Key())
		}
	}
	return objects
}

// verifyGaps compares the content of a topic with the history of the cluster: every version is there, or lies inside a gap,
// and nothing is there twice or behind something newer.
func (w *world) verifyGaps(name string) (missing int) {
	w.t.Helper()
	ids, versions, seen, gaps := map[string]bool{}, map[string]int{}, map[string]bool{}, map[string][][2]int{}
	for _, messages := range w.topics[name].messagesByLane() {
		for _, e := range messages {
			if ids[e.ID] {
				w.t.Errorf("%s: %s is there twice", name, e.ID)
			}
			ids[e.ID] = true
			if e.Type == event.Gap { // cluster/resource@from/to/gap
				parts := strings.Split(e.ID, "/")
				resource, from, _ := strings.Cut(parts[1], "@")
				first, _ := strconv.Atoi(from)
				last, _ := strconv.Atoi(parts[2])
				gaps[resource] = append(gaps[resource], [2]int{first, last})
			}
			version, _ := strconv.Atoi(e.ResourceVersion)
			if version < versions[e.UID] {
				w.t.Errorf("%s: %s follows %d", name, e.ID, versions[e.UID])
			}
			if !e.Type.IsControl() {
				versions[e.UID] = version
				seen[e.UID+"@"+e.ResourceVersion] = true
			}
		}
	}
	for _, h := range w.cluster.history {
		o := h.event.Object
		if seen[o.UID+"@"+o.ResourceVersion] {
			continue
		}
		missing++
		if !slices.ContainsFunc(gaps[h.resource], func(g [2]int) bool { return g[0] < h.version && h.version <= g[1] }) {
			w.t.Errorf("%s: %s %s of %s at %s is missing, outside of the gaps %v", name, h.event.Type, o.Key(), h.resource, o.ResourceVersion, gaps[h.resource])
		}
	}
	return missing
}

// verifyTopic compares the content of a topic with the history of the cluster. complete: every version must be there.
func (w *world) verifyTopic(name string, complete bool) {
	w.t.Helper()
	ids, versions, dead, living := map[string]bool{}, map[string]int{}, map[string]bool{}, map[string]string{}
	all := w.topics[name].messagesByLane()
	seen := map[string]bool{}
	for _, lane := range slices.Sorted(maps.Keys(all)) {
		for _, e := range all[lane] {
			if ids[e.ID] {
				w.t.Errorf("%s: %s is there twice", name, e.ID)
			}
			ids[e.ID] = true
			if e.Type.IsControl() {
				continue
			}
			version, _ := strconv.Atoi(e.ResourceVersion)
			if version < versions[e.UID] || dead[e.UID] {
				w.t.Errorf("%s: %s follows %d, deleted %t", name, e.ID, versions[e.UID], dead[e.UID])
			}
			versions[e.UID] = version
			seen[e.UID+"@"+e.ResourceVersion] = true
			living[e.UID] = e.Resource.String() + " " + e.Key + "@" + e.ResourceVersion
			if e.Type == event.Deleted {
				delete(living, e.UID)
				dead[e.UID] = true
			}
		}
	}
	want := map[string]string{}
	for resource, objects := range w.cluster.existing {
		for key, o := range objects {
			want[o.UID] = resource + " " + key + "@" + o.ResourceVersion
		}
	}
	if !maps.Equal(living, want) {
		w.t.Errorf("%s: exists\n%s\nwant\n%s", name, formatObjects(living), formatObjects(want))
	}
	if !complete {
		return
	}
	for _, h := range w.cluster.history {
		if o := h.event.Object; !seen[o.UID+"@"+o.ResourceVersion] {
			w.t.Errorf("%s: %s %s of %s at %s is missing", name, h.event.Type, o.Key(), o.UID, o.ResourceVersion)
		}
	}
}

// verifyWatermarks compares what all lanes of a topic hold before the copies of a watermark with the cluster at its
// position, and returns how many watermarks all lanes have.
func (w *world) verifyWatermarks(name string) (complete int) {
	w.t.Helper()
	places := map[string]map[sinks.Lane]int{} // by ID without the lane
	all := w.topics[name].messagesByLane()
	for lane, messages := range all {
		for i, e := range messages {
			if e.Type != event.Watermark {
				continue
			}
			id := e.ID[:strings.LastIndex(e.ID, "/"+string(event.Watermark)+"/")]
			if places[id] == nil {
				places[id] = map[sinks.Lane]int{}
			}
			places[id][lane] = i
		}
	}
	for id, at := range places {
		if len(at) < topicWidth {
			continue
		}
		complete++
		parts := strings.Split(id, "/") // cluster/resource@epoch/position
		resource, _, _ := strings.Cut(parts[1], "@")
		position, _ := strconv.Atoi(parts[2])
		got := map[string]string{}
		for lane, i := range at {
			for _, e := range all[lane][:i] {
				switch {
				case e.Type.IsControl() || e.Resource.String() != resource:
				case e.Type == event.Deleted:
					if strings.HasPrefix(got[e.Key], e.UID) {
						delete(got, e.Key)
					}
				default:
					got[e.Key] = e.UID + "@" + e.ResourceVersion
				}
			}
		}
		if want := w.cluster.objectsAt(resource, position); !maps.Equal(got, want) {
			w.t.Errorf("%s: before %s\n%s\nwant\n%s", name, id, formatObjects(got), formatObjects(want))
		}
	}
	return complete
}

func formatObjects(m map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, key+" "+m[key])
	}
	return strings.Join(all, "\n")
}
