package consumer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
)

const (
	histories = 2000
	objects   = 6
)

var things = Resource{Cluster: "c", Resource: "things"}

// TestRulesRebuildTheStateOfTheCluster writes random streams as docs/events.md describes them: with lost history, lost
// journals that are followed by one of a machine with another clock, interrupted snapshots, edited rules, resync, restored
// backups and repetitions. Both a table and the literal implementation of docs/consuming.md must end in the selected state
// of the cluster. A third of the streams is of an exporter that does not write listVersion.
func TestRulesRebuildTheStateOfTheCluster(t *testing.T) {
	seen, checks := map[string]int{}, watermarkChecks{}
	for seed := range uint64(histories) {
		w := newWorld(t, rand.New(rand.NewPCG(seed, 17)), seed%2 == 0)
		w.older = seed%3 == 0
		w.runHistory()
		if w.collides {
			continue
		}
		order := w.streamOrder()
		for _, i := range order {
			r := w.stream[i]
			seen[r.Type]++
			if r.Left {
				seen["left"]++
			}
			if r.Gap != nil && isLower(r.Gap.To, r.Gap.From) {
				seen["restored"]++
			}
		}
		checks.checkRules(t, w, seed, order)
	}
	for _, kind := range []string{"added", "updated", "deleted", "snapshot", "sync", "gap", "snapshot.begin", "snapshot.end", "left", "restored"} {
		if seen[kind] < 100 {
			t.Errorf("only %d records of %s: too few to be meaningful", seen[kind], kind)
		}
	}
	checks.wantMade(t, 5*histories)
}

// TestRulesHoldForAnyPartitionOrder reads such streams, without restored backups, from three partitions that are
// read at different speeds and repeat parts of themselves. In a third of them the topic gets a fourth partition, and
// objects move: what was written before that may be read afterwards.
func TestRulesHoldForAnyPartitionOrder(t *testing.T) {
	checks := watermarkChecks{}
	for seed := range uint64(histories) {
		w := newWorld(t, rand.New(rand.NewPCG(seed, 18)), false)
		w.older, w.grows = seed%3 == 0, seed%3 == 1
		w.runHistory()
		checks.checkRules(t, w, seed, w.partitionOrder(seed%4 > 0))
	}
	checks.wantMade(t, histories/10)
}

// TestEveryWatermarkIsChecked reads streams without lost history from three partitions at different speeds: every watermark
// is compared, as the snapshot was read before. A stream that lacks one record is found to differ.
func TestEveryWatermarkIsChecked(t *testing.T) {
	checks, found := watermarkChecks{}, 0
	for seed := range uint64(histories) {
		w := newWorld(t, rand.New(rand.NewPCG(seed, 20)), false)
		w.runSteadily()
		order := w.snapshotFirst(w.partitionOrder(false))
		table := checks.read(t, w, order)
		if all := table.Watermarks(); all[0].Check != CheckEqual {
			t.Fatalf("the last check is %s\n%s", all[0].Check, w)
		}
		if w.lacksRecord(t, order) {
			found++
		}
	}
	checks.wantMade(t, 15*histories)
	if t.Logf("%d streams lacked a record, and a check found each", found); found < histories/2 {
		t.Errorf("only %d streams lacked a record", found)
	}
}

// TestPartitionsMayBeReadOneAfterTheOther reads one partition to its end, with more watermarks than are kept, before the
// next one begins: the newest watermark is found complete and equal all the same.
func TestPartitionsMayBeReadOneAfterTheOther(t *testing.T) {
	for seed := range uint64(5) {
		w := newWorld(t, rand.New(rand.NewPCG(seed, 22)), false)
		w.runLong()
		checks := watermarkChecks{}
		checks.read(t, w, w.snapshotFirst(slices.Concat(w.partitions()...)))
		checks.wantMade(t, maxPendingWatermarks/2)
	}
}

