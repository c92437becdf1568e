package kafka

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	kproto "github.com/segmentio/kafka-go/protocol"

	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
	"github.com/kubecdc/kubecdc/test/parts/await"
	broker "github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// producesByName is the newest version of Produce that names topics (Kafka 4.0).
const producesByName = 12

// olderBroker is a connection to a broker that offers no newer version of Produce than producesByName.
type olderBroker struct {
	net.Conn
	answered bool
	left     []byte // of the first answer, which has the versions
}

// Read implements [net.Conn].
func (o *olderBroker) Read(b []byte) (int, error) {
	if !o.answered {
		if err := o.readVersions(); err != nil {
			return 0, err
		}
		o.answered = true
	}
	if len(o.left) > 0 {
		n := copy(b, o.left)
		o.left = o.left[n:]
		return n, nil
	}
	return o.Conn.Read(b)
}

// readVersions reads the answer to ApiVersions, version 0: length, correlation ID, error code, and for each of so many APIs
// its key, its oldest and its newest version.
func (o *olderBroker) readVersions() error {
	const beforeCount, api = 4 + 4 + 2, 3 * 2
	be, head := binary.BigEndian, make([]byte, beforeCount+4)
	if _, err := io.ReadFull(o.Conn, head); err != nil {
		return err
	}
	apis := make([]byte, int(be.Uint32(head))+4-len(head))
	if _, err := io.ReadFull(o.Conn, apis); err != nil {
		return err
	}
	for i := range int(be.Uint32(head[beforeCount:])) {
		if one := apis[i*api:]; kproto.ApiKey(be.Uint16(one)) == kproto.Produce {
			be.PutUint16(one[4:], producesByName)
		}
	}
	o.left = slices.Concat(head, apis)
	return nil
}

// connectByName makes a new sink name topics in all that it publishes, as it does with a broker before Kafka 4.1.
func connectByName(s *Sink) {
	dial := s.cluster.Dialer.DialContext
	s.cluster.Dialer.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &olderBroker{Conn: conn}, nil
	}
}

const equalityObjects = 12

// topicRun is one deployment that publishes versions of objects to a topic, with the part of delivery that chooses what is
// published where, while the topic has faults.
type topicRun struct {
	*testing.T
	broker *broker.Broker
	topic  string
	byName bool
	random *rand.Rand // the same numbers in each run

	active     *Sink
	partitions int
	newest     int              // version that was published of each object
	covered    int              // version up to which the state has the progress
	stream     map[string][]int // the versions of each object that could be read

	mu    sync.Mutex
	state replicatedLanes
}

func newTopicRun(t *testing.T, b *broker.Broker, byName bool, seed uint64) *topicRun {
	t.Helper()
	r := &topicRun{
		T: t, broker: b, topic: fmt.Sprintf("k8s.byname.%t", byName), byName: byName, random: rand.New(rand.NewPCG(seed, 9)),
		partitions: 2, stream: map[string][]int{}, state: replicatedLanes{},
	}
	createTopicWhenDeleted(t, b.Brokers(), r.topic, r.partitions)
	r.active = r.open()
	r.takeOver(r.active)
	r.publishMore()
	return r
}

// open opens the sink of another process.
func (r *topicRun) open() *Sink {
	r.Helper()
	s := openSink(r.T, Config{Brokers: r.broker.Brokers(), Topic: r.topic, CheckTopics: checkOff, BatchBytes: minBatchBytes})
	s.router.layoutCheckInterval = 10 * time.Millisecond
	if r.byName {
		connectByName(s)
	}
	return s
}

func (r *topicRun) record(ctx context.Context, lanes map[sinks.Lane]sinks.LanePosition) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.record(ctx, lanes)
}

func (r *topicRun) recorded() replicatedLanes {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.state)
}

// takeOver lets a process take over, and returns what it finds in the lanes, until none waits for a broker. A lane that was
// recorded meanwhile is fenced as well.
func (r *topicRun) takeOver(s *Sink) (held map[string]bool) {
	r.Helper()
	held = map[string]bool{}
	claim := sinks.Claim{Group: "test", Sink: "main", Owner: "a test", RecordLanes: r.record}
	for known := (replicatedLanes)(nil); known == nil || len(known) < len(r.recorded()); {
		known = r.recorded()
		emitted := func(_ sinks.Lane, e sinks.Emitted) error { held[e.ID] = true; return nil }
		await.Condition(r, "the take-over", testTimeout, 10*time.Millisecond, func() string {
			_, err := s.Fence(r.Context(), claim, slices.Collect(maps.Keys(known)))
			if err != nil {
				return err.Error()
			}
			waiting, err := s.ReadTail(r.Context(), known, emitted)
			if err != nil || len(waiting) > 0 {
				return fmt.Sprint(err, waiting)
			}
			return ""
		})
	}
	return held
}

