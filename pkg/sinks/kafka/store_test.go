package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/condition"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	broker "github.com/kubecdc/kubecdc/test/parts/kafka"
)

const stateName = "kubecdc-state"

// stateClient is a process that owns or follows a state.
type stateClient struct {
	t     *testing.T
	store sinks.StateStore
	known map[string]string
}

func newStateClient(t *testing.T, brokers []string, name string) *stateClient {
	t.Helper()
	s := openSink(t, Config{Brokers: brokers, Topic: topicA, RequestTimeout: 5 * time.Second})
	store, err := s.OpenState(name)
	if err != nil {
		t.Fatal(err)
	}
	return &stateClient{t, store, map[string]string{}}
}

// eventually retries while brokers start or move.
func (k *stateClient) eventually(what string, do func() error) {
	k.t.Helper()
	deadline := time.Now().Add(testTimeout)
	for {
		err := do()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			k.t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond) // between two attempts
	}
}

func (k *stateClient) claim() {
	k.t.Helper()
	k.eventually("claim", func() error { return k.store.Claim(k.t.Context(), sinks.Claim{Group: "test", Owner: "a test"}) })
}

// read follows the state to its end, and reports whether it was reset.
func (k *stateClient) read() (reset bool) {
	k.t.Helper()
	k.eventually("read", func() error {
		again, err := k.store.Read(k.t.Context(), func(e sinks.StateEntry) error {
			if e.Value == nil {
				delete(k.known, string(e.Key))
			} else {
				k.known[string(e.Key)] = string(e.Value)
			}
			return nil
		})
		if again {
			k.known, reset = map[string]string{}, true
			return errors.New("it was reset")
		}
		return err
	})
	return reset
}

func (k *stateClient) write(entries ...sinks.StateEntry) {
	k.t.Helper()
	k.eventually("write", func() error { return k.store.Append(k.t.Context(), entries, false) })
}

// awaitRefusal writes an entry until the error is one of a type.
func awaitRefusal[E error](k *stateClient, e sinks.StateEntry) {
	k.t.Helper()
	k.eventually("a refusal", func() error {
		err := k.store.Append(k.t.Context(), []sinks.StateEntry{e}, false)
		if errors.As(err, new(E)) {
			return nil
		}
		return fmt.Errorf("%w; want a %T", err, *new(E))
	})
}

func entry(key, value string) sinks.StateEntry {
	return sinks.StateEntry{Key: []byte(key), Value: []byte(value)}
}

func removed(key string) sinks.StateEntry { return sinks.StateEntry{Key: []byte(key)} }

func (k *stateClient) wantState(want map[string]string) {
	k.t.Helper()
	if !maps.Equal(k.known, want) {
		k.t.Errorf("the state is %v, want %v", k.known, want)
	}
}

// TestAStateOnApacheKafka has a broker for all its cases, and a topic for each.
func TestAStateOnApacheKafka(t *testing.T) {
	t.Parallel()
	b := startKafka(t)
	for name, test := range map[string]func(t *testing.T, b *broker.Broker, name string){
		"is-kept-in-a-compacted-topic":                      testKeptState,
		"is-noticed-when-it-is-lost":                        testLostState,
		"is-noticed-when-it-is-trimmed":                     testTrimmedState,
		"takes-nothing-of-a-deposed-owner-when-recreated":   testRecreatedState,
		"is-reported-by-its-owner-when-its-topic-is-edited": testEditedState,
	} {
		t.Run(name, func(t *testing.T) { test(t, b, name) })
	}
}

func testKeptState(t *testing.T, b *broker.Broker, name string) {
	first, follower := newStateClient(t, b.Brokers(), name), newStateClient(t, b.Brokers(), name)
	if follower.read() {
		t.Error("a state that does not exist was reset")
	}
	first.claim()
	first.read()
	first.wantState(map[string]string{})
	first.write(entry("a", "1"), entry("b", "1"), entry("empty", ""))
	first.write(removed("a"), entry("b", "2"))
	follower.read()
	follower.wantState(map[string]string{"b": "2", "empty": ""})
	alterTopic(t, b.Brokers(), name, "max.message.bytes", "50000")
	first.eventually("a claim that finds max.message.bytes=50000", func() error {
		first.claim()
		if whole := first.store.AtomicBytes(); whole < 40_000 || whole > 50_000 {
			return fmt.Errorf("%d bytes are written as a whole", whole)
		}
		return nil
	})
	if settings := settingsOf(t, b.Brokers(), name); settings["cleanup.policy"] != "compact" {
		t.Errorf("cleanup.policy is %q", settings["cleanup.policy"])
	}

	follower.claim()
	follower.read()
	follower.write(entry("c", "1"))
	for range 2 {
		err := first.store.Append(t.Context(), []sinks.StateEntry{entry("b", "late")}, false)
		var deposed *sinks.DeposedError
		if !errors.As(err, &deposed) {
			t.Errorf("an older owner writes: %v; want a DeposedError", err)
		}
	}
	last := newStateClient(t, b.Brokers(), name)
	last.read()
	last.wantState(map[string]string{"b": "2", "empty": "", "c": "1"})
	if follower.read() {
		t.Error("what is read by its owner was reset")
	}
	follower.wantState(map[string]string{"b": "2", "empty": "", "c": "1"})

	if err := b.Kill(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := follower.store.Append(ctx, []sinks.StateEntry{entry("d", "1")}, false); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("without a broker: %v; want an error that names the topic", err)
	}
	restartBroker(t, b)
	follower.write(entry("d", "2"), removed("c"))
	last.read()
	last.wantState(map[string]string{"b": "2", "empty": "", "d": "2"})
}