// runLong simulates an exporter that emits more watermarks than are kept.
func (w *world) runLong() {
	w.runSteadily()
	for range 2 * maxPendingWatermarks {
		w.changeObjects(w.rnd.IntN(3))
		w.watchChanges()
		w.emitWatermark()
	}
}

// snapshotFirst returns an order in which the snapshot at the beginning is read first.
func (w *world) snapshotFirst(order []int) []int {
	end := slices.IndexFunc(w.stream, func(r Record) bool { return r.Type == "snapshot.end" })
	later := slices.DeleteFunc(slices.Clone(order), func(i int) bool { return i <= end })
	return append(slices.DeleteFunc(order, func(i int) bool { return i > end }), later...)
}

// lacksRecord reads the stream without the newest record of an object that exists at the end, and checks that the difference
// is found. It returns false if there is no such object.
func (w *world) lacksRecord(t *testing.T, order []int) bool {
	lost := -1
	for i, r := range w.stream {
		if v, known := w.known[r.Name]; known && r.Type != "sync" && r.ResourceVersion == v.resourceVersion {
			lost = i
		}
	}
	if lost < 0 {
		return false
	}
	table := &Table{}
	for _, i := range order {
		r := w.stream[i]
		if i == lost || r.Type == "sync" { // which would repair it
			continue
		}
		if err := table.Apply(r); err != nil {
			t.Fatal(err)
		}
	}
	if all := table.Watermarks(); all[0].Check != CheckDifferent || all[0].Different == 0 {
		t.Fatalf("without %s the last check is %+v\n%s", w.stream[lost].ID, all[0], w)
	}
	return true
}

// runSteadily simulates an exporter that loses nothing.
func (w *world) runSteadily() {
	w.changeObjects(10)
	w.emitSnapshot()
	for range 20 {
		w.changeObjects(w.rnd.IntN(8))
		w.watchChanges()
		if w.rnd.IntN(5) == 0 {
			w.emitResync()
		}
		w.emitWatermark()
	}
}

// watermarkChecks counts the watermarks that tables had from all partitions, by the result of their check.
type watermarkChecks struct {
	last  WatermarkStatus
	count map[Check]int
}

// observe counts the newest watermark of a table if it is another one.
func (c *watermarkChecks) observe(table *Table) {
	for _, w := range table.Watermarks() {
		if w.Epoch == c.last.Epoch && w.Sequence == c.last.Sequence {
			continue
		}
		if c.last = w; c.count == nil {
			c.count = map[Check]int{}
		}
		c.count[w.Check]++
	}
}

// checkRules reads the stream in an order, with a table and by the literal rules: both end in the selected state.
func (c *watermarkChecks) checkRules(t *testing.T, w *world, seed uint64, order []int) {
	t.Helper()
	table, letter := c.read(t, w, order), newRuleModel()
	for _, i := range order {
		letter.applyRecord(w.stream[i])
	}
	want := w.selectedBodies()
	if got := letter.existingBodies(); !maps.Equal(got, want) {
		t.Fatalf("seed %d: the rules end in\n%v\nthe cluster is\n%v\n%s", seed, got, want, w)
	}
	if got := stateOf(table); !maps.Equal(got, want) {
		t.Fatalf("seed %d: the table holds\n%v\nthe cluster is\n%v\n%s", seed, got, want, w)
	}
	for _, f := range table.Snapshots() {
		if f.Ended && !f.Verified {
			t.Fatalf("seed %d: the snapshot %s is not verified\n%s", seed, f.ID, w)
		}
	}
}

// read applies the stream in an order to a table, and counts the checks of watermarks.
func (c *watermarkChecks) read(t *testing.T, w *world, order []int) *Table {
	t.Helper()
	table := &Table{}
	for _, i := range order {
		if err := table.Apply(w.stream[i]); err != nil {
			t.Fatal(err)
		}
		c.observe(table)
	}
	c.checkEnd(t, w, table)
	return table
}

