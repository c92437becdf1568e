package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
	broker "github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// copiedCluster is a fake cluster with a disk that can be replaced by an older copy.
type copiedCluster struct {
	t       *testing.T
	dir     string
	opts    []kfake.Opt
	running *kfake.Cluster
	brokers []string
	epochs  *epochs
	copied  *epochs
}

func startCopiedCluster(t *testing.T, brokers, partitions int) *copiedCluster {
	t.Helper()
	c := &copiedCluster{t: t, dir: filepath.Join(t.TempDir(), "data"), epochs: newEpochs()}
	own, err := ports.Free(brokers) // also while it is stopped
	if err != nil {
		t.Fatal(err)
	}
	c.opts = []kfake.Opt{kfake.NumBrokers(brokers), kfake.Ports(own...), kfake.DataDir(c.dir), kfake.SeedTopics(int32(partitions), topicA)}
	c.start()
	t.Cleanup(func() { c.running.Close() })
	return c
}

func (c *copiedCluster) start() {
	c.t.Helper()
	running, err := kfake.NewCluster(c.opts...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.running, c.brokers = running, running.ListenAddrs()
	c.epochs.refuseReplaced(c.t, running)
}

// whileStopped calls do with the directory of the stopped cluster and that of its copy.
func (c *copiedCluster) whileStopped(do func(dir, copied string) error) {
	c.t.Helper()
	c.running.Close()
	if err := do(c.dir, c.dir+"-copy"); err != nil {
		c.t.Fatal(err)
	}
	c.start()
}

func (c *copiedCluster) takeCopy() {
	c.whileStopped(func(dir, copied string) error {
		c.copied = c.epochs.clone()
		return errors.Join(os.RemoveAll(copied), os.CopyFS(copied, os.DirFS(dir)))
	})
}

func (c *copiedCluster) restoreCopy() {
	c.whileStopped(func(dir, copied string) error {
		c.epochs = c.copied
		return errors.Join(os.RemoveAll(dir), os.Rename(copied, dir))
	})
}

// lossTest is a sink with what its caller stores, and the journal from which it sends again.
type lossTest struct {
	*testing.T
	brokers []string
	fenced  bool
	journal []sinks.Message // with the index as offset, from 1 on
	names   []string        // of the pods
	state   []byte
	lanes   map[sinks.Lane]sinks.Tail // of the replicated state
	sink    *Sink
	settled map[sinks.Lane]uint64 // as stored
	sent    map[sinks.Lane]uint64
	losses  []*sinks.LostError
}

// open opens the next process.
func (l *lossTest) open() {
	l.Helper()
	l.sink = openSink(l, Config{Brokers: l.brokers, Topic: topicA, BatchBytes: minBatchBytes, RequestTimeout: 10 * time.Second,
		CreateTopics: CreateTopics{Enabled: true, Partitions: 3, ReplicationFactor: 1}})
	l.sink.acks.spacing = 0
	if l.fenced {
		record := func(_ context.Context, lanes map[sinks.Lane]sinks.LanePosition) error {
			for lane, position := range lanes {
				l.lanes[lane] = sinks.Tail{From: position, Reached: position}
			}
			return nil
		}
		claim := sinks.Claim{Group: "test", Sink: "main", Owner: "a test", RecordLanes: record}
		var lanes []sinks.Lane
		tails := map[sinks.Lane]sinks.Tail{}
		for lane, tail := range l.lanes {
			if lanes = append(lanes, lane); tail.From > 0 {
				tails[lane] = tail
			}
		}
		l.until(func() error {
			waiting, err := l.sink.Fence(l.Context(), claim, lanes)
			return errors.Join(err, errors.Join(slices.Collect(maps.Values(waiting))...))
		})
		l.until(func() error {
			waiting, err := l.sink.ReadTail(l.Context(), tails, func(sinks.Lane, sinks.Emitted) error { return nil })
			return errors.Join(err, errors.Join(slices.Collect(maps.Values(waiting))...))
		})
	}
	l.restore()
	l.sent = map[sinks.Lane]uint64{}
	for lane, offset := range l.settled {
		l.sent[lane] = offset
	}
}

// until calls do until it succeeds: brokers take their time after a start.
func (l *lossTest) until(do func() error) {
	l.Helper()
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	for deadline := time.Now().Add(testTimeout); ; {
		err := do()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			l.Fatal(err)
		}
		<-pause.C
	}
}