// testLostState deletes the topic under its owner and a follower. Kafka does not purge compacted
// topics.
func testLostState(t *testing.T, b *broker.Broker, name string) {
	owner, follower := newStateClient(t, b.Brokers(), name), newStateClient(t, b.Brokers(), name)
	owner.claim()
	owner.read()
	for i := range 5 {
		owner.write(entry("a", itoa(i)), entry("b", itoa(i)))
	}
	follower.read()
	follower.wantState(map[string]string{"a": "4", "b": "4"})

	deleteTopic(t, b.Brokers(), name)
	awaitRefusal[*sinks.StateLostError](owner, entry("x", "early"))
	owner.write(entry("a", "again"), entry("x", "1"))
	if !follower.read() {
		t.Error("a follower did not notice that the topic was recreated")
	}
	follower.wantState(map[string]string{"a": "again", "x": "1"})
}

// testTrimmedState trims the topic. The next checkpoint finds that, whenever it is: its answer has the offset of the oldest
// record.
func testTrimmedState(t *testing.T, b *broker.Broker, name string) {
	owner := newStateClient(t, b.Brokers(), name)
	owner.claim()
	owner.read()
	owner.write(entry("a", "1"))
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	alterTopic(t, b.Brokers(), name, "cleanup.policy", "compact,delete") // else the broker deletes nothing
	request := kmsg.NewPtrDeleteRecordsRequest()
	trimmed := kmsg.NewDeleteRecordsRequestTopic()
	trimmed.Topic, trimmed.Partitions = name, []kmsg.DeleteRecordsRequestTopicPartition{{Offset: -1}}
	request.Topics, request.TimeoutMillis = append(request.Topics, trimmed), 10_000
	owner.eventually("a trim", func() error {
		answer, err := request.RequestWith(t.Context(), client)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(answer.Topics[0].Partitions[0].ErrorCode)
	})
	var lost *sinks.StateLostError
	if err := owner.store.Append(t.Context(), []sinks.StateEntry{entry("b", "1")}, false); !errors.As(err, &lost) {
		t.Errorf("the next checkpoint: %v, want a StateLostError", err)
	}
	owner.write(entry("a", "2"))
	follower := newStateClient(t, b.Brokers(), name)
	follower.read()
	follower.wantState(map[string]string{"a": "2", "b": "1"})
}

// testRecreatedState recreates the topic under an owner that does not know that it was
// replaced, and under the one that has replaced it, which finds that out. A broker takes any producer in a new partition.
func testRecreatedState(t *testing.T, b *broker.Broker, name string) {
	former, owner := newStateClient(t, b.Brokers(), name), newStateClient(t, b.Brokers(), name)
	former.claim()
	former.write(entry("a", "1"))
	owner.claim()
	owner.write(entry("a", "2"))
	deleteTopic(t, b.Brokers(), name)
	createTopicWhenDeleted(t, b.Brokers(), name, 1)
	alterTopic(t, b.Brokers(), name, "cleanup.policy", "compact")

	awaitRefusal[*sinks.DeposedError](former, entry("a", "late"))
	follower := newStateClient(t, b.Brokers(), name)
	follower.read()
	follower.wantState(map[string]string{})
	awaitRefusal[*sinks.StateLostError](owner, entry("a", "3"))
	owner.write(entry("b", "1"))
	follower.read()
	follower.wantState(map[string]string{"b": "1"})
}

func settingsOf(t *testing.T, brokers []string, topic string) map[string]string {
	t.Helper()
	s := openSink(t, Config{Brokers: brokers, Topic: topicA})
	all, err := s.cluster.TopicSettings(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestStateTopicWithSeveralPartitionsIsNamed reports the number of partitions, and not that the brokers do not answer.
func TestStateTopicWithSeveralPartitionsIsNamed(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(3, stateName))
	c := newStateClient(t, brokers, stateName)
	_, err := c.store.Read(t.Context(), func(sinks.StateEntry) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "it has 3 partitions") || strings.Contains(err.Error(), "no broker") {
		t.Errorf("the topic has 3 partitions: %v", err)
	}
}

// testEditedState edits the topic so that it deletes old entries: its owner reports that while it
// writes, and not only the next failover.
func testEditedState(t *testing.T, b *broker.Broker, name string) {
	owner := newStateClient(t, b.Brokers(), name)
	owner.claim()
	owner.read()
	reported := func() condition.Status { return owner.store.Condition() }
	for _, step := range []struct {
		policy string
		code   condition.Code
	}{{"compact,delete", condition.StateMayLose}, {"compact", ""}} {
		alterTopic(t, b.Brokers(), name, "cleanup.policy", step.policy)
		owner.eventually("a report", func() error {
			owner.write(entry("a", "1"))
			if now := reported(); now.Code != step.code || now.Code != "" && !strings.Contains(now.Cause, "cleanup.policy="+step.policy) {
				return fmt.Errorf("with %s it reports %q: %s", step.policy, now.Code, now.Cause)
			}
			return nil
		})
	}
	owner.read()
	owner.wantState(map[string]string{"a": "1"})
}