// checkEnd checks that the last watermark is the newest one that is complete, and that no check found a difference.
func (c *watermarkChecks) checkEnd(t *testing.T, w *world, table *Table) {
	t.Helper()
	all := table.Watermarks()
	if len(all) != 1 || all[0].Epoch != w.epoch || all[0].Sequence != w.sequence || all[0].Position != strconv.Itoa(w.at) {
		t.Fatalf("the newest watermark is %+v, want %d of %s at %d\n%s", all, w.sequence, w.epoch, w.at, w)
	}
	if all[0].Different > 0 {
		t.Fatalf("%d watermarks differ from the table, the last check is %+v\n%s", all[0].Different, all[0], w)
	}
}

// wantMade checks that so many watermarks were compared, so that the absence of differences means something.
func (c *watermarkChecks) wantMade(t *testing.T, least int) {
	t.Helper()
	t.Logf("checks of watermarks: %v", c.count)
	if c.count[CheckEqual] < least {
		t.Errorf("checks of watermarks: %v: too few to be meaningful", c.count)
	}
}

func stateOf(table *Table) map[Key]string {
	all := map[Key]string{}
	for _, o := range table.Objects(things) {
		all[o.Key] = string(o.Body)
	}
	return all
}

// streamOrder returns the indices of the records in the order of one partition, with repetitions.
func (w *world) streamOrder() []int {
	all := make([]int, len(w.stream))
	for i := range all {
		all[i] = i
	}
	return repeatBlocks(w.rnd, all)
}

// partitionOrder returns the indices of the records as partitions give them that are read at different speeds, with
// repetitions if the exporter was restarted.
func (w *world) partitionOrder(restarted bool) (order []int) {
	partitions := w.partitions()
	for i, p := range partitions {
		if restarted {
			partitions[i] = repeatBlocks(w.rnd, p)
		}
	}
	for all := len(slices.Concat(partitions...)); len(order) < all; {
		i := w.rnd.IntN(w.lanes)
		n := min(w.rnd.IntN(8), len(partitions[i]))
		order, partitions[i] = append(order, partitions[i][:n]...), partitions[i][n:]
	}
	return order
}

// partitions returns the indices of the records of each partition.
func (w *world) partitions() [][]int {
	partitions := make([][]int, w.lanes)
	for i, r := range w.stream {
		lanes := w.lanes
		if i < w.grownAt {
			lanes--
		}
		n := (lanes - 1) % 3 // control records have a partition too
		switch {
		case r.Name != "":
			n = int(r.Name[0]) % lanes
		case r.Watermark != nil:
			n = r.Watermark.Lane
		}
		partitions[n] = append(partitions[n], i)
	}
	return partitions
}

// repeatBlocks repeats blocks of a stream, as restarts of the exporter do.
func repeatBlocks(rnd *rand.Rand, stream []int) []int {
	for range 3 {
		end := rnd.IntN(len(stream) + 1)
		start := end - rnd.IntN(end+1)
		stream = slices.Concat(stream[:end], stream[start:end], stream[end:])
	}
	return stream
}

// world is a cluster with one resource, and an exporter that reads it.
type world struct {
	t        *testing.T
	rnd      *rand.Rand
	backed   bool // one backup is restored, and no journal is lost
	restores bool // the backup is yet to be restored
	older    bool // the exporter is one before listVersion; its clocks agree
	grows    bool // the topic gets a partition; the clocks agree
	clock    int  // seconds by which the clock of the exporter is ahead

	revision int
	uids     int
	exist    map[string]version
	states   map[string]string // group of each object, by which rules select it
	ends     map[string]int    // revision at which an object was deleted, by UID
	backups  []backup

	rule   string // the selected group; "" for all
	known  map[string]version
	at     int // position
	passes int

	cluster  string // its name; "c" if it is empty
	lanes    int    // partitions of the topic; control records but watermarks are in one of them
	grownAt  int    // record from which on there is one more; 0 if there is none
	epoch    string // of watermarks; "" before the first complete state
	sequence uint64
	marks    int // watermarks emitted

	stream []Record // as emitted
	values [][]byte // of the records

	ids      map[string]bool  // of records
	written  map[version]bool // all versions that ever existed
	collides bool             // a restored cluster assigned one version twice, see docs/delivery.md on restoring etcd
}

