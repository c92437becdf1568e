package kafka

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// loud opens a sink with a log.
func loud(t *testing.T, cfg Config) (*Sink, *lines) {
	t.Helper()
	log := &lines{}
	return openAs(t, cfg, format.JSON, log.logger()), log
}

// insistOnKafka pings until that succeeds.
func insistOnKafka(t *testing.T, s *Sink) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for err := s.Ping(ctx); err != nil; err = s.Ping(ctx) {
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		<-pause.C
	}
}

func TestAPingTellsThatKafkaIsAway(t *testing.T) {
	for _, topic := range []string{topicA, "k8s.{group}.{resource}"} {
		cut, _, brokers := cuttable(t, kfake.NumBrokers(1), kfake.SeedTopics(2, topicA))
		s, _ := loud(t, Config{Brokers: brokers, Topic: topic, RequestTimeout: lateTimeout})
		for range 2 { // before and after it was there
			cut.set(true)
			var away *sinks.UnavailableError
			if err := s.Ping(t.Context()); !errors.As(err, &away) || !strings.Contains(away.Reason, "no broker of "+brokers[0]) {
				t.Errorf("%s: %v", topic, err)
			}
			cut.set(false)
			insistOnKafka(t, s)
		}
	}
}

func TestAPingTellsThatTheTopicIsMissing(t *testing.T) {
	_, brokers := fake(t, kfake.NumBrokers(1))
	s, _ := loud(t, Config{Brokers: brokers, Topic: topicA})
	if err := s.Ping(t.Context()); !errors.Is(err, kafka.UnknownTopicOrPartition) || !strings.Contains(err.Error(), `topic "k8s.core.pods" does not exist: create it`) {
		t.Error(err)
	}
	createTopic(t, brokers, topicA, 2)
	insistOnKafka(t, s)
}

func TestAPingTellsThatTheTopicIsNotAsRequired(t *testing.T) {
	_, brokers := fake(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA))
	s, _ := loud(t, expecting(checkRequire, brokers))
	if err := s.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "partitions 1, expected 2") {
		t.Error(err)
	}
	addPartitions(t, brokers, topicA, 2)
	alterTopic(t, brokers, topicA, "cleanup.policy", "compact")
	insistOnKafka(t, s)
}

func TestAPingTellsThatTheTopicMayNotBeUsed(t *testing.T) {
	c, brokers := fake(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA))
	s, _ := loud(t, Config{Brokers: brokers, Topic: topicA})
	fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	if err := s.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "grant WRITE and DESCRIBE") {
		t.Error(err)
	}
	fault.Remove()
	insistOnKafka(t, s)
}

func TestATopicIsThereBeforeTheFirstChangeIfItsNameIsFixed(t *testing.T) {
	for topic, want := range map[string]int{topicA: 3, "k8s.{group}.{resource}": 0} {
		_, brokers := fake(t, kfake.NumBrokers(1))
		s, _ := loud(t, Config{Brokers: brokers, Topic: topic, CreateTopics: CreateTopics{Enabled: true, Partitions: 3}})
		insistOnKafka(t, s)
		if got := len(ends(t, brokers, topicA)); got != want {
			t.Errorf("%s: %d partitions, want %d", topic, got, want)
		}
		publish(t, s, laneOf(t, s, pod("a", 1)), pods("a", 1, 5))
	}
}

func TestPingsWhileChangesArePublishedDisturbNothing(t *testing.T) {
	_, brokers := fake(t, kfake.NumBrokers(1))
	s, _ := loud(t, Config{Brokers: brokers, Topic: topicA, CreateTopics: CreateTopics{Enabled: true, Partitions: 1}})
	var checks sync.WaitGroup
	for range 4 {
		checks.Go(func() {
			for range 5 {
				if err := s.Ping(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	lane := laneOf(t, s, pod("a", 1))
	for v := 1; v < 20; v++ {
		publish(t, s, lane, pods("a", v, v+1))
	}
	checks.Wait()
	wantVersions(t, read(t, brokers, topicA), 1, 20)
}

func TestAPingThatIsCalledOffTellsNothing(t *testing.T) {
	s, _ := loud(t, Config{Brokers: []string{"127.0.0.1:1"}, Topic: topicA})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Ping(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestABrokerThatLetsUsInAfterAllIsFoundAtOnce asks for a broker again at once that was away a moment ago: what is to go to
// it must not wait for the next probe, or be taken for an outage.
func TestABrokerThatLetsUsInAfterAllIsFoundAtOnce(t *testing.T) {
	cut, _, brokers := cuttable(t, kfake.NumBrokers(1))
	s, _ := loud(t, Config{Brokers: brokers, Topic: "k8s.{resource}", CreateTopics: CreateTopics{Enabled: true, Partitions: 1}})
	cut.set(true)
	for range 2 {
		if err := s.Ping(t.Context()); err == nil {
			t.Fatal("a broker that resets connections is there")
		}
	}
	cut.set(false)
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	batch := pods("p", 1, 2)
	lane, err := lookUp(t, s, batch[0].Change)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.Publish(t.Context(), lane, batch); n != 1 || err != nil {
		t.Errorf("%d accepted: %v", n, err)
	}
}
