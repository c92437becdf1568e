package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/lives"
)

// TestRandomLivesOfPartitionsLoseAndRepeatNothing is the model of package lives on a fake cluster of one broker or three.
// LIVES_SEEDS makes it long.
func TestRandomLivesOfPartitionsLoseAndRepeatNothing(t *testing.T) {
	t.Parallel()
	for _, seed := range lives.Seeds(t, 4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			c := startCopiedCluster(t, 1+int(seed/2%2)*2, 3)
			lives.Play(t, seed, newFakeLives(t, c).bus())
		})
	}
}

// observedSink passes on what is published.
type observedSink struct {
	*Sink
	observe func([]sinks.Message)
}

func (o *observedSink) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	o.observe(batch)
	return o.Sink.Publish(ctx, lane, batch)
}

// fakeLives is what happens to a topic of a fake cluster.
type fakeLives struct {
	*testing.T
	c          *copiedCluster
	states     []string // brokers of the cluster with the replicated state
	partitions int
	copied     int  // partitions of the copy; 0: there is none
	recreated  bool // since the copy
	foreign    int  // versions of another exporter
}

func newFakeLives(t *testing.T, c *copiedCluster) *fakeLives {
	t.Helper()
	state, brokers := startFakeCluster(t, kfake.NumBrokers(1))
	newEpochs().refuseReplaced(t, state)
	return &fakeLives{T: t, c: c, states: brokers, partitions: 3}
}

func (l *fakeLives) bus() lives.Bus {
	return lives.Bus{
		Open: func(observe func([]sinks.Message)) sinks.Sink {
			s := openUnclosedSink(l, Config{Brokers: l.c.brokers, Topic: topicA, CheckTopics: checkOff, BatchBytes: minBatchBytes,
				RequestTimeout: 10 * time.Second}).(*Sink)
			s.router.layoutCheckInterval, s.acks.spacing = 10*time.Millisecond, 0
			return &observedSink{s, observe}
		},
		State: func() (sinks.StateStore, func()) {
			s := openUnclosedSink(l, Config{Brokers: l.states, Topic: topicA, CreateTopics: CreateTopics{Enabled: true, ReplicationFactor: 1}}).(*Sink)
			store, err := s.OpenState("state")
			if err != nil {
				l.Fatal(err)
			}
			return store, func() { closeSink(l, s) }
		},
		Compare: func(s sinks.Sink) error {
			if !s.(*observedSink).acks.confirmAll() {
				return errors.New("not all partitions could be compared")
			}
			return s.(*observedSink).acks.lostError()
		},
		Read: func() (all []lives.Stored) {
			for _, r := range readTopics(l, l.c.brokers, topicA) {
				all = append(all, lives.Stored{Lane: fmt.Sprint(r.Partition), Key: string(r.Key), ID: recordHeader(r, "id")})
			}
			return all
		},
		Events: []lives.Event{
			{Name: "grow", Do: l.grow},
			{Name: "recreate", Do: l.recreate},
			{Name: "copy, or go back to it", Do: l.goBack},
			{Name: "copy, or go back to it", Do: l.goBack},
			{Name: "outage", Do: func(_ *rand.Rand, meanwhile func()) lives.Effect {
				l.c.whileStopped(func(string, string) error { meanwhile(); return nil })
				return lives.Nothing
			}},
			{Name: "foreign writer", Do: l.writeForeign},
			{Name: "leader away", Do: l.hideLeader},
			{Name: "leader moves", Do: func(random *rand.Rand, _ func()) lives.Effect {
				p := int32(random.IntN(l.partitions))
				if err := l.c.running.MoveTopicPartition(topicA, p, int32(random.IntN(len(l.c.brokers)))); err != nil {
					l.Error(err)
				}
				return lives.Nothing
			}},
			{Name: "lost answers", Do: func(random *rand.Rand, meanwhile func()) lives.Effect {
				f := produceFault(kerr.RequestTimedOut) // applied by kfake
				f.Count = 1 + random.IntN(4)
				l.c.running.Fault(f)
				meanwhile()
				return lives.Nothing
			}},
		},
	}
}

func (l *fakeLives) grow(random *rand.Rand, _ func()) lives.Effect {
	l.partitions += 1 + random.IntN(2)
	addPartitions(l, l.c.brokers, topicA, int32(l.partitions))
	return lives.Nothing
}