// backup is a saved state of the cluster.
type backup struct {
	revision int
	exist    map[string]version
	states   map[string]string
}

func newWorld(t *testing.T, rnd *rand.Rand, restores bool) *world {
	return &world{t: t, rnd: rnd, lanes: 3, backed: restores, restores: restores, revision: 100, exist: map[string]version{}, states: map[string]string{}, ids: map[string]bool{},
		written: map[version]bool{}, known: map[string]version{}, ends: map[string]int{}}
}

func (w *world) String() string {
	text := ""
	for _, r := range w.stream {
		text += fmt.Sprintf("%s %s rv=%s coalesced=%t left=%t snapshot=%v gap=%v\n", r.ID, r.Name, r.ResourceVersion, r.Coalesced, r.Left, r.Snapshot, r.Gap)
	}
	return text
}

// runHistory simulates an exporter: first a snapshot, then random events.
func (w *world) runHistory() {
	w.changeObjects(10)
	w.emitSnapshot()
	growsAt := w.rnd.IntN(8)
	for i := range 8 {
		if w.grows && i == growsAt {
			w.lanes, w.grownAt = w.lanes+1, len(w.stream)
		}
		w.emitWatermark()
		w.changeObjects(w.rnd.IntN(12))
		switch w.rnd.IntN(10) {
		case 0, 1:
			w.watchChanges()
		case 2: // history expired
			w.emitGap(w.at, w.revision, "expired")
			w.relistObjects(nil, "")
		case 3: // the journal is lost; not combined with a backup, as rule 8 excludes that
			if w.backed {
				w.watchChanges()
				continue
			}
			for range w.rnd.IntN(3) { // also in the middle of the snapshot that follows
				w.loseJournal()
				w.emitUnendedSnapshot()
			}
			w.loseJournal()
			w.emitSnapshot()
		case 4: // edited rules
			w.watchChanges()
			w.changeObjects(w.rnd.IntN(5))
			w.editRules()
			w.relistObjects(nil, w.nextPass())
		case 5:
			w.watchChanges()
			w.emitResync()
		case 6:
			w.restoreBackup()
		case 7: // the rules stop selecting the resource, and select it again; not in a topic that grows, as rule 10 excludes that
			w.watchChanges()
			if w.grows {
				continue
			}
			w.emitLeft()
			w.changeObjects(w.rnd.IntN(5))
			w.emitSnapshot()
		case 8: // another exporter continues from the replicated state
			w.moveExporter()
			w.startEpoch()
			w.watchChanges()
		case 9: // so it does, and history has expired
			w.moveExporter()
			w.emitGap(w.at, w.revision, "expired")
			w.relistObjects(nil, "")
		}
	}
	w.watchChanges()
	w.emitWatermark()
}

// runRestoredHistory simulates an exporter with a slow clock that continues from the state of another one, and sees the
// cluster restored from a backup that is older than the first list.
func (w *world) runRestoredHistory() {
	w.changeObjects(10)
	w.backups = []backup{{w.revision, maps.Clone(w.exist), maps.Clone(w.states)}}
	w.changeObjects(10)
	w.emitSnapshot()
	w.emitWatermark()
	w.moveExporter()
	w.clock = -36_000
	w.startEpoch()
	w.watchChanges()
	w.restoreBackup()
	w.watchChanges()
	w.emitWatermark()
}

