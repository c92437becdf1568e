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
	names  = 40 // objects of each: 20,000 histories in all
)

// TestTheStreamAloneGivesTheStateAtEveryPosition plays random histories to the half of the exporter that decides what
// changed, kills it again and again, takes history away from it now and then, and rebuilds the state from what it wrote:
// in the order of one partition at every position, and from several partitions with repetitions at the end.
func TestTheStreamAloneGivesTheStateAtEveryPosition(t *testing.T) {
	for seed := range uint64(worlds) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			p := newPlay(t, rand.New(rand.NewPCG(seed, 11)))
			p.run()
			p.checkEveryPosition()
			p.checkPartitions()
		})
	}
}

// TestWhateverIsToldIsAsItsSchemaSays holds such streams to the published schemas, in every format: crashes, lost history
// and namesakes make records that nobody thinks of when writing a schema.
func TestWhateverIsToldIsAsItsSchemaSays(t *testing.T) {
	seen := make(map[string]bool)
	for seed := range uint64(100) {
		p := newPlay(t, rand.New(rand.NewPCG(seed, 13)))
		p.run()
		for _, l := range p.told {
			seen[fmt.Sprint(l.change.Type, " within a snapshot: ", l.change.Snapshot != nil)] = true
			for _, f := range format.All() {
				if err := schemas.Check(f, f.AppendValue(nil, l.change)); err != nil {
					t.Fatalf("seed %d, %v: %v", seed, f, err)
				}
			}
		}
	}
	const want = 3*2 + 4 // a change within a snapshot and without; an object in it, its begin, its end; a gap
	if len(seen) != want {
		t.Errorf("seen %v, want %d kinds of record", slices.Sorted(maps.Keys(seen)), want)
	}
}

// play is one world: a cluster, the source half of the exporter, and its journal.
type play struct {
	t *testing.T
	*cluster

	stored event.StoredScope
	known  map[string]event.Known
	told   []line       // what is durable
	vague  map[int]bool // revisions within which history was lost
	lists  int          // revision of the newest list
	forget int          // revisions up to this one are compacted
}

// line is a change in the stream.
type line struct {
	change *event.Change
	record consumer.Record // what a consumer reads of it
	list   int             // revision of the newest list when it was written
}

func newPlay(t *testing.T, rnd *rand.Rand) *play {
	return &play{t: t, cluster: newCluster(rnd), known: map[string]event.Known{}, vague: map[int]bool{}}
}

func (p *play) run() {
	for range 10 {
		p.live(p.rnd.IntN(60), names)
		if p.rnd.IntN(5) == 0 {
			p.forget = p.revision
		}
		p.export(p.rnd.IntN(3) == 0)
	}
	p.live(5, names)
	p.export(true)
}

// export runs the exporter's source half over what happened since, to the end or until it is killed somewhere.
func (p *play) export(toTheEnd bool) {
	known := deltas.NewKnown()
	for _, k := range p.known {
		known.Add(k)
	}
	j := &journal{t: p.t, Tracker: deltas.NewTracker(
		deltas.Scope{ID: "s", Cluster: "c", Resource: event.Resource{Version: "v1", Resource: "things", Kind: "Thing"}},
		known, nil, time.Now,
	)}
	p.watch(j)
	if toTheEnd {
		p.elsewhere()
		j.take(j.Watched(nil, strconv.Itoa(p.revision)))
	}
	p.keep(j, toTheEnd)
}

// watch lists, or resumes, and hands over what happened after.
func (p *play) watch(j *journal) {
	from, _ := strconv.Atoi(p.stored.Position)
	j.newest = p.lists
	if p.stored.Position == "" || from < p.forget {
		from = p.relist(j, from)
	}
	var batch []deltas.Event
	position := from
	for _, e := range p.history {
		if e.revision <= from {
			continue
		}
		batch, position = append(batch, deltas.Event{Type: watch.EventType(e.kind), Object: e.object}), e.revision
		if p.rnd.IntN(4) == 0 {
			j.take(j.Watched(batch, strconv.Itoa(position)))
			batch = nil
		}
	}
	j.take(j.Watched(batch, strconv.Itoa(position)))
}

// relist reads all objects, after telling why, and returns the revision of the list.
func (p *play) relist(j *journal, from int) int {
	for r := from + 1; r <= p.revision; r++ {
		p.vague[r] = true
	}
	list := deltas.List{Snapshot: &event.SnapshotInfo{ID: p.stored.Snapshot}, Name: crand.Text()}
	to := strconv.Itoa(p.revision)
	j.newest, p.lists = p.revision, p.revision
	switch lost := p.stored.Position != "" || p.stored.Lost != ""; {
	case lost && j.Known() > 0:
		list.Snapshot = nil
		o := j.Observe(j.Gap(p.stored.Position, to, "expired"))
		o.Lost = "expired"
		j.take(o, nil)
	case lost || p.stored.Snapshot == "":
		list.Snapshot.ID = crand.Text()
		var first []*event.Change
		if lost {
			first = append(first, j.Gap(p.stored.Position, to, "expired"))
		}
		o := j.Observe(append(first, j.SnapshotBegin(list.Snapshot.ID))...)
		o.Snapshot = list.Snapshot.ID
		j.take(o, nil)
	}
	j.BeginList(list)
	var page []deltas.Event
	for _, o := range p.list() {
		page = append(page, deltas.Event{Type: watch.Added, Object: o})
		if p.rnd.IntN(4) == 0 {
			j.take(j.Watched(page, ""))
			page = nil
		}
	}
	j.take(j.Watched(page, ""))
	o, more, err := j.Missing()
	if more {
		p.t.Fatal("a small world has too many objects")
	}
	j.take(o, err)
	j.take(j.EndList(to), nil)
	revision := p.revision
	p.live(p.rnd.IntN(20), names)
	return revision
}