func (l *lossTest) restore() {
	l.Helper()
	save := func(context.Context) error { l.store(); return nil }
	if err := l.sink.RestoreState(l.state, uint64(len(l.journal)), save); err != nil {
		l.Fatal(err)
	}
}

// store stores progress as delivery and the replicated state do.
func (l *lossTest) store() {
	l.settled = map[sinks.Lane]uint64{}
	for lane, offset := range l.sent {
		l.settled[lane] = offset
	}
	l.state = l.sink.State(0)
	for lane, position := range l.sink.LaneProgress() {
		l.lanes[lane] = sinks.Tail{From: position, Reached: position}
	}
}

// append appends one version of each pod to the journal.
func (l *lossTest) append(versions int) {
	for range versions {
		for _, name := range l.names {
			n := len(l.journal) + 1
			l.journal = append(l.journal, sinks.Message{Offset: uint64(n), Change: pod(name, n)})
		}
	}
}

// publish publishes what the journal has, and goes back after losses as the caller does.
func (l *lossTest) publish() {
	l.Helper()
	for deadline := time.Now().Add(testTimeout); ; {
		left := map[sinks.Lane][]sinks.Message{}
		for _, m := range l.journal {
			lane := laneOf(l, l.sink, m.Change)
			if m.Offset > l.sent[lane] {
				left[lane] = append(left[lane], m)
			}
		}
		if len(left) == 0 {
			return
		}
		for lane, batch := range left {
			n, err := l.sink.Publish(l.Context(), lane, batch)
			if n > 0 {
				l.sent[lane] = batch[n-1].Offset
			}
			var lost *sinks.LostError
			if errors.As(err, &lost) {
				l.goBack(lost)
				break
			}
			var deposed *sinks.DeposedError
			if errors.As(err, &deposed) { // the coordinator of the transactional ID went back as well: the exporter takes over again
				l.store()
				closeSink(l, l.sink)
				l.open()
				break
			}
			if time.Now().After(deadline) {
				l.Fatal(err)
			}
		}
	}
}

// goBack does what delivery does after a loss: it stores progress, then the cursor before the loss, and restores the sink.
func (l *lossTest) goBack(lost *sinks.LostError) {
	l.Helper()
	l.losses = append(l.losses, lost)
	l.store()
	for lane, after := range lost.Lanes {
		l.settled[lane] = min(l.settled[lane], after)
	}
	if lost.Lanes == nil {
		for lane := range l.settled {
			l.settled[lane] = min(l.settled[lane], lost.From)
		}
	}
	for lane, offset := range l.settled {
		l.sent[lane] = offset
	}
	l.restore()
}

// wantAll fails the test unless the topic holds every change, and the newest version of each object last.
func (l *lossTest) wantAll() {
	l.Helper()
	held, last := map[string]bool{}, map[string]string{}
	records := readTopics(l, l.brokers, topicA)
	slices.SortStableFunc(records, func(a, b *kgo.Record) int { return int(a.Partition - b.Partition) })
	for _, r := range records {
		id := recordHeader(r, "id")
		held[id], last[string(r.Key)] = true, id
	}
	missing := 0
	newest := map[string]string{}
	for _, m := range l.journal {
		if !held[m.Change.ID()] {
			missing++
		}
		newest[string(m.Change.AppendKey(nil))] = m.Change.ID()
	}
	if missing > 0 {
		l.Errorf("%d of %d changes are missing", missing, len(l.journal))
	}
	for key, id := range newest {
		if last[key] != id {
			l.Errorf("the last record of %s is %s, want %s", key, last[key], id)
		}
	}
	if extra := len(records) - len(l.journal); extra > len(l.journal) {
		l.Errorf("%d records are there twice", extra)
	}
}