// emitWatermark emits a watermark of the known objects, a copy for each partition, if the cluster has moved on, and
// sometimes in an epoch of its own: the exporter was restarted.
func (w *world) emitWatermark() {
	if w.rnd.IntN(3) == 0 {
		w.startEpoch()
	}
	w.sequence++
	w.marks++
	var digest event.Digest
	for name, v := range w.known {
		digest.Add("ns", name, v.uid, v.resourceVersion)
	}
	for lane := range w.lanes {
		w.emitChange(event.Change{Type: event.Watermark, ResourceVersion: strconv.Itoa(w.at), Watermark: &event.WatermarkInfo{
			Epoch: w.epoch, Sequence: w.sequence, Algorithm: event.DigestAlgorithm, Count: len(w.known), Digest: digest.String(),
			Lane: lane, Lanes: w.lanes,
		}})
	}
}

func (w *world) startEpoch() { w.epoch, w.sequence = w.nextPass(), 0 }

// moveExporter continues on another machine, with another clock. Something is written in the cluster meanwhile: what was
// read at one version by two exporters is ordered by their clocks.
func (w *world) moveExporter() {
	w.revision++
	if !w.older && !w.grows {
		w.clock = w.rnd.IntN(72_001) - 36_000 // hours
	}
}

// loseJournal continues without a journal and without a state. Rules may have been edited before that.
func (w *world) loseJournal() {
	w.known = map[string]version{}
	w.moveExporter()
	if w.rnd.IntN(3) == 0 {
		w.editRules()
	}
	w.emitGap(0, w.revision, "lost")
}

// emitUnendedSnapshot emits a part of a first list.
func (w *world) emitUnendedSnapshot() {
	info := &event.SnapshotInfo{ID: w.nextPass()}
	w.emitChange(event.Change{Type: event.SnapshotBegin, Snapshot: info})
	w.emitPartOf(info, "")
	w.changeObjects(w.rnd.IntN(6))
}

// emitPartOf emits some of the objects of a snapshot.
func (w *world) emitPartOf(info *event.SnapshotInfo, pass string) {
	for _, name := range w.objectNames() {
		if w.isSelected(name) && w.known[name].uid == "" && w.rnd.IntN(2) == 0 {
			w.emitObject(event.Snapshot, name, w.exist[name], func(c *event.Change) { c.Snapshot, c.Pass, c.ListVersion = info, pass, w.listVersion() })
		}
	}
}

// editRules changes the selection.
func (w *world) editRules() {
	w.startEpoch()
	w.rule = []string{"", "blue", "red"}[w.rnd.IntN(3)]
}

// emitLeft emits that all objects left, because no rule selects them any more.
func (w *world) emitLeft() {
	pass := w.nextPass()
	for _, name := range w.objectNames() {
		if v, known := w.known[name]; known {
			w.emitObject(event.Deleted, name, v, func(c *event.Change) { c.Coalesced, c.FinalStateUnknown, c.Left, c.Pass = true, true, true, pass })
		}
	}
}

// changeObjects makes n random changes.
func (w *world) changeObjects(n int) {
	for range n {
		w.revision++
		name := string(rune('a' + w.rnd.IntN(objects)))
		old := w.exist[name]
		switch {
		case old.uid == "":
			w.uids++ // a restored cluster reuses revisions, but not UIDs
			w.exist[name] = version{uid: fmt.Sprintf("%s-%d", name, w.uids), resourceVersion: strconv.Itoa(w.revision)}
			w.states[name] = []string{"blue", "red"}[w.rnd.IntN(2)]
		case w.rnd.IntN(4) == 0:
			w.ends[old.uid] = w.revision
			w.recordVersion(version{uid: old.uid, resourceVersion: strconv.Itoa(w.revision)})
			delete(w.exist, name)
			delete(w.states, name)
		default:
			w.exist[name] = version{uid: old.uid, resourceVersion: strconv.Itoa(w.revision)}
			if w.rnd.IntN(3) == 0 {
				w.states[name] = map[string]string{"blue": "red", "red": "blue"}[w.states[name]]
			}
			w.recordVersion(w.exist[name])
		}
		if w.rnd.IntN(5) == 0 && w.restores {
			w.backups = append(w.backups, backup{w.revision, maps.Clone(w.exist), maps.Clone(w.states)})
		}
	}
}

