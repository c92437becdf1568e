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
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/lives"
)

// TestRandomLivesOfPartitionsLoseAndRepeatNothing is the model of package lives on a fake cluster of one broker or three. It
// runs where LIVES_SEEDS asks for it: about one in a hundred of its histories repeats what was in flight at a crash after a
// topic was recreated with fewer partitions or has grown, or waits for a coordinator that went back.
func TestRandomLivesOfPartitionsLoseAndRepeatNothing(t *testing.T) {
	t.Parallel()
	for _, seed := range lives.Seeds(t, 0) {
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
	newEpochs().refuseReplaced(state)
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

// epochs are those that a fake cluster has granted of transactional IDs. kfake grants another one to a process that was
// replaced, which Kafka refuses (KIP-360).
type epochs struct {
	mu      sync.Mutex
	granted map[string]grantedEpoch
}

type grantedEpoch struct{ now, before int16 } // before: -1 unless the owner of that asked for now

func newEpochs() *epochs { return &epochs{granted: map[string]grantedEpoch{}} }

// refuseReplaced makes a cluster refuse what Kafka refuses.
func (e *epochs) refuseReplaced(c *kfake.Cluster) {
	c.ControlKey(int16(kmsg.InitProducerID), func(request kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		r := request.(*kmsg.InitProducerIDRequest)
		if r.TransactionalID == nil {
			return nil, nil, false
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		granted, known := e.granted[*r.TransactionalID]
		answer := r.ResponseKind().(*kmsg.InitProducerIDResponse)
		switch {
		case !known && r.ProducerID < 0:
			granted = grantedEpoch{0, -1}
		case !known:
			return nil, nil, false // refused by kfake
		case r.ProducerID < 0:
			granted = grantedEpoch{granted.now + 1, -1}
		case r.ProducerEpoch == granted.now:
			granted = grantedEpoch{granted.now + 1, granted.now}
		case r.ProducerEpoch > granted.now: // granted before the cluster went back: refused by kfake
			return nil, nil, false
		case r.ProducerEpoch == granted.before: // a repeated request
			answer.ProducerID, answer.ProducerEpoch = r.ProducerID, granted.now
			return answer, nil, true
		default:
			answer.ErrorCode = kerr.ProducerFenced.Code
			return answer, nil, true
		}
		e.granted[*r.TransactionalID] = granted
		return nil, nil, false
	})
}

// clone returns a copy, as of a disk.
func (e *epochs) clone() *epochs {
	e.mu.Lock()
	defer e.mu.Unlock()
	return &epochs{granted: maps.Clone(e.granted)}
}
