package consumer

import (
	"cmp"
	crand "crypto/rand"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/test/parts/schemas"
)

const (
	worlds = 500
	names  = 40 // per scenario: 20,000 histories in total
)

// TestStreamRebuildsTheStateAtEveryPosition runs random histories through the source half of the exporter, with crashes and
// lost history, and rebuilds the state from the stream: in the order of one partition at every position, and from several
// partitions with repetitions at the end.
func TestStreamRebuildsTheStateAtEveryPosition(t *testing.T) {
	for seed := range uint64(worlds) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			p := newScenario(t, rand.New(rand.NewPCG(seed, 11)))
			p.runScenario()
			p.checkEveryPosition()
			p.checkPartitions()
		})
	}
}

// TestEmittedRecordsMatchTheirSchemas validates such streams against the published schemas, in every format: crashes, lost
// history and reused names produce unusual records.
func TestEmittedRecordsMatchTheirSchemas(t *testing.T) {
	seen := make(map[string]bool)
	for seed := range uint64(100) {
		p := newScenario(t, rand.New(rand.NewPCG(seed, 13)))
		p.runScenario()
		for _, l := range p.stream {
			seen[fmt.Sprint(l.change.Type, " within a snapshot: ", l.change.Snapshot != nil)] = true
			for _, f := range format.All() {
				if err := schemas.Check(f, f.AppendValue(nil, l.change)); err != nil {
					t.Fatalf("seed %d, %v: %v", seed, f, err)
				}
			}
		}
	}
	const want = 3*2 + 4 // changes within a snapshot and without; an object in it, its begin, its end; a gap
	if len(seen) != want {
		t.Errorf("seen %v, want %d kinds of record", slices.Sorted(maps.Keys(seen)), want)
	}
}

// scenario is a cluster, the source half of the exporter, and its journal.
type scenario struct {
	t *testing.T
	*cluster

	stored    event.StoredScope
	known     map[string]event.Known
	stream    []streamEntry // the durable stream
	uncertain map[int]bool  // revisions within which history was lost
	lists     int           // revision of the latest list
	compacted int           // revisions up to this one are compacted
}

// streamEntry is one change of the stream.
type streamEntry struct {
	change *event.Change
	record consumer.Record // the decoded record
	list   int             // revision of the latest list when it was written
}

func newScenario(t *testing.T, rnd *rand.Rand) *scenario {
	return &scenario{t: t, cluster: newCluster(rnd), known: map[string]event.Known{}, uncertain: map[int]bool{}}
}

func (p *scenario) runScenario() {
	for range 10 {
		p.writeRandomObjects(p.rnd.IntN(60), names)
		if p.rnd.IntN(5) == 0 {
			p.compacted = p.revision
		}
		p.runExporter(p.rnd.IntN(3) == 0)
	}
	p.writeRandomObjects(5, names)
	p.runExporter(true)
}

// runExporter processes the events since the last run, completely or up to a random crash.
func (p *scenario) runExporter(toTheEnd bool) {
	known := deltas.NewKnownSet()
	for _, k := range p.known {
		known.Add(k)
	}
	j := &journal{t: p.t, Tracker: deltas.NewTracker(
		deltas.Scope{ID: "s", Cluster: "c", Resource: event.Resource{Version: "v1", Resource: "things", Kind: "Thing"}},
		known, nil, time.Now,
	)}
	p.watchFromStored(j)
	if toTheEnd {
		p.writeElsewhere()
		j.appendObservation(j.ObserveEvents(nil, strconv.Itoa(p.revision)))
	}
	p.makeDurable(j, toTheEnd)
}

// watchFromStored lists or resumes, and passes the later events to the tracker.
func (p *scenario) watchFromStored(j *journal) {
	from, _ := strconv.Atoi(p.stored.Position)
	j.newest = p.lists
	if p.stored.Position == "" || from < p.compacted {
		from = p.relistObjects(j, from)
	}
	var batch []deltas.Event
	position := from
	for _, e := range p.history {
		if e.revision <= from {
			continue
		}
		batch, position = append(batch, deltas.Event{Type: watch.EventType(e.kind), Object: e.object}), e.revision
		if p.rnd.IntN(4) == 0 {
			j.appendObservation(j.ObserveEvents(batch, strconv.Itoa(position)))
			batch = nil
		}
	}
	j.appendObservation(j.ObserveEvents(batch, strconv.Itoa(position)))
}

// relistObjects emits the gap or the start of a snapshot, lists all objects, and returns the revision of the list.
func (p *scenario) relistObjects(j *journal, from int) int {
	for r := from + 1; r <= p.revision; r++ {
		p.uncertain[r] = true
	}
	to := strconv.Itoa(p.revision)
	list := deltas.List{Snapshot: &event.SnapshotInfo{ID: p.stored.Snapshot}, Position: to, Name: crand.Text()}
	j.newest, p.lists = p.revision, p.revision
	switch lost := p.stored.Position != "" || p.stored.LostReason != ""; {
	case lost && j.KnownCount() > 0:
		list.Snapshot = nil
		o := j.NewObservation(j.NewGap(p.stored.Position, to, "expired"))
		o.LostReason = "expired"
		j.appendObservation(o, nil)
	case lost || p.stored.Snapshot == "":
		list.Snapshot.ID = crand.Text()
		var first []*event.Change
		if lost {
			first = append(first, j.NewGap(p.stored.Position, to, "expired"))
		}
		o := j.NewObservation(append(first, j.NewSnapshotBegin(list.Snapshot.ID))...)
		o.Snapshot = list.Snapshot.ID
		j.appendObservation(o, nil)
	}
	j.StartList(list)
	var page []deltas.Event
	for _, o := range p.listObjects() {
		page = append(page, deltas.Event{Type: watch.Added, Object: o})
		if p.rnd.IntN(4) == 0 {
			j.appendObservation(j.ObserveEvents(page, ""))
			page = nil
		}
	}
	j.appendObservation(j.ObserveEvents(page, ""))
	o, more, err := j.ObserveMissing()
	if more {
		p.t.Fatal("unexpected second batch of missing objects")
	}
	j.appendObservation(o, err)
	j.appendObservation(j.FinishList(to), nil)
	revision := p.revision
	p.writeRandomObjects(p.rnd.IntN(20), names)
	return revision
}

