package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	broker "github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/logs"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// repairTest is a compacted topic with three partitions, and the progress of a test that publishes to it.
type repairTest struct {
	*testing.T
	cfg Config
	at  uint64 // offset of the newest message
}

func newRepairTest(t *testing.T, b *broker.Broker, topic string) *repairTest {
	t.Helper()
	cfg := Config{Brokers: b.Brokers(), Topic: topic, Repair: true, CreateTopics: CreateTopics{
		Enabled: true, Partitions: 3, Configs: []TopicConfig{{"cleanup.policy", "compact"}},
	}}
	return &repairTest{t, cfg, 0}
}

// open opens a sink as a process does that has lost its journal, or has this state in it.
func (w *repairTest) open(log *slog.Logger, k *storedState) *Sink {
	w.Helper()
	s, err := New(w.cfg, format.Upsert, log)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { closeSink(w.T, s) })
	s.repairer.retryDelay = 50 * time.Millisecond
	restoreState(w.T, s, k, w.at)
	waitForTopic(w.T, s)
	return s
}

// publishChanges publishes changes in order, as delivery does.
func (w *repairTest) publishChanges(s *Sink, changes ...*event.Change) {
	w.Helper()
	for _, c := range changes {
		w.at++
		publishUntilAccepted(w.T, s, laneOf(w.T, s, c), []sinks.Message{{Offset: w.at, Change: c}})
	}
}

// snapshot publishes a snapshot of pods.
func (w *repairTest) snapshot(s *Sink, id, namespace string, position int, objects ...*event.Change) {
	w.Helper()
	control := func(kind event.Type) *event.Change {
		c := pod("", position)
		c.Type, c.Namespace, c.Name, c.UID, c.After, c.Snapshot = kind, namespace, "", "", nil, &event.SnapshotInfo{ID: id}
		c.ObservedAt = baseTime.Add(time.Hour + time.Duration(position)*time.Millisecond)
		return c
	}
	w.publishChanges(s, control(event.SnapshotBegin))
	for _, c := range objects {
		c.Type, c.Snapshot = event.Snapshot, &event.SnapshotInfo{ID: id}
		w.publishChanges(s, c)
	}
	end := control(event.SnapshotEnd)
	end.Snapshot.Position = itoa(position)
	w.publishChanges(s, end)
}

// waitUntilRepaired waits until no repair is pending.
func (w *repairTest) waitUntilRepaired(s *Sink) {
	w.Helper()
	s.ObserveSettled(w.at)
	w.waitUntil("the topic is repaired", func() bool {
		s.repairer.mu.Lock()
		defer s.repairer.mu.Unlock()
		return len(s.repairer.pending) == 0 && len(s.repairer.readSlots) == 0
	})
}

func (w *repairTest) waitUntil(what string, is func() bool) {
	w.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); !is(); <-tick.C {
		if time.Since(begun) > testTimeout {
			w.Fatalf("timeout: %s", what)
		}
	}
}

// rows are the newest records of all keys that have a value, by key.
func (w *repairTest) rows() map[string]*kgo.Record {
	w.Helper()
	rows := map[string]*kgo.Record{}
	for _, r := range readTopics(w.T, w.cfg.Brokers, w.cfg.Topic) {
		if rows[string(r.Key)] = r; r.Value == nil {
			delete(rows, string(r.Key))
		}
	}
	return rows
}

func (w *repairTest) wantKeys(keys ...string) {
	w.Helper()
	if got := slices.Sorted(maps.Keys(w.rows())); !slices.Equal(got, keys) {
		w.Errorf("the topic has %q\nwant %q", got, keys)
	}
}

func changed(c *event.Change, change func(c *event.Change)) *event.Change {
	change(c)
	return c
}

func TestATopicRepairsItself(t *testing.T) {
	require.Integration(t)
	require.Program(t, "java", "install Java 17 or later")
	b, err := broker.Start(t.Context(), broker.Options{Dir: t.TempDir(), Properties: map[string]string{
		"authorizer.class.name":          "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"allow.everyone.if.no.acl.found": "true",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Kill(); err != nil {
			t.Error(err)
		}
	})
	for name, test := range map[string]func(w *repairTest){
		"keys that a snapshot lacks get tombstones, and no others": testNeighbours,
		"a namespace has snapshots of its own":                     testNamespaces,
		"not before everything of the snapshot is there":           testNotBefore,
		"a crash in the middle":                                    testCrash,
		"without the right to read":                                testNoRead,
		"what is made again meanwhile stays":                       testMadeAgain,
		"more than fit into memory":                                testManyGhosts,
		"one that others take over from":                           testFenced,
	} {
		t.Run(name, func(t *testing.T) { test(newRepairTest(t, b, "table-"+itoa(len(name)))) })
	}
}

