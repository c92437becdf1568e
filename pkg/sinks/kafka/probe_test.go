package kafka

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/test/parts/logs"
)

// openSinkWithLog opens a sink with a log.
func openSinkWithLog(t *testing.T, cfg Config) (*Sink, *logs.Buffer) {
	t.Helper()
	log := &logs.Buffer{}
	return openSinkWith(t, cfg, format.JSON, log.Logger()), log
}

// pingUntilReady pings until that succeeds.
func pingUntilReady(t *testing.T, s *Sink) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
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

func TestATopicIsThereBeforeTheFirstChangeIfItsNameIsFixed(t *testing.T) {
	t.Parallel()
	for topic, want := range map[string]int{topicA: 3, "k8s.{group}.{resource}": 0} {
		_, brokers := startFakeCluster(t, kfake.NumBrokers(1))
		s, _ := openSinkWithLog(t, Config{Brokers: brokers, Topic: topic, CreateTopics: CreateTopics{Enabled: true, Partitions: 3}})
		pingUntilReady(t, s)
		if got := len(endOffsets(t, brokers, topicA)); got != want {
			t.Errorf("%s: %d partitions, want %d", topic, got, want)
		}
		mustPublish(t, s, laneOf(t, s, pod("a", 1)), pods("a", 1, 5))
	}
}

func TestACancelledPingReturnsTheContextError(t *testing.T) {
	t.Parallel()
	s, _ := openSinkWithLog(t, Config{Brokers: []string{"127.0.0.1:1"}, Topic: topicA})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Ping(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestABrokerThatReturnsIsUsedAtOnce sends a request to a broker that was unreachable a moment ago: it must not wait for
// the next probe, or report an outage.
func TestABrokerThatReturnsIsUsedAtOnce(t *testing.T) {
	t.Parallel()
	cut, _, brokers := startCuttableCluster(t, kfake.NumBrokers(1))
	s, _ := openSinkWithLog(t, Config{Brokers: brokers, Topic: "k8s.{resource}", CreateTopics: CreateTopics{Enabled: true, Partitions: 1}})
	cut.setDown(true)
	for range 2 {
		if err := s.Ping(t.Context()); err == nil {
			t.Fatal("a broker that resets connections is reachable")
		}
	}
	cut.setDown(false)
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
