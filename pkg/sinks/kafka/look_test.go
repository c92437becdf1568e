package kafka

import (
	"context"
	"errors"
	"fmt"
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
	s, err := New(cfg, format.JSON, log.logger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeSink(t, s) })
	return s, log
}

// insistOnKafka checks as the exporter does: until it succeeds.
func insistOnKafka(t *testing.T, s *Sink) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for err := s.Check(ctx); err != nil; err = s.Check(ctx) {
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		<-pause.C
	}
	if now := s.Status(); now != (Status{State: Connecting}) {
		t.Errorf("status %+v before anything is acknowledged", now)
	}
}

func TestASinkWithNothingToDeliverTellsThatKafkaIsAway(t *testing.T) {
	for _, topic := range []string{topicA, "k8s.{group}.{resource}"} {
		cut, _, brokers := cuttable(t, kfake.NumBrokers(1), kfake.SeedTopics(2, topicA))
		s, log := loud(t, Config{Brokers: brokers, Topic: topic, RequestTimeout: lateTimeout})
		cut.set(true)
		for range 3 {
			var away *sinks.UnavailableError
			if err := s.Check(t.Context()); !errors.As(err, &away) {
				t.Fatalf("%s: %v", topic, err)
			}
		}
		if now := s.Status(); now.State != Unavailable || !strings.Contains(now.Reason, "no broker of "+brokers[0]) {
			t.Errorf("%s: status %+v", topic, now)
		}
		cut.set(false)
		insistOnKafka(t, s)
		if log.count() != 2 || !strings.Contains(log.String(), "does not take changes") || !strings.Contains(log.String(), "kafka is there") {
			t.Errorf("%s: the log says\n%s", topic, log)
		}
	}
}

func TestAnOutageIsToldWithoutAChangeToDeliver(t *testing.T) {
	cut, _, brokers := cuttable(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA))
	s, log := loud(t, Config{Brokers: brokers, Topic: topicA, RequestTimeout: lateTimeout})
	publish(t, s, laneOf(t, s, pod("a", 1)), pods("a", 1, 2))
	cut.set(true)
	if err := s.Ping(t.Context(), time.Hour); err != nil {
		t.Errorf("asked although a change was just acknowledged: %v", err)
	}
	for range 2 {
		if err := s.Ping(t.Context(), 0); err == nil {
			t.Fatal("a broker that resets connections is there")
		}
		if now := s.Status(); now.State != Unavailable || !strings.Contains(now.Reason, "no broker of "+brokers[0]) {
			t.Errorf("status %+v", now)
		}
	}
	cut.set(false)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for s.Ping(ctx, 0) != nil {
		if ctx.Err() != nil {
			t.Fatal(ctx.Err())
		}
	}
	publish(t, s, laneOf(t, s, pod("a", 2)), pods("a", 2, 3))
	if now := s.Status(); now.State != Ready || log.count() != 3 || !strings.Contains(log.String(), "kafka is there") {
		t.Errorf("status %+v; the log says\n%s", now, log)
	}
}

func TestALookThatIsCalledOffTellsNothing(t *testing.T) {
	s, log := loud(t, Config{Brokers: []string{"127.0.0.1:1"}, Topic: topicA})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Ping(ctx, 0); !errors.Is(err, context.Canceled) || s.Status().State != Connecting || log.count() != 0 {
		t.Errorf("%v, status %+v, log\n%s", err, s.Status(), log)
	}
}

func TestASinkWithNothingToDeliverTellsThatItsTopicIsMissing(t *testing.T) {
	_, brokers := fake(t, kfake.NumBrokers(1))
	s, log := loud(t, Config{Brokers: brokers, Topic: topicA})
	for range 3 {
		if err := s.Check(t.Context()); !errors.Is(err, kafka.UnknownTopicOrPartition) {
			t.Fatal(err)
		}
	}
	if now := s.Status(); now.State != Unavailable || !strings.Contains(now.Reason, `topic "k8s.core.pods" does not exist: create it`) {
		t.Errorf("status %+v", now)
	}
	createTopic(t, brokers, topicA, 2)
	insistOnKafka(t, s)
	if log.count() != 2 {
		t.Errorf("the log says\n%s", log)
	}
}

func TestASinkWithNothingToDeliverTellsThatItsTopicIsNotAsRequired(t *testing.T) {
	_, brokers := fake(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA))
	s, _ := loud(t, expecting(checkRequire, brokers))
	if err := s.Check(t.Context()); err == nil || !strings.Contains(s.Status().Reason, "partitions 1, expected 2") {
		t.Errorf("status %+v: %v", s.Status(), err)
	}
	addPartitions(t, brokers, topicA, 2)
	alterTopic(t, brokers, topicA, "cleanup.policy", "compact")
	insistOnKafka(t, s)
}