// messages returns what follows on version from of each object, up to version to, in the order of the journal.
func (r *topicRun) messages(from, to int) (all []sinks.Message) {
	for v := from + 1; v <= to; v++ {
		for o := range equalityObjects {
			all = append(all, sinks.Message{Offset: uint64(v*equalityObjects + o), Change: pod("p"+itoa(o), v)})
		}
	}
	return all
}

// publish publishes what follows on version from of each object, up to version to, as delivery does, except what is held. It
// returns when all is accepted, or the process is deposed.
func (r *topicRun) publish(s *Sink, from, to int, held map[string]bool, accepted *atomic.Int64) error {
	left := map[string][]sinks.Message{}
	for _, m := range r.messages(from, to) {
		if !held[m.Change.ID()] {
			left[m.Change.Name] = append(left[m.Change.Name], m)
		}
	}
	failing := map[sinks.Lane]bool{}
	for deadline := time.Now().Add(testTimeout); ; {
		for _, due := range s.PendingRepartitions() {
			if due.Lost || !slices.ContainsFunc(due.From, func(lane sinks.Lane) bool { return failing[lane] }) {
				s.ApplyRepartition(due)
			}
		}
		done, err := r.publishLanes(s, left, failing, accepted)
		var deposed *sinks.DeposedError
		switch {
		case done || errors.As(err, &deposed):
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("not all is accepted: %w", err)
		}
		if err := ratelimit.Sleep(r.Context(), 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// publishLanes publishes to each lane once, and removes what is accepted.
func (r *topicRun) publishLanes(
	s *Sink, left map[string][]sinks.Message, failing map[sinks.Lane]bool, accepted *atomic.Int64,
) (done bool, err error) {
	batches := map[sinks.Lane][]sinks.Message{}
	for name, messages := range left {
		if len(messages) == 0 {
			delete(left, name)
			continue
		}
		lane, err := s.Lane(messages[0].Change)
		if err != nil {
			return false, err
		}
		batches[lane] = append(batches[lane], messages...)
	}
	var (
		mu         sync.Mutex
		publishing sync.WaitGroup
	)
	for lane, batch := range batches {
		slices.SortFunc(batch, func(a, b sinks.Message) int { return cmp.Compare(a.Offset, b.Offset) })
		publishing.Go(func() {
			n, failed := publishOnward(r.Context(), s, lane, batch)
			accepted.Add(int64(n))
			mu.Lock()
			defer mu.Unlock()
			err, failing[lane] = errors.Join(err, failed), failed != nil
			for _, m := range batch[:n] {
				left[m.Change.Name] = left[m.Change.Name][1:]
			}
		})
	}
	publishing.Wait()
	return len(batches) == 0, err
}

// publishMore publishes more versions through the active process, and records the progress.
func (r *topicRun) publishMore() {
	r.Helper()
	r.publishDuring(func() {})
}

// publishDuring is publishMore while something happens, once messages are under way.
func (r *topicRun) publishDuring(do func()) {
	r.Helper()
	const each = 60
	var accepted atomic.Int64
	ended := make(chan error, 1)
	go func() { ended <- r.publish(r.active, r.newest, r.newest+each, nil, &accepted) }()
	awaitCount(r.T, &accepted, 1)
	do()
	if err := <-ended; err != nil {
		r.Fatal(err)
	}
	r.newest += each
	r.cover()
}

// cover records the progress of the active process.
func (r *topicRun) cover() {
	progress := r.active.LaneProgress()
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.Copy(r.state, progress)
	r.covered = r.newest
}

// grow adds partitions while messages are under way, and waits until the sink uses them.
func (r *topicRun) grow() {
	r.partitions += 1 + r.random.IntN(2)
	r.publishDuring(func() { addPartitions(r, r.broker.Brokers(), r.topic, int32(r.partitions)) })
	r.awaitNoticed()
	r.publishMore()
}

// kill kills the broker while messages are under way.
func (r *topicRun) kill() {
	r.publishDuring(func() {
		if err := r.broker.Kill(); err != nil {
			r.Error(err)
		}
		restartBroker(r, r.broker)
	})
}

// remake deletes the topic when its readers have everything, and creates it with so many partitions. A process that is
// active goes on in the other topic without knowing of it.
func (r *topicRun) remake(partitions int) {
	r.Helper()
	r.readToEnd()
	deleteTopic(r, r.broker.Brokers(), r.topic)
	createTopicWhenDeleted(r.T, r.broker.Brokers(), r.topic, partitions)
	r.partitions = partitions
}

// remakeAndNotice goes on in another topic of the name, with other partitions, when the sink has noticed that.
func (r *topicRun) remakeAndNotice() {
	r.remake(1 + r.random.IntN(4))
	r.awaitNoticed()
	r.publishMore()
}

// awaitNoticed waits until the active process knows the topic as it is.
func (r *topicRun) awaitNoticed() {
	r.Helper()
	now, _, err := r.active.cluster.DescribeTopic(r.Context(), r.topic)
	if err != nil {
		r.Fatal(err)
	}
	await.Condition(r, "the topic is noticed", testTimeout, 5*time.Millisecond, func() string {
		for _, due := range r.active.PendingRepartitions() {
			r.active.ApplyRepartition(due)
		}
		lane, err := r.active.Lane(pod("p0", 1))
		known := r.active.topics.topicByName(r.topic).layout.Load()
		isCurrent := known == nil || known.ID == now.ID // nil: the first Publish looks it up
		if err == nil && isCurrent && strings.HasSuffix(string(lane), fmt.Sprintf("of%d", r.partitions)) {
			return ""
		}
		return fmt.Sprintf("a lane of %d, not %s: %v", r.partitions, lane, err)
	})
}

// failOverWhileGone lets another process take over while the topic does not exist, which is then created with other
// partitions.
func (r *topicRun) failOverWhileGone() {
	r.Helper()
	r.readToEnd()
	deleteTopic(r, r.broker.Brokers(), r.topic)
	r.active = r.open()
	r.takeOver(r.active)
	r.partitions = 1 + r.random.IntN(4)
	createTopicWhenDeleted(r.T, r.broker.Brokers(), r.topic, r.partitions)
	r.publishMore()
}

// failOver lets another process take over while messages are under way.
func (r *topicRun) failOver() {
	r.Helper()
	const each = 400
	var accepted atomic.Int64
	older, ended := r.active, make(chan error, 1)
	go func() { ended <- r.publish(older, r.newest, r.newest+each, nil, &accepted) }()
	awaitCount(r.T, &accepted, 1)
	r.active = r.open()
	held := r.takeOver(r.active)
	var deposed *sinks.DeposedError
	if err := <-ended; err != nil && !errors.As(err, &deposed) {
		r.Fatal(err)
	}
	if err := r.publish(r.active, r.covered, r.newest+each, held, &accepted); err != nil {
		r.Fatal(err)
	}
	r.newest += each
	r.cover()
	r.publishMore()
}

// failOverAndRemake replaces the active process, and then the topic. A batch of the older process arrives late: a broker
// that knows topics by name takes it for the new one.
func (r *topicRun) failOverAndRemake() {
	r.Helper()
	older := r.active
	late, leader := r.encodeLate(older)
	r.active = r.open()
	held := r.takeOver(r.active)
	r.remake(r.partitions)
	if err := r.produceLate(older, late, leader); (err == nil) != r.byName {
		r.Errorf("by name: %t: the late batch is answered by %v", r.byName, err)
	}
	r.awaitNoticed()
	var accepted atomic.Int64
	if err := r.publish(r.active, r.covered, r.newest+lateVersions, held, &accepted); err != nil {
		r.Fatal(err)
	}
	if err := r.produceLate(older, late, leader); err == nil {
		r.Errorf("by name: %t: the late batch is accepted behind newer ones", r.byName)
	}
	r.newest += lateVersions
	r.cover()
}

// lateVersions is how many versions of each object are published beside a late batch.
const lateVersions = 5

// encodeLate returns the next batch of a lane as a process would send it, and to which broker.
func (r *topicRun) encodeLate(s *Sink) (late protocol.RecordBatch, leader int32) {
	r.Helper()
	byLane := map[sinks.Lane][]sinks.Message{}
	for _, m := range r.messages(r.newest, r.newest+lateVersions) {
		lane, err := s.Lane(m.Change)
		if err != nil {
			r.Fatal(err)
		}
		byLane[lane] = append(byLane[lane], m)
	}
	lane := slices.Min(slices.Collect(maps.Keys(byLane)))
	l := s.lanes.byName[lane]
	f, err := l.encoder.encodeBatch(r.Context(), byLane[lane], l.numbers.nextSequence())
	if err != nil {
		r.Fatal(err)
	}
	record.SetTimestamp(f.bytes, time.Now())
	layout, p := l.partition.topic.layout.Load(), l.partition.index
	return protocol.RecordBatch{Topic: r.topic, TopicID: layout.ID, Partition: p, Bytes: f.bytes}, layout.Leads[p].Broker
}

// produceLate sends a batch without its lane, as soon as the broker leads the partition, and returns the answer.
func (r *topicRun) produceLate(s *Sink, late protocol.RecordBatch, leader int32) (err error) {
	r.Helper()
	await.Condition(r, "an answer to a late batch", testTimeout, 10*time.Millisecond, func() string {
		p, failed := s.cluster.Produce(leader, late, cluster.ForProducing)
		if failed != nil {
			return failed.Error()
		}
		err = p.Wait(r.Context())
		var answer kafka.Error // or else a connection that the broker has closed
		if err != nil && !errors.As(err, &answer) || answer == kafka.NotLeaderForPartition || answer == kafka.UnknownTopicOrPartition {
			return err.Error()
		}
		return ""
	})
	return err
}

// endOfTopic stands behind the versions that a topic held.
const endOfTopic = 0

// readToEnd adds the versions of each object that the topic holds to the stream. An object that was moved has them in
// several partitions, of which the one with the oldest version goes on.
func (r *topicRun) readToEnd() {
	r.Helper()
	parts := map[string]map[int32][]int{}
	for _, one := range readTopics(r, r.broker.Brokers(), r.topic) {
		key := string(one.Key)
		if parts[key] == nil {
			parts[key] = map[int32][]int{}
		}
		parts[key][one.Partition] = append(parts[key][one.Partition], podVersion(r, one))
	}
	for key, ofObject := range parts {
		for len(ofObject) > 0 {
			next := slices.MinFunc(slices.Collect(maps.Keys(ofObject)), func(a, b int32) int {
				return cmp.Compare(ofObject[a][0], ofObject[b][0])
			})
			r.stream[key] = append(r.stream[key], ofObject[next][0])
			if ofObject[next] = ofObject[next][1:]; len(ofObject[next]) == 0 {
				delete(ofObject, next)
			}
		}
		r.stream[key] = append(r.stream[key], endOfTopic)
	}
}

// TestTopicsByNameEqualTopicsByID has the same faults happen to a deployment that names topics by ID in what it publishes
// (Produce 13, Kafka 4.1), and to one that names them by name, as older brokers need it: topics that grow and are recreated
// with more or fewer partitions, processes that take over, also while there is no topic, late batches of replaced ones, and
// a broker that is killed, each while messages are under way. Both deliver the same versions of each object in the same
// order, each of them once. FULL_SIZE makes it long.
func TestTopicsByNameEqualTopicsByID(t *testing.T) {
	require.Long(t)
	t.Parallel()
	rounds := 1
	if fullSize(t) > 0 {
		rounds = 6
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	b := startKafka(t)
	streams := map[bool]map[string][]int{}
	for _, byName := range []bool{false, true} {
		r := newTopicRun(t, b, byName, seed)
		faults := map[string]func(){
			"grow": r.grow, "remake": r.remakeAndNotice, "fail over": r.failOver, "fail over and remake": r.failOverAndRemake,
			"fail over while it is gone": r.failOverWhileGone, "kill": r.kill,
		}
		for range rounds {
			names := slices.Sorted(maps.Keys(faults))
			r.random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			for _, name := range names {
				t.Logf("by name: %t: %s, %d partitions, version %d", byName, name, r.partitions, r.newest)
				faults[name]()
			}
		}
		r.readToEnd()
		r.checkStream(0, true)
		streams[byName] = maps.Clone(r.stream)
		r.checkUnnoticed()
	}
	for key, byID := range streams[false] {
		if byName := streams[true][key]; !slices.Equal(byID, byName) {
			t.Errorf("%s: by ID and by name: %s", key, firstDifference(byID, byName))
		}
	}
}

// checkUnnoticed recreates the topic, and publishes before the sink has noticed that. By ID this makes no difference. By
// name the other topic may take a batch behind one that it refused, so that some versions are there twice; none is lost.
func (r *topicRun) checkUnnoticed() {
	r.Helper()
	for _, partitions := range []int{r.partitions + 1, 1} {
		before := r.newest
		r.remake(partitions)
		r.publishMore()
		clear(r.stream)
		r.readToEnd()
		r.checkStream(before, !r.byName)
	}
}

// checkStream wants each version of each object behind one, and if exact holds once and in order.
func (r *topicRun) checkStream(before int, exact bool) {
	r.Helper()
	var want []int
	for v := before + 1; v <= r.newest; v++ {
		want = append(want, v)
	}
	for key, versions := range r.stream {
		got := slices.DeleteFunc(slices.Clone(versions), func(v int) bool { return v == endOfTopic })
		if !exact {
			slices.Sort(got)
			got = slices.Compact(got)
		}
		if !slices.Equal(got, want) {
			r.Errorf("by name: %t: %s is not as published: %s", r.byName, key, firstDifference(got, want))
		}
	}
	if len(r.stream) != equalityObjects {
		r.Errorf("by name: %t: %d objects are delivered, want %d", r.byName, len(r.stream), equalityObjects)
	}
}

// firstDifference shows where two streams begin to differ.
func firstDifference(a, b []int) string {
	at := 0
	for at < min(len(a), len(b)) && a[at] == b[at] {
		at++
	}
	around := func(all []int) []int { return all[max(at-2, 0):min(at+8, len(all))] }
	return fmt.Sprintf("%d and %d versions, ... %v ... and ... %v ...", len(a), len(b), around(a), around(b))
}