// recordVersion records a version, and whether it was assigned before.
func (w *world) recordVersion(v version) {
	w.collides = w.collides || w.written[v]
	w.written[v] = true
}

func (w *world) isSelected(name string) bool {
	return w.exist[name].uid != "" && (w.rule == "" || w.states[name] == w.rule)
}

// selectedBodies returns the state that the stream must produce.
func (w *world) selectedBodies() map[Key]string {
	all := map[Key]string{}
	for name, v := range w.exist {
		if w.isSelected(name) {
			all[Key{"ns", name}] = string(w.objectBody(v))
		}
	}
	return all
}

func (w *world) objectBody(v version) []byte {
	b, err := json.Marshal(map[string]string{"uid": v.uid, "resourceVersion": v.resourceVersion})
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// emitChange encodes a change and decodes it as a consumer does.
func (w *world) emitChange(c event.Change) {
	c.Cluster, c.Resource = cmp.Or(w.cluster, "c"), event.Resource{Version: "v1", Resource: "things", Kind: "Thing"}
	c.ObservedAt = time.Unix(1767323045+int64(len(w.stream)+w.clock), 0)
	value := format.AppendJSON(nil, &c)
	r, err := Parse(value)
	if err != nil {
		w.t.Fatal(err)
	}
	w.collides = w.collides || w.ids[r.ID] && r.Type != "gap"
	w.ids[r.ID] = true
	w.stream, w.values = append(w.stream, r), append(w.values, value)
}

func (w *world) emitObject(t event.Type, name string, v version, mark func(*event.Change)) {
	c := event.Change{Type: t, Delta: event.DeltaUpdated, Namespace: "ns", Name: name, UID: v.uid, ResourceVersion: v.resourceVersion}
	if t != event.Deleted {
		c.After = w.objectBody(v)
	}
	if mark != nil {
		mark(&c)
	}
	w.emitChange(c)
	if t == event.Deleted {
		delete(w.known, name)
	} else {
		w.known[name] = v
	}
}

// watchChanges emits the differences as watch events, one per name; intermediate versions are skipped.
func (w *world) watchChanges() {
	for _, name := range w.objectNames() {
		now, known := w.exist[name], w.known[name]
		switch {
		case known.uid == "" && w.isSelected(name):
			w.emitObject(event.Added, name, now, nil)
		case known.uid == "":
		case now.uid == known.uid && !w.isSelected(name): // its labels no longer match
			w.emitObject(event.Deleted, name, now, nil)
		case now.uid != known.uid:
			w.emitObject(event.Deleted, name, version{uid: known.uid, resourceVersion: strconv.Itoa(w.ends[known.uid])}, nil)
			if w.isSelected(name) {
				w.emitObject(event.Added, name, now, nil)
			}
		case now.resourceVersion != known.resourceVersion:
			w.emitObject(event.Updated, name, now, nil)
		}
	}
	w.at = w.revision
}

// objectNames returns all existing or known names, in random order.
func (w *world) objectNames() []string {
	all := map[string]bool{}
	for name := range w.exist {
		all[name] = true
	}
	for name := range w.known {
		all[name] = true
	}
	names := slices.Sorted(maps.Keys(all))
	w.rnd.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names
}

func (w *world) emitGap(from, to int, reason string) {
	w.startEpoch()
	g := &event.GapInfo{To: strconv.Itoa(to), Reason: reason}
	if from > 0 {
		g.From = strconv.Itoa(from)
	}
	w.emitChange(event.Change{Type: event.Gap, ResourceVersion: g.To, Gap: g})
}

func (w *world) nextPass() string {
	w.passes++
	return "pass-" + strconv.Itoa(w.passes)
}

// relistObjects compares the existing objects with the known ones.
func (w *world) relistObjects(snapshot *event.SnapshotInfo, pass string) {
	mark := func(c *event.Change) {
		c.Coalesced, c.Snapshot, c.Pass, c.ListVersion = true, snapshot, pass, w.listVersion()
	}
	list := cmp.Or(pass, w.nextPass())
	gone := func(c *event.Change) {
		mark(c)
		c.FinalStateUnknown, c.Left, c.Pass = true, pass != "", list
	}
	for _, name := range w.objectNames() {
		now, known := w.exist[name], w.known[name]
		switch {
		case known.uid != "" && !w.isSelected(name):
			w.emitObject(event.Deleted, name, known, gone)
		case !w.isSelected(name) || now == known:
		case known.uid == now.uid:
			w.emitObject(event.Updated, name, now, mark)
		case known.uid != "":
			w.emitObject(event.Deleted, name, known, func(c *event.Change) {
				mark(c)
				c.FinalStateUnknown, c.Pass = true, cmp.Or(pass, now.uid)
			})
			w.emitObject(event.Added, name, now, mark)
		case snapshot != nil:
			w.emitObject(event.Snapshot, name, now, func(c *event.Change) { c.Snapshot, c.Pass, c.ListVersion = snapshot, pass, w.listVersion() })
		default:
			w.emitObject(event.Added, name, now, mark)
		}
	}
	w.at = w.revision
}

// emitSnapshot emits a first list, which may be interrupted while the cluster changes and rules are edited.
func (w *world) emitSnapshot() {
	w.startEpoch()
	info, pass := &event.SnapshotInfo{ID: w.nextPass()}, ""
	w.emitChange(event.Change{Type: event.SnapshotBegin, Snapshot: info})
	for w.rnd.IntN(3) == 0 { // all of the list or a part of it, then a restart
		if w.rnd.IntN(3) == 0 {
			w.relistObjects(info, pass)
		}
		w.emitPartOf(info, pass)
		w.changeObjects(w.rnd.IntN(6))
		if w.rnd.IntN(2) == 0 {
			w.editRules()
			pass = w.nextPass()
		}
	}
	w.relistObjects(info, pass)
	var digest event.Digest
	for name, v := range w.known {
		digest.Add("ns", name, v.uid, v.resourceVersion)
	}
	at := strconv.Itoa(w.revision)
	w.emitChange(event.Change{Type: event.SnapshotEnd, ResourceVersion: at,
		Snapshot: &event.SnapshotInfo{ID: info.ID, Position: at, Count: len(w.known), Digest: digest.String()}})
}

// listVersion returns the version of a list that is read now, as the exporter writes it.
func (w *world) listVersion() string {
	if w.older {
		return ""
	}
	return strconv.Itoa(w.revision)
}

// emitResync emits the known objects again.
func (w *world) emitResync() {
	pass := w.nextPass()
	for _, name := range w.objectNames() {
		if v, known := w.known[name]; known {
			w.emitObject(event.Sync, name, v, func(c *event.Change) { c.Pass, c.ListVersion = pass, w.listVersion() })
		}
	}
}

// restoreBackup resets the cluster to the backup.
func (w *world) restoreBackup() {
	if len(w.backups) == 0 {
		return
	}
	w.watchChanges()
	b := w.backups[w.rnd.IntN(len(w.backups))]
	w.revision, w.exist, w.states = b.revision, maps.Clone(b.exist), maps.Clone(b.states)
	w.backups, w.restores = nil, false // a repetition does not span two of them
	w.changeObjects(w.rnd.IntN(3))
	w.emitGap(w.at, w.revision, "restored")
	w.relistObjects(nil, "")
}