// copiedDisk is the disk of brokers that can be replaced by an older copy.
type copiedDisk interface {
	takeCopy()
	restoreCopy()
}

// testWentBack publishes, replaces the disk by an older copy while the sink publishes, is idle, or is restarted, and goes on
// publishing. Everything is there again then.
func testWentBack(t *testing.T, brokers []string, disk copiedDisk, fenced bool, moment string) {
	l := &lossTest{T: t, brokers: brokers, fenced: fenced, names: []string{"a", "b", "c", "d", "e", "f"},
		lanes: map[sinks.Lane]sinks.Tail{}, settled: map[sinks.Lane]uint64{}}
	l.open()
	l.append(200)
	l.publish()
	l.store()
	disk.takeCopy()
	for range 5 {
		l.append(20)
		l.publish()
	}
	l.store()
	disk.restoreCopy()
	switch moment {
	case "publishing":
		l.append(1)
	case "idle":
		l.until(func() error {
			if l.sink.acks.confirmAll() {
				return nil
			}
			return errors.New("not all partitions could be compared")
		})
		var lost *sinks.LostError
		if err := l.sink.Ping(t.Context()); !errors.As(err, &lost) {
			t.Fatalf("a ping returns %v", err)
		}
		l.goBack(lost)
	case "restart":
		closeSink(t, l.sink)
		l.open()
		l.append(1)
	}
	l.publish()
	l.wantAll()
	if len(l.losses) != 1 || l.losses[0].Gone > 0 || l.losses[0].Messages == 0 {
		t.Errorf("the losses are %+v", l.losses)
	}
	l.append(50)
	l.publish()
	l.wantAll()
}

func TestAPartitionThatWentBackIsFilledAgain(t *testing.T) {
	t.Parallel()
	for _, brokers := range []int{1, 3} {
		for _, fenced := range []bool{false, true} {
			for _, moment := range []string{"publishing", "idle", "restart"} {
				t.Run(fmt.Sprintf("%d brokers fenced %v %s", brokers, fenced, moment), func(t *testing.T) {
					t.Parallel()
					c := startCopiedCluster(t, brokers, 3)
					testWentBack(t, c.brokers, c, fenced, moment)
				})
			}
		}
	}
}

// copiedBroker is a broker of Apache Kafka with such a disk.
type copiedBroker struct {
	*testing.T
	*broker.Broker
	dir string
}

func (b *copiedBroker) whileStopped(do func(dir, copied string) error) {
	b.Helper()
	if err := errors.Join(b.Stop(), do(b.dir, b.dir+"-copy")); err != nil {
		b.Fatal(err)
	}
	restartBroker(b, b.Broker)
}

func (b *copiedBroker) takeCopy() {
	b.whileStopped(func(dir, copied string) error { return os.CopyFS(copied, os.DirFS(dir)) })
}

func (b *copiedBroker) restoreCopy() {
	b.whileStopped(func(dir, copied string) error { return errors.Join(os.RemoveAll(dir), os.Rename(copied, dir)) })
}

// Of three brokers, one gets the older copy of its disk. The names are those of directories, so they have no commas.
func TestAnApacheKafkaThatWentBackIsFilledAgain(t *testing.T) {
	require.Long(t)
	t.Parallel()
	for name, test := range map[string]struct {
		brokers int
		fenced  bool
		moment  string
	}{
		"one while publishing": {1, false, "publishing"}, "one fenced over a restart": {1, true, "restart"},
		"one of three while idle": {3, false, "idle"}, "one of three fenced while publishing": {3, true, "publishing"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			all := startKafkaIn(t, dir, test.brokers, broker.Options{})
			disk := &copiedBroker{t, all[test.brokers-1], filepath.Join(dir, fmt.Sprintf("broker-%d", test.brokers), "data")}
			testWentBack(t, all.Brokers(), disk, test.fenced, test.moment)
		})
	}
}