// makeDurable stores all appended observations or a random prefix of them.
func (p *scenario) makeDurable(j *journal, all bool) {
	n := len(j.observations)
	if !all {
		n = p.rnd.IntN(n + 1)
	}
	for i, o := range j.observations[:n] {
		for _, c := range o.Changes {
			p.stream = append(p.stream, streamEntry{c, p.parseRecord(c), j.lists[i]})
		}
		for _, k := range o.Known {
			p.known[k.Key] = k
		}
		for _, key := range o.RemovedKeys {
			delete(p.known, key)
		}
		if o.LostReason != "" {
			p.stored = event.StoredScope{LostReason: o.LostReason}
		}
		if o.Snapshot != "" {
			p.stored = event.StoredScope{Snapshot: o.Snapshot}
		}
		if o.Position != "" {
			p.stored = event.StoredScope{Position: o.Position}
		}
	}
}

// journal is a tracker with its observations.
type journal struct {
	*deltas.Tracker
	t            *testing.T
	observations []event.Observation
	lists        []int // revision of the latest list, by observation
	newest       int
}

func (j *journal) appendObservation(o event.Observation, err error) {
	j.t.Helper()
	if err != nil {
		j.t.Fatal(err)
	}
	j.observations, j.lists = append(j.observations, o), append(j.lists, j.newest)
}

// parseRecord encodes a change and decodes it as a consumer does.
func (p *scenario) parseRecord(c *event.Change) consumer.Record {
	r, err := consumer.Parse(format.AppendJSON(nil, c))
	p.requireNoError(err)
	return r
}

// checkEveryPosition replays the stream by position. Differences found by a list count from the position of the list.
func (p *scenario) checkEveryPosition() {
	type placed struct {
		at     int
		record consumer.Record
	}
	var all []placed
	for _, l := range p.stream {
		at, _ := strconv.Atoi(l.change.ResourceVersion)
		if l.change.Coalesced || l.change.Type.IsControl() {
			at = max(at, l.list)
		}
		all = append(all, placed{at, l.record})
	}
	slices.SortStableFunc(all, func(a, b placed) int { return cmp.Compare(a.at, b.at) })

	var table consumer.Table
	next := 0
	for revision := 0; revision <= p.revision; revision++ {
		for ; next < len(all) && all[next].at <= revision; next++ {
			p.requireNoError(table.Apply(all[next].record))
		}
		if !p.uncertain[revision] && revision > 100 {
			p.compareTable(&table, revision, p.changedName(revision)...)
		}
	}
	p.compareTable(&table, p.revision, slices.Collect(maps.Keys(p.past))...)
	p.checkSnapshots(&table)
}

// changedName returns the name that changed at a revision, if any.
func (p *scenario) changedName(revision int) []string {
	if name := p.changed[revision]; name != "" {
		return []string{name}
	}
	return nil
}

// checkPartitions distributes the objects over partitions, repeats parts of each as a restart does, and reads them
// interleaved.
func (p *scenario) checkPartitions() {
	partitions := make([][]consumer.Record, 3)
	for _, l := range p.stream {
		n := 0
		for _, b := range l.change.Key() {
			n += int(b)
		}
		partitions[n%3] = append(partitions[n%3], l.record)
	}
	for i, records := range partitions {
		for range 3 {
			end := p.rnd.IntN(len(records) + 1)
			start := end - p.rnd.IntN(end+1)
			records = slices.Concat(records[:end], records[start:end], records[end:])
		}
		partitions[i] = records
	}
	var table consumer.Table
	for len(partitions[0])+len(partitions[1])+len(partitions[2]) > 0 {
		i := p.rnd.IntN(3)
		n := min(p.rnd.IntN(20), len(partitions[i]))
		for _, r := range partitions[i][:n] {
			p.requireNoError(table.Apply(r))
		}
		partitions[i] = partitions[i][n:]
	}
	p.compareTable(&table, p.revision, slices.Collect(maps.Keys(p.past))...)
	p.checkSnapshots(&table)
}

// compareTable compares the table with the selected state of some names, and with the number of objects, at a revision.
func (p *scenario) compareTable(table *consumer.Table, revision int, names ...string) {
	things := consumer.Resource{Cluster: "c", Resource: "things"}
	for _, name := range names {
		want := p.shownAt(name, revision)
		got, exists := table.Get(things, consumer.Key{Namespace: "ns", Name: name})
		if exists != (want.body != "") || string(got.Body) != want.body {
			p.t.Fatalf("at %d, %s:\nthe API server showed %q\nthe stream has        %q", revision, name, want.body, got.Body)
		}
	}
	if n := table.Len(things); n != p.count[revision] {
		p.t.Fatalf("at %d the API server showed %d objects, the stream has %d", revision, p.count[revision], n)
	}
}

// checkSnapshots requires every snapshot to have ended and to match its digest.
func (p *scenario) checkSnapshots(table *consumer.Table) {
	for _, f := range table.Snapshots() {
		if !f.Ended || !f.Verified {
			p.t.Errorf("snapshot %+v", f)
		}
	}
}

func (p *scenario) requireNoError(err error) {
	if err != nil {
		p.t.Helper()
		p.t.Fatal(err)
	}
}