// keep makes what was appended durable, or a part of it.
func (p *play) keep(j *journal, all bool) {
	n := len(j.observations)
	if !all {
		n = p.rnd.IntN(n + 1)
	}
	for i, o := range j.observations[:n] {
		for _, c := range o.Changes {
			p.told = append(p.told, line{c, p.record(c), j.lists[i]})
		}
		for _, k := range o.Known {
			p.known[k.Key] = k
		}
		for _, key := range o.Forget {
			delete(p.known, key)
		}
		if o.Lost != "" {
			p.stored = event.StoredScope{Lost: o.Lost}
		}
		if o.Snapshot != "" {
			p.stored = event.StoredScope{Snapshot: o.Snapshot}
		}
		if o.Position != "" {
			p.stored = event.StoredScope{Position: o.Position}
		}
	}
}

// journal is a tracker and what it observed.
type journal struct {
	*deltas.Tracker
	t            *testing.T
	observations []event.Observation
	lists        []int // for each observation, the revision of the newest list
	newest       int
}

func (j *journal) take(o event.Observation, err error) {
	j.t.Helper()
	if err != nil {
		j.t.Fatal(err)
	}
	j.observations, j.lists = append(j.observations, o), append(j.lists, j.newest)
}

// record writes a change and reads it again.
func (p *play) record(c *event.Change) consumer.Record {
	r, err := consumer.Parse(format.AppendJSON(nil, c))
	p.must(err)
	return r
}

// checkEveryPosition replays the stream by position. What a list showed to be different is told from its position on.
func (p *play) checkEveryPosition() {
	type placed struct {
		at     int
		record consumer.Record
	}
	var all []placed
	for _, l := range p.told {
		at, _ := strconv.Atoi(l.change.ResourceVersion)
		if l.change.Coalesced || l.change.Type.Control() {
			at = max(at, l.list)
		}
		all = append(all, placed{at, l.record})
	}
	slices.SortStableFunc(all, func(a, b placed) int { return cmp.Compare(a.at, b.at) })

	var table consumer.Table
	next := 0
	for revision := 0; revision <= p.revision; revision++ {
		for ; next < len(all) && all[next].at <= revision; next++ {
			p.must(table.Apply(all[next].record))
		}
		if !p.vague[revision] && revision > 100 {
			p.compare(&table, revision, p.touched(revision)...)
		}
	}
	p.compare(&table, p.revision, slices.Collect(maps.Keys(p.past))...)
	p.frames(&table)
}

// touched is the name that changed at a revision, if any.
func (p *play) touched(revision int) []string {
	if name := p.changed[revision]; name != "" {
		return []string{name}
	}
	return nil
}

// checkPartitions deals the objects out to partitions, repeats parts of each as a restart does, and reads them mixed.
func (p *play) checkPartitions() {
	partitions := make([][]consumer.Record, 3)
	for _, l := range p.told {
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
			p.must(table.Apply(r))
		}
		partitions[i] = partitions[i][n:]
	}
	p.compare(&table, p.revision, slices.Collect(maps.Keys(p.past))...)
	p.frames(&table)
}

// compare holds the table to what the API server showed of some names at a revision, and to how many there were.
func (p *play) compare(table *consumer.Table, revision int, names ...string) {
	things := consumer.Resource{Cluster: "c", Resource: "things"}
	for _, name := range names {
		want := p.shown(name, revision)
		got, exists := table.Get(things, consumer.Key{Namespace: "ns", Name: name})
		if exists != (want.body != "") || string(got.Body) != want.body {
			p.t.Fatalf("at %d, %s:\nthe API server showed %q\nthe stream says       %q", revision, name, want.body, got.Body)
		}
	}
	if n := table.Len(things); n != p.count[revision] {
		p.t.Fatalf("at %d the API server showed %d objects, the stream says %d", revision, p.count[revision], n)
	}
}

// frames wants every snapshot to have ended and to be proven by its digest.
func (p *play) frames(table *consumer.Table) {
	for _, f := range table.Snapshots() {
		if !f.Ended || !f.Verified {
			p.t.Errorf("snapshot %+v", f)
		}
	}
}

func (p *play) must(err error) {
	if err != nil {
		p.t.Helper()
		p.t.Fatal(err)
	}
}