// Another exporter, with a journal of its own, took over before the partitions went back: this one cannot send again what it
// has never had. The newest checkpoint of the state may have been taken before all of it was delivered.
func TestALossAfterAFailoverIsCounted(t *testing.T) {
	t.Parallel()
	for name, earlier := range map[string]bool{"the checkpoint is from after it": false, "the checkpoint is from before it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startCopiedCluster(t, 1, 3)
			l := &lossTest{T: t, brokers: c.brokers, fenced: true, names: []string{"a", "b", "c", "d", "e", "f"},
				lanes: map[sinks.Lane]sinks.Tail{}, settled: map[sinks.Lane]uint64{}}
			l.open()
			l.append(100)
			l.publish()
			l.store()
			c.takeCopy()
			checkpoint := maps.Clone(l.lanes)
			l.append(100)
			l.publish()
			l.store()
			for lane, tail := range checkpoint {
				if earlier {
					l.lanes[lane] = sinks.Tail{From: tail.From, Reached: l.lanes[lane].Reached}
				}
			}
			c.restoreCopy()
			l.state, l.settled, l.journal = nil, map[sinks.Lane]uint64{}, nil
			l.open()
			if all := l.sink.LaneProgress(); len(all) > 0 { // a state with these would forget the loss
				t.Errorf("before partitions are compared, their progress is %v", all)
			}
			l.append(1)
			l.publish()
			if len(l.losses) != 1 || l.losses[0].Gone < 500 || l.losses[0].Gone > 600 || l.losses[0].Lanes == nil || len(l.losses[0].Lanes) > 0 {
				t.Errorf("the losses are %+v, want one of about 600 messages of no lane", l.losses)
			}
		})
	}
}

// A take-over skips what it finds beyond the replicated state, and its partition goes back afterwards.
func TestWhatATakeOverFoundIsSentAgainIfItIsLost(t *testing.T) {
	t.Parallel()
	c := startCopiedCluster(t, 1, 1)
	l := &lossTest{T: t, brokers: c.brokers, fenced: true, names: []string{"a"}, lanes: map[sinks.Lane]sinks.Tail{}, settled: map[sinks.Lane]uint64{}}
	l.open()
	l.append(10)
	l.publish()
	l.store()
	c.takeCopy()
	found := len(l.journal)
	l.append(20)
	l.publish()
	l.state, l.settled, l.journal = nil, map[sinks.Lane]uint64{}, slices.Clone(l.journal[found:])
	for i := range l.journal {
		l.journal[i].Offset = uint64(i + 1)
		l.settled[laneOf(l, l.sink, l.journal[i].Change)] = l.journal[i].Offset
	}
	l.open()
	l.append(1)
	l.publish()
	c.restoreCopy()
	l.append(1)
	l.publish()
	l.wantAll()
	if len(l.losses) == 0 || l.losses[0].From != 0 {
		t.Errorf("the losses are %+v", l.losses)
	}
}

// What a killed process had in flight is found by the next one, and skipped. When the partition loses it later, it is sent
// again, from the first change of it.
func TestWhatARestartFoundIsSentAgainIfItIsLost(t *testing.T) {
	t.Parallel()
	for _, later := range []int{0, 1} {
		t.Run(fmt.Sprintf("%d later", later), func(t *testing.T) {
			t.Parallel()
			c := startCopiedCluster(t, 1, 1)
			l := &lossTest{T: t, brokers: c.brokers, names: []string{"a"}, lanes: map[sinks.Lane]sinks.Tail{}, settled: map[sinks.Lane]uint64{}}
			l.open()
			l.append(10)
			l.publish()
			l.store()
			c.takeCopy()
			l.append(20)
			l.publish()
			l.open()
			l.append(later)
			l.publish()
			l.wantAll()
			c.restoreCopy()
			for range 2 { // the answer to the first shows the loss
				l.append(1)
				l.publish()
			}
			l.wantAll()
			if len(l.losses) != 1 || l.losses[0].From != 10 {
				t.Errorf("the losses are %+v", l.losses)
			}
		})
	}
}