func (l *fakeLives) recreate(random *rand.Rand, meanwhile func()) lives.Effect {
	deleteTopic(l, l.c.brokers, topicA)
	if random.IntN(2) == 0 {
		meanwhile()
	}
	l.partitions, l.recreated = 1+random.IntN(4), true
	createTopicWhenDeleted(l.T, l.c.brokers, topicA, l.partitions)
	return lives.Removes
}

// goBack replaces the disk by an older copy, or takes one.
func (l *fakeLives) goBack(random *rand.Rand, meanwhile func()) lives.Effect {
	if l.copied == 0 {
		l.c.takeCopy()
		l.copied, l.recreated = l.partitions, false
		return lives.Nothing
	}
	if random.IntN(2) == 0 {
		meanwhile()
	}
	l.c.restoreCopy()
	l.partitions, l.copied = l.copied, 0
	if l.recreated { // the topic of the copy is another one
		return lives.Removes + lives.Repeats
	}
	return lives.Repeats
}

func (l *fakeLives) writeForeign(random *rand.Rand, _ func()) lives.Effect {
	s := openSink(l, Config{Brokers: l.c.brokers, Topic: topicA, CheckTopics: checkOff})
	n := 1 + random.IntN(50)
	publishUntilAccepted(l, s, laneOf(l, s, pod("other", 1)), pods("other", l.foreign+1, l.foreign+1+n))
	l.foreign += n
	return lives.Nothing
}

// hideLeader lets the leader of a partition not answer.
func (l *fakeLives) hideLeader(random *rand.Rand, meanwhile func()) lives.Effect {
	hidden := l.c.running.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.Produce, kmsg.ListOffsets, kmsg.Fetch, kmsg.OffsetForLeaderEpoch}, Topic: topicA, Err: kerr.NotLeaderForPartition,
		Partitions: []int32{int32(random.IntN(l.partitions))}, Count: -1,
	})
	meanwhile()
	hidden.Remove()
	return lives.Nothing
}

// epochs are from which epochs of transactional IDs a fake cluster was last asked for the next one. kfake grants another one
// to a process that was replaced, which Kafka refuses (KIP-360).
type epochs struct {
	mu    sync.Mutex
	asked map[string]int16 // no entry: another process has claimed the ID since
}

func newEpochs() *epochs { return &epochs{asked: map[string]int16{}} }

// refuseReplaced makes a cluster refuse what Kafka refuses.
func (e *epochs) refuseReplaced(t *testing.T, c *kfake.Cluster) {
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	c.ControlKey(int16(kmsg.InitProducerID), func(request kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		r := request.(*kmsg.InitProducerIDRequest)
		if r.TransactionalID == nil {
			return nil, nil, false
		}
		id, now, known := *r.TransactionalID, int16(0), false
		if r.ProducerID >= 0 {
			c.SleepControl(func() { now, known = currentEpoch(client, id) })
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		asked, again := e.asked[id]
		answer := r.ResponseKind().(*kmsg.InitProducerIDResponse)
		switch {
		case r.ProducerID < 0:
			delete(e.asked, id)
		case !known || r.ProducerEpoch > now: // granted before the cluster went back: refused by kfake
		case r.ProducerEpoch == now:
			e.asked[id] = now
		case again && r.ProducerEpoch == asked && asked+1 == now: // a repeated request
			answer.ProducerID, answer.ProducerEpoch = r.ProducerID, now
			return answer, nil, true
		default:
			answer.ErrorCode = kerr.ProducerFenced.Code
			return answer, nil, true
		}
		return nil, nil, false
	})
}

// currentEpoch asks for the newest epoch of a transactional ID.
func currentEpoch(client *kgo.Client, id string) (epoch int16, known bool) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	request := kmsg.NewDescribeTransactionsRequest()
	request.TransactionalIDs = []string{id}
	answer, err := request.RequestWith(ctx, client)
	if err != nil || len(answer.TransactionStates) != 1 || answer.TransactionStates[0].ErrorCode != 0 {
		return 0, false
	}
	return answer.TransactionStates[0].ProducerEpoch, true
}

// clone returns a copy, as of a disk.
func (e *epochs) clone() *epochs {
	e.mu.Lock()
	defer e.mu.Unlock()
	return &epochs{asked: maps.Clone(e.asked)}
}
