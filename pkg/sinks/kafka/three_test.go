package kafka

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	broker "github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// apaches starts a real cluster of three, whose topics have three replicas and need two in sync.
func apaches(t *testing.T) broker.Brokers {
	t.Helper()
	require.Integration(t)
	require.Program(t, "java", "install Java 17 or later")
	cluster, err := broker.StartCluster(t.Context(), t.TempDir(), 3, map[string]string{"log.retention.ms": "-1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Kill(); err != nil {
			t.Error(err)
		}
	})
	return cluster
}

// TestThreeBrokersLoseAndRepeatNothing kills brokers in turn, moves leaders back when they return, and lets the sink die
// with what it has in flight, while all lanes publish.
func TestThreeBrokersLoseAndRepeatNothing(t *testing.T) {
	const partitions, each, kills = 3, 4000, 2
	cluster := apaches(t)
	cfg := Config{Brokers: cluster.Brokers(), Topic: topicA, RequestTimeout: 5 * time.Second,
		CreateTopics: CreateTopics{Enabled: true, Partitions: partitions}}
	first := open(t, cfg)
	insistOnLane(t, first)

	run := &course{t: t, each: each, partitions: partitions, done: make([]atomic.Int64, partitions)}
	for round := range kills + 1 {
		s := open(t, cfg)
		keep(t, s, &run.kept, run.newest)
		alive, die := context.WithCancel(t.Context())
		var lanes sync.WaitGroup
		for p := range partitions {
			lanes.Go(func() { run.publish(alive, s, p) })
		}
		if round == kills {
			lanes.Wait()
			die()
			break
		}
		share := int64(each * (round + 1) / (kills + 1))
		run.await(share)
		if err := cluster[round].Kill(); err != nil {
			t.Fatal(err)
		}
		run.await(share + each/10)
		restart(t, cluster[round])
		electLeaders(t, cfg.Brokers, partitions)
		run.await(share + each/8)
		die()
		lanes.Wait()
		for p := range partitions { // the cursor of a process that dies is old
			run.newest = max(run.newest, uint64(run.done[p].Load()+most))
			run.done[p].Store(max(0, run.done[p].Load()-rand.Int64N(300)))
		}
	}
	wantStreams(t, read(t, cfg.Brokers, topicA), partitions, each)
}

// course is what the sinks of a test have published, one after the other.
type course struct {
	t                *testing.T
	each, partitions int
	kept             kept
	newest           uint64         // that was given to a sink
	done             []atomic.Int64 // messages, by partition
}

// most is how many messages are published at once.
const most = 50

// publish goes on with a partition until all is there or ctx ends.
func (c *course) publish(ctx context.Context, s *Sink, p int) {
	lane := laneName(topicA, int32(p), c.partitions)
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for ctx.Err() == nil && c.done[p].Load() < int64(c.each) {
		from := int(c.done[p].Load()) + 1
		n, err := s.Publish(ctx, lane, pods("p"+itoa(p), from, min(from+most, c.each+1)))
		c.done[p].Add(int64(n))
		var rejected *sinks.RejectedError
		if errors.As(err, &rejected) {
			c.t.Errorf("partition %d: %v", p, err)
			return
		}
		if err != nil {
			<-pause.C
		}
	}
}

// await waits until one partition has so much.
func (c *course) await(messages int64) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*patience)
	defer cancel()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		for p := range c.done {
			if c.done[p].Load() >= messages {
				return
			}
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			c.t.Fatalf("no partition has reached %d messages", messages)
		}
	}
}

// insistOnLane waits until the cluster has created the topic.
func insistOnLane(t *testing.T, s *Sink) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	for {
		_, err := s.Lane(ctx, pod("a", 1))
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		<-pause.C
	}
}

// electLeaders gives every partition to the replica it was meant for. That one may not be in sync yet: no matter.
func electLeaders(t *testing.T, brokers []string, partitions int) {
	t.Helper()
	ask(t, brokers, func(ctx context.Context, c *kafka.Client) error {
		numbers := make([]int, partitions)
		for p := range numbers {
			numbers[p] = p
		}
		again := time.NewTicker(50 * time.Millisecond)
		defer again.Stop()
		for {
			_, err := c.ElectLeaders(ctx, &kafka.ElectLeadersRequest{Topic: topicA, Partitions: numbers, Timeout: patience})
			if err == nil || ctx.Err() != nil {
				return err
			}
			<-again.C
		}
	})
}
