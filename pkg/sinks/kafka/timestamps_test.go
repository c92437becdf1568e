package kafka

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
)

func TestARefusedTimestampIsLeftOutAndLogged(t *testing.T) {
	t.Parallel()
	c, brokers := startFakeCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(1, topicA))
	s, log := openSinkWithLog(t, Config{Brokers: brokers, Topic: topicA})
	lane := laneOf(t, s, pod("a", 1))
	mustPublish(t, s, lane, pods("a", 1, 3))
	c.Fault(produceFault(kerr.InvalidTimestamp))
	mustPublish(t, s, lane, pods("a", 3, 5))
	mustPublish(t, s, lane, pods("a", 5, 7))
	s.lanes.byName[lane].window.untimedUntil = time.Now() // a minute later
	mustPublish(t, s, lane, pods("a", 7, 9))
	records := readTopics(t, brokers, topicA)
	wantVersions(t, records, 1, 9)
	for i, r := range records {
		if timed := i < 2 || i > 5; timed != (r.Timestamp.UnixMilli() > 0) {
			t.Errorf("record %d has the time %v", i, r.Timestamp)
		}
	}
	if n := strings.Count(log.String(), "reject the timestamps"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, log)
	}
}

// A topic that refuses timestamps that are a millisecond old makes every clock wrong.
func TestWrongClocksHoldNothingBack(t *testing.T) {
	t.Parallel()
	b := startKafka(t)
	s := openSink(t, Config{Brokers: b.Brokers(), Topic: topicA, CreateTopics: CreateTopics{Enabled: true, Partitions: 1,
		Configs: []TopicConfig{{Name: "message.timestamp.before.max.ms", Value: "0"}}}})
	waitForTopic(t, s)
	publishUntilAccepted(t, s, laneName(topicA, 0, 1), pods("a", 1, 20))
	wantVersions(t, readTopics(t, b.Brokers(), topicA), 1, 20)
}