func testNeighbours(w *repairTest) {
	s := w.open(slog.New(slog.DiscardHandler), &storedState{})
	var want []string
	for i := range 12 { // in all partitions
		w.publishChanges(s, pod("ghost"+itoa(i), 10+i))
		want = append(want, "test/core/pods/default/here"+itoa(i))
		w.publishChanges(s, pod("here"+itoa(i), 30+i))
	}
	node := changed(pod("n1", 50), func(c *event.Change) {
		c.Namespace, c.Resource = "", event.Resource{Version: "v1", Resource: "nodes", Kind: "Node"}
	})
	theirs := changed(pod("gone", 51), func(c *event.Change) { c.Cluster = "prod" })
	prefixed := changed(pod("prefixed", 52), func(c *event.Change) { c.Resource.Resource = "podset" })
	later := pod("later", 2000)
	gone := changed(pod("gone", 53), func(c *event.Change) { c.Type, c.After = event.Deleted, nil })
	w.publishChanges(s, node, theirs, prefixed, later, pod("gone", 52), gone)
	w.publishChanges(s, changed(pod("ghost-of-the-future", 54), func(c *event.Change) { c.ObservedAt = baseTime.Add(24 * time.Hour) }))
	w.writeForeignRecord("test/core/pods/default/foreign")
	w.writeForeignRecord("test/core/pods/default/ghost1") // written by another producer now
	want = append(want, "test/core/nodes//n1", "prod/core/pods/default/gone", "test/core/podset/default/prefixed", "test/core/pods/default/later",
		"test/core/pods/default/foreign", "test/core/pods/default/ghost1", "test/core/pods/default/new", "test/core/pods/default/newer", "test/core/pods/default/entered")

	s = w.open(slog.New(slog.DiscardHandler), &storedState{}) // its journal was lost
	var here []*event.Change
	for i := range 12 {
		here = append(here, pod("here"+itoa(i), 30+i))
	}
	w.snapshot(s, "7", "", 1000, append(here, pod("new", 900))...)
	w.publishChanges(s, pod("newer", 1001), changed(pod("entered", 60), func(c *event.Change) { // by edited rules
		c.Type, c.Coalesced, c.Pass, c.ListVersion, c.ObservedAt = event.Added, true, "P", "1002", baseTime
	}))
	w.waitUntilRepaired(s)
	slices.Sort(want)
	w.wantKeys(want...)
	for _, r := range readTopics(w.T, w.cfg.Brokers, w.cfg.Topic) {
		if string(r.Key) == "test/core/pods/default/ghost5" && r.Value == nil {
			if id := recordHeader(r, "id"); id != "test/uid-ghost5/15/deleted/7" || !strings.Contains(recordHeader(r, "change"), `"finalStateUnknown":true`) {
				w.Errorf("the tombstone of %s is %s: %s", r.Key, id, recordHeader(r, "change"))
			}
			return
		}
	}
	w.Error("there is no tombstone of ghost5")
}

// writeForeignRecord writes a record of another producer.
func (w *repairTest) writeForeignRecord(key string) {
	w.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(w.cfg.Brokers...), kgo.DefaultProduceTopic(w.cfg.Topic))
	if err != nil {
		w.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(w.Context(), &kgo.Record{Key: []byte(key), Value: []byte("theirs")}).FirstErr(); err != nil {
		w.Fatal(err)
	}
}

func testNamespaces(w *repairTest) {
	in := func(namespace string, c *event.Change) *event.Change {
		c.Namespace = namespace
		return c
	}
	s := w.open(slog.New(slog.DiscardHandler), &storedState{})
	w.publishChanges(s, in("shop", pod("ghost", 1)), in("shopping", pod("other", 2)))
	s = w.open(slog.New(slog.DiscardHandler), &storedState{})
	w.snapshot(s, "7", "shop", 10, in("shop", pod("here", 3)))
	w.waitUntilRepaired(s)
	w.wantKeys("test/core/pods/shop/here", "test/core/pods/shopping/other")
}