// What others had published is counted apart from what the journal has, however often they alternate.
func TestALossCountsWhatOthersHadPublished(t *testing.T) {
	t.Parallel()
	of := ackPlace{cluster.Partition{Topic: topicA}, cluster.TopicShape{ID: protocol.TopicID{1}, Partitions: 1}, 1}
	a := &ackLog{partitions: map[cluster.Partition]*partitionAcks{}}
	acknowledge := func(first uint64, base int64, records int) { // in batches without numbers
		offsets := []uint64{first, first + uint64(records) - 1}
		a.recordAck(of, &inFlightBatch{offsets: offsets, records: records, written: connection.Written{BaseOffset: base}},
			record.ProducerSequence{Producer: cluster.NoID, Epoch: -1, Sequence: -1})
	}
	acknowledge(1, 0, 100)
	a.recordPosition(of, 150, false)
	a.recordTail(of, protocol.Origin{End: 170}, 1)
	acknowledge(200, 170, 30)
	a.recordPosition(of, 260, false)
	p := a.partitions[of.Partition]
	for end, want := range map[int64][3]uint64{
		200: {0, 0, 60},
		170: {200, 30, 60},
		150: {1, 50, 60},
		120: {1, 50, 90},
		40:  {1, 110, 110},
	} {
		cut := ackCut{end: end, held: end}
		for _, m := range p.marks {
			if m.origin.End <= end && !m.isOfOthers() {
				cut.end, cut.marked = m.origin.End, true
			}
		}
		from, messages, gone := p.lostBehind(cut)
		if got := [3]uint64{from, messages, gone}; got != want {
			t.Errorf("cut at %d: %v, want %v", end, got, want)
		}
	}
}

// Another program writes to the topic, and has filled the offsets again before this one publishes.
func TestALossIsFoundBehindTheRecordsOfOthers(t *testing.T) {
	t.Parallel()
	c := startCopiedCluster(t, 1, 1)
	l := &lossTest{T: t, brokers: c.brokers, names: []string{"a"}, lanes: map[sinks.Lane]sinks.Tail{}, settled: map[sinks.Lane]uint64{}}
	l.open()
	l.append(100)
	l.publish()
	c.takeCopy()
	l.append(20)
	l.publish()
	c.restoreCopy()
	other := openSink(t, Config{Brokers: c.brokers, Topic: topicA})
	publishUntilAccepted(t, other, laneOf(t, other, pod("other", 1)), pods("other", 1, 50))
	l.append(1)
	l.publish()
	l.wantAll()
	if len(l.losses) != 1 {
		t.Errorf("the losses are %+v", l.losses)
	}
}

// The marks of a partition grow apart: little is sent again after a recent loss, and not everything after an old one.
func TestTheMarksOfAPartitionReachFarBack(t *testing.T) {
	t.Parallel()
	p := &partitionAcks{}
	const batches = 100_000
	for i := range int64(batches) {
		p.addMark(0, ackMark{first: uint64(i) + 1, last: uint64(i) + 1, partitions: 1, origin: protocol.Origin{End: i + 1}})
	}
	if len(p.marks) > maxAckMarks {
		t.Fatalf("%d marks", len(p.marks))
	}
	for _, lost := range []int64{1, 10, 100, 1000, 10_000, 50_000} {
		end := batches - lost
		cut := ackCut{}
		for _, m := range p.marks {
			if m.origin.End <= end {
				cut = ackCut{end: m.origin.End, marked: true}
			}
		}
		from, _, _ := p.lostBehind(cut)
		if again := int64(from) - 1; again > end || end-again > 12*lost {
			t.Errorf("after a loss of %d batches everything behind %d is sent again", lost, again)
		}
	}
}