func TestASinkWithNothingToDeliverTellsThatItMayNotUseItsTopic(t *testing.T) {
	c, brokers := fake(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA))
	s, _ := loud(t, Config{Brokers: brokers, Topic: topicA})
	fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	var refused *sinks.UnavailableError
	if err := s.Check(t.Context()); !errors.As(err, &refused) || !strings.Contains(s.Status().Reason, "grant WRITE and DESCRIBE") {
		t.Errorf("status %+v: %v", s.Status(), err)
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
		if now := s.Status(); now.State != Ready {
			t.Errorf("%s: status %+v", topic, now)
		}
	}
}

func TestChecksWhileChangesArePublishedDisturbNothing(t *testing.T) {
	_, brokers := fake(t, kfake.NumBrokers(1))
	s, _ := loud(t, Config{Brokers: brokers, Topic: topicA, CreateTopics: CreateTopics{Enabled: true, Partitions: 1}})
	var checks sync.WaitGroup
	for range 4 {
		checks.Go(func() {
			for range 5 {
				if err := s.Check(t.Context()); err != nil {
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

func TestACheckThatIsCalledOffTellsNothing(t *testing.T) {
	s, log := loud(t, Config{Brokers: []string{"127.0.0.1:1"}, Topic: topicA})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Check(ctx); !errors.Is(err, context.Canceled) || s.Status().State != Connecting || log.count() != 0 {
		t.Errorf("%v, status %+v, log\n%s", err, s.Status(), log)
	}
}

// TestABrokerThatLetsUsInAfterAllIsFoundAtOnce lets the library's look for brokers fail while the sink's own, a moment later,
// succeeds: what is to go to one of them must not wait for the library to look again, or be taken for an outage.
func TestABrokerThatLetsUsInAfterAllIsFoundAtOnce(t *testing.T) {
	cut, _, brokers := cuttable(t, kfake.NumBrokers(1))
	s, log := loud(t, Config{Brokers: brokers, Topic: "k8s.{resource}", CreateTopics: CreateTopics{Enabled: true, Partitions: 1}})
	cut.set(true)
	for range 2 { // the first makes the library forget what it knows, and there is a second until it may again
		if err := s.Check(t.Context()); err == nil {
			t.Fatal("a broker that resets connections is there")
		}
	}
	cut.set(false)
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	batch := pods("p", 1, 2)
	lane, err := s.Lane(t.Context(), batch[0].Change)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.Publish(t.Context(), lane, batch); n != 1 || err != nil {
		t.Errorf("%d accepted: %v", n, err)
	}
	if now := s.Status(); now.State != Ready || log.count() != 4 {
		t.Errorf("status %+v; the log says\n%s", now, log)
	}
}

func TestWhatWasBegunBeforeTheLastChangeIsNoNews(t *testing.T) {
	log := &lines{}
	s := newStatus(log.logger())
	refused := errors.New("refused")
	now := time.Now
	told := func(state State, lines int) {
		t.Helper()
		if got := s.status(); got.State != state || log.count() != lines {
			t.Errorf("status %+v; the log says\n%s", got, log)
		}
	}

	early := time.Now()
	s.fails("", "no", &unanswered{refused, early})
	told(Unavailable, 1)
	s.found(topicA, early) // overtaken by the failure
	s.works(topicA, early)
	told(Unavailable, 1)
	later := now()
	s.found(topicA, later)
	told(Connecting, 2)
	s.fails("", "no", fmt.Errorf("late: %w", &unanswered{refused, later})) // overtaken by the success
	told(Connecting, 2)
	s.works(topicA, later)
	told(Ready, 3)
	s.fails("", "no", &unanswered{refused, now()})
	told(Unavailable, 4)
	s.works(topicA, later)
	told(Unavailable, 4)
	s.works(topicA, now())
	told(Ready, 5)
}

// TestALookEndsOnlyWhatALookHasMet has a broker that answers and does not take changes: that it answers is no news then.
func TestALookEndsOnlyWhatALookHasMet(t *testing.T) {
	log := &lines{}
	s := newStatus(log.logger())
	err := errors.New("refused")
	began := time.Now()
	s.works(topicA, began)
	s.silent(began.Add(-1), "away", err) // overtaken by the success
	if now := s.status(); now.State != Ready {
		t.Errorf("status %+v", now)
	}
	s.silent(time.Now(), "away", err)
	s.silent(time.Now(), "away", err)
	if now := s.status(); now != (Status{Unavailable, "away"}) || log.count() != 2 {
		t.Errorf("status %+v; the log says\n%s", now, log)
	}
	s.fails("", "refuses", err)
	s.silent(time.Now(), "away", err)
	s.fails("", "refuses", err)
	s.answers(time.Now())
	if now := s.status(); now != (Status{Unavailable, "refuses"}) || log.count() != 3 {
		t.Errorf("status %+v; the log says\n%s", now, log)
	}
	s.works(topicA, time.Now())
	s.silent(time.Now(), "away", err)
	s.answers(time.Now())
	if now := s.status(); now.State != Ready || log.count() != 6 {
		t.Errorf("status %+v; the log says\n%s", now, log)
	}
}