func testNotBefore(w *repairTest) {
	s := w.open(slog.New(slog.DiscardHandler), &storedState{})
	w.publishChanges(s, pod("slow", 1), pod("ghost", 2))
	s = w.open(slog.New(slog.DiscardHandler), &storedState{})
	w.snapshot(s, "7", "", 10)
	s.ObserveSettled(w.at - 1) // the lane of "slow" is behind
	w.publishChanges(s, changed(pod("slow", 1), func(c *event.Change) { c.Type, c.Snapshot = event.Snapshot, &event.SnapshotInfo{ID: "7"} }))
	w.waitUntilRepaired(s)
	w.wantKeys("test/core/pods/default/slow")
	for _, r := range readTopics(w.T, w.cfg.Brokers, w.cfg.Topic) {
		if string(r.Key) == "test/core/pods/default/slow" && r.Value == nil {
			w.Error("an object that exists had a tombstone")
		}
	}
}

// testCrash kills processes with changes in flight: before anything is read, and after the tombstones were written while
// nothing was stored but the epochs.
func testCrash(w *repairTest) {
	k := &storedState{}
	s := w.open(slog.New(slog.DiscardHandler), &storedState{})
	for i := range 9 {
		w.publishChanges(s, pod("ghost"+itoa(i), 1+i))
	}
	s = w.open(slog.New(slog.DiscardHandler), k)
	readNothing := func() {
		for range maxConcurrentRepairs {
			s.repairer.readSlots <- struct{}{}
		}
	}
	readNothing()
	w.snapshot(s, "7", "", 100, pod("here", 50))
	s.ObserveSettled(w.at)

	last := 100
	for life := range 4 {
		cursor := w.at
		w.publishChanges(s, pod("live", last+1), pod("live", last+2)) // in flight when it dies
		s = w.open(slog.New(slog.DiscardHandler), k)
		w.at = cursor
		if life == 0 {
			readNothing()
		}
		w.publishChanges(s, pod("live", last+1), pod("live", last+2))
		last += 2
		switch life {
		case 0:
			s.ObserveSettled(w.at)
		case 1:
			w.waitUntilRepaired(s)
			k.rewindToRepair()
		default:
			w.waitUntilRepaired(s)
		}
	}
	w.wantKeys("test/core/pods/default/here", "test/core/pods/default/live")
	var live []string
	for _, r := range readTopics(w.T, w.cfg.Brokers, w.cfg.Topic) {
		if string(r.Key) == "test/core/pods/default/live" {
			live = append(live, recordHeader(r, "id"))
		}
	}
	var want []string
	for v := 101; v <= last; v++ {
		want = append(want, pod("live", v).ID())
	}
	if !slices.Equal(live, want) {
		w.Errorf("records %v, want %v", live, want)
	}
}

func testNoRead(w *repairTest) {
	s := w.open(slog.New(slog.DiscardHandler), &storedState{})
	w.publishChanges(s, pod("ghost", 1))
	acl := kafka.ACLEntry{ResourceType: kafka.ResourceTypeTopic, ResourceName: w.cfg.Topic, ResourcePatternType: kafka.PatternTypeLiteral,
		Principal: "User:ANONYMOUS", Host: "*", Operation: kafka.ACLOperationTypeAll, PermissionType: kafka.ACLPermissionTypeAllow}
	denied := acl
	denied.Operation, denied.PermissionType = kafka.ACLOperationTypeRead, kafka.ACLPermissionTypeDeny
	withClient(w.T, w.cfg.Brokers, func(ctx context.Context, c *kafka.Client) error {
		r, err := c.CreateACLs(ctx, &kafka.CreateACLsRequest{ACLs: []kafka.ACLEntry{acl, denied}})
		return errors.Join(append(r.Errors, err)...)
	})
	w.waitUntil("the right to read is gone", func() (refused bool) { // once the broker applies the ACL
		withClient(w.T, w.cfg.Brokers, func(ctx context.Context, c *kafka.Client) error {
			r, err := c.Fetch(ctx, &kafka.FetchRequest{Topic: w.cfg.Topic, MaxBytes: 1})
			if err != nil {
				return err
			}
			if refused = errors.Is(r.Error, kafka.TopicAuthorizationFailed); refused {
				return nil
			}
			return r.Error
		})
		return refused
	})
	var log logs.Buffer
	s = w.open(log.Logger(), &storedState{})
	w.snapshot(s, "7", "", 10, pod("here", 5))
	s.ObserveSettled(w.at)
	w.waitUntil("the missing right is reported", func() bool {
		c := s.repairer.warnings()
		return len(c) == 1 && strings.Contains(c[0], "grant READ on it")
	})
	w.publishChanges(s, pod("here", 11)) // delivery continues
	if got := strings.Count(log.String(), "grant READ"); got != 1 {
		w.Errorf("it was logged %d times:\n%s", got, log.String())
	}
	withClient(w.T, w.cfg.Brokers, func(ctx context.Context, c *kafka.Client) error {
		_, err := c.DeleteACLs(ctx, &kafka.DeleteACLsRequest{Filters: []kafka.DeleteACLsFilter{{
			ResourceTypeFilter: acl.ResourceType, ResourceNameFilter: acl.ResourceName, ResourcePatternTypeFilter: acl.ResourcePatternType,
			PrincipalFilter: acl.Principal, HostFilter: acl.Host, Operation: denied.Operation, PermissionType: denied.PermissionType,
		}}})
		return err
	})
	w.waitUntilRepaired(s)
	w.wantKeys("test/core/pods/default/here")
	if c := s.repairer.warnings(); len(c) != 0 {
		w.Errorf("still reported: %v", c)
	}
}

func testMadeAgain(w *repairTest) {
	const objects = 300
	name := func(i int) string { return fmt.Sprintf("web%03d", i) }
	s := w.open(slog.New(slog.DiscardHandler), &storedState{})
	for i := range objects {
		w.publishChanges(s, pod(name(i), 1+i))
	}
	s = w.open(slog.New(slog.DiscardHandler), &storedState{})
	w.snapshot(s, "7", "", 1000)
	s.ObserveSettled(w.at)
	var making sync.WaitGroup
	making.Go(func() {
		for i := range objects {
			w.publishChanges(s, changed(pod(name(i), 1001+i), func(c *event.Change) { c.Type, c.ObservedAt = event.Added, baseTime.Add(3*time.Hour) }))
		}
	})
	making.Wait()
	w.waitUntilRepaired(s)
	rows := w.rows()
	for i := range objects {
		if r := rows["test/core/pods/default/"+name(i)]; r == nil || recordHeader(r, "id") != changed(pod(name(i), 1001+i), func(c *event.Change) { c.Type = event.Added }).ID() {
			w.Fatalf("%s is %v", name(i), r)
		}
	}
}

func testManyGhosts(w *repairTest) {
	s := w.open(slog.New(slog.DiscardHandler), &storedState{})
	for i := range 100 {
		w.publishChanges(s, pod("ghost"+itoa(i), 1+i))
	}
	s = w.open(slog.New(slog.DiscardHandler), &storedState{})
	s.repairer.maxKeys = 5
	w.snapshot(s, "7", "", 1000, pod("here", 50))
	w.waitUntilRepaired(s)
	w.wantKeys("test/core/pods/default/here")
}

func testFenced(w *repairTest) {
	s := w.open(slog.New(slog.DiscardHandler), &storedState{})
	for i := range 20 {
		w.publishChanges(s, pod("ghost"+itoa(i), 1+i))
	}
	next := func(lanes ...sinks.Lane) *Sink {
		s, err := New(w.cfg, format.Upsert, slog.New(slog.DiscardHandler))
		if err != nil {
			w.Fatal(err)
		}
		w.Cleanup(func() { closeSink(w.T, s) })
		note := func(context.Context, map[sinks.Lane]sinks.LanePosition) error { return nil }
		if _, err := s.Fence(w.Context(), sinks.Claim{Group: "g", Sink: w.cfg.Topic, Owner: "o", RecordLanes: note}, lanes); err != nil {
			w.Fatal(err)
		}
		return s
	}
	old := next() // without RestoreState
	w.snapshot(old, "7", "", 1000, pod("here", 50))
	w.publishChanges(old, pod("here", 1001))
	w.waitUntilRepaired(old)
	w.publishChanges(old, pod("ghost3", 1002)) // behind its tombstone
	w.wantKeys("test/core/pods/default/ghost3", "test/core/pods/default/here")

	s = next(topicLanes(w.cfg.Topic, 3)...)
	w.publishChanges(s, pod("here", 1003))
	if _, err := old.Publish(w.Context(), laneOf(w.T, old, pod("here", 1)), []sinks.Message{{Offset: w.at + 1, Change: pod("here", 1004)}}); err == nil {
		w.Error("an older process was not turned away")
	}
}

func TestAnImpossibleRepairIsRefused(t *testing.T) {
	off := false
	for name, cfg := range map[string]Config{
		"namespace":   {Topic: "k8s.{namespace}"},
		"name":        {Topic: "k8s.{name}"},
		"idempotence": {Topic: "k8s", Idempotence: &off},
	} {
		cfg.Brokers, cfg.Repair = []string{"kafka:9092"}, true
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "kafka.repair") {
			t.Errorf("%s: %v", name, err)
		}
	}
	cfg := Config{Brokers: []string{"kafka:9092"}, Topic: "k8s.{resource}", Repair: true}
	if _, err := New(cfg, format.JSON, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "kafka.repair") {
		t.Errorf("json: %v", err)
	}
}
