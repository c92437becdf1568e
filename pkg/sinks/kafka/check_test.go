package kafka

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/condition"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
)

// expectedTopicConfig is a sink configuration that expects settings of its topic.
func expectedTopicConfig(check string, brokers []string) Config {
	return Config{Brokers: brokers, Topic: topicA, CheckTopics: check,
		CreateTopics: CreateTopics{Partitions: 2, Configs: []TopicConfig{{"cleanup.policy", "compact"}}}}
}

func alterTopic(t *testing.T, brokers []string, topic, name, value string) {
	t.Helper()
	withClient(t, brokers, func(ctx context.Context, c *kafka.Client) error {
		r, err := c.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{Resources: []kafka.IncrementalAlterConfigsRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topic,
			Configs: []kafka.IncrementalAlterConfigsRequestConfig{{Name: name, Value: value, ConfigOperation: kafka.ConfigOperationSet}},
		}}})
		if err != nil {
			return err
		}
		return r.Resources[0].Error
	})
}

func TestATopicThatIsNotAsRequiredWaitsUntilItIs(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA))
	s := openSink(t, expectedTopicConfig(checkRequire, brokers))
	lane := laneOf(t, s, pod("a", 1))
	n, err := s.Publish(t.Context(), lane, pods("a", 1, 5))
	for _, err := range []error{err, s.Ping(t.Context())} {
		if n != 0 || err == nil || !strings.Contains(err.Error(), `partitions 1, expected 2; cleanup.policy "delete", expected "compact"`) {
			t.Fatalf("published %d: %v", n, err)
		}
	}
	addPartitions(t, brokers, topicA, 2)
	alterTopic(t, brokers, topicA, "cleanup.policy", "compact")
	pingUntilReady(t, s)
	publishUntilAccepted(t, s, lane, pods("a", 1, 5))
	wantVersions(t, readTopics(t, brokers, topicA), 1, 5)
}

func TestATopicThatIsNotAsExpectedIsLoggedOnce(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA))
	s, log := openSinkWithLog(t, expectedTopicConfig(checkWarn, brokers))
	lane := laneOf(t, s, pod("a", 1))
	for v := 1; v < 4; v++ {
		mustPublish(t, s, lane, pods("a", v, v+1))
		s.topics.topicByName(topicA).layout.Store(nil) // it is looked up again
	}
	if strings.Count(log.String(), "expected") != 3 || strings.Count(log.String(), "does not have the expected settings") != 1 {
		t.Errorf("unexpected log:\n%s", log)
	}
}

func TestATopicThatMayNotBeCheckedNamesTheMissingRight(t *testing.T) {
	t.Parallel()
	c, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(2, topicA))
	c.ControlKey(int16(kmsg.DescribeConfigs), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		answer := r.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, one := range r.(*kmsg.DescribeConfigsRequest).Resources {
			answer.Resources = append(answer.Resources, kmsg.DescribeConfigsResponseResource{
				ResourceType: one.ResourceType, ResourceName: one.ResourceName, ErrorCode: kerr.TopicAuthorizationFailed.Code,
			})
		}
		return answer, nil, true
	})
	s := openSink(t, expectedTopicConfig(checkRequire, brokers))
	if _, err := s.Publish(t.Context(), laneOf(t, s, pod("a", 1)), pods("a", 1, 2)); err == nil || !strings.Contains(err.Error(), "DESCRIBE_CONFIGS") {
		t.Errorf("required: %v", err)
	}
	s = openSink(t, expectedTopicConfig(checkWarn, brokers))
	mustPublish(t, s, laneOf(t, s, pod("a", 1)), pods("a", 1, 5))
}

func TestSettingsThatMayLoseAcknowledgedChangesAreFaults(t *testing.T) {
	t.Parallel()
	weak := map[string]string{"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
	for replicas, want := range map[int]int{1: 1, 3: 2} { // a single replica has no others to wait for
		if got := (CreateTopics{}).settingFaults(&cluster.Layout{Replicas: replicas}, weak); len(got) != want {
			t.Errorf("%d replicas: %q", replicas, got)
		}
	}
	strong := map[string]string{"min.insync.replicas": "2", "unclean.leader.election.enable": "false"}
	if got := (CreateTopics{Partitions: 3, ReplicationFactor: 2}).settingFaults(&cluster.Layout{Leads: make([]cluster.Lead, 4), Replicas: 3}, strong); len(got) != 0 {
		t.Errorf("more than configured: %q", got)
	}
	asked := CreateTopics{ReplicationFactor: 5, Configs: []TopicConfig{{"min.insync.replicas", "1"}, {"max.message.bytes", "5"}}}
	if got := asked.settingFaults(&cluster.Layout{Replicas: 3}, map[string]string{"min.insync.replicas": "1", "max.message.bytes": "7"}); len(got) != 2 {
		t.Errorf("configured settings must not be faults, missing ones must: %q", got)
	}
}

func TestATopicThatDropsChangesIsAFaultUnlessConfigured(t *testing.T) {
	t.Parallel()
	compacted := map[string]string{"cleanup.policy": "compact", "max.message.bytes": "1048588", "retention.ms": "604800000"}
	for name, c := range map[string]struct {
		format   format.Format
		config   Config
		settings map[string]string
		want     string // "" is no fault
	}{
		"history":                    {format.JSON, Config{}, compacted, "only the newest change of each object stays"},
		"intended compaction":        {format.JSON, Config{CreateTopics: CreateTopics{Configs: []TopicConfig{{"cleanup.policy", "compact"}}}}, compacted, ""},
		"upsert":                     {format.Upsert, Config{}, compacted, ""},
		"debezium":                   {format.Debezium, Config{}, compacted, "set kafka.tombstones"},
		"debezium with tombstones":   {format.Debezium, Config{Tombstones: true}, compacted, ""},
		"a retention of a minute":    {format.JSON, Config{}, map[string]string{"cleanup.policy": "delete", "retention.ms": "60000"}, "retention.ms 60000"},
		"an endless retention":       {format.JSON, Config{}, map[string]string{"cleanup.policy": "delete", "retention.ms": "-1"}, ""},
		"small records only":         {format.JSON, Config{}, map[string]string{"cleanup.policy": "delete", "max.message.bytes": "65536"}, "max.message.bytes 65536"},
		"what brokers do by default": {format.JSON, Config{}, map[string]string{"cleanup.policy": "delete", "max.message.bytes": "1048588", "retention.ms": "604800000"}, ""},
	} {
		got := strings.Join((&topicChecker{format: c.format, config: c.config}).retentionFaults(c.settings), "; ")
		if got == "" != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestAFaultOfAllTopicsIsLoggedOnce(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "a", "b", "c"))
	for _, topic := range []string{"a", "b", "c"} {
		alterTopic(t, brokers, topic, "cleanup.policy", "compact")
	}
	s, log := openSinkWithLog(t, Config{Brokers: brokers, Topic: "x"})
	for _, topic := range []string{"a", "b", "c"} {
		mustPublish(t, s, laneName(topic, 0, 1), pods("a", 1, 2))
	}
	if strings.Count(log.String(), "only the newest change of each object stays") != 1 {
		t.Errorf("unexpected log:\n%s", log)
	}
}

// TestATopicThatIsEditedWhileItIsUsedIsFound covers both: a condition that ends when the topic is mended, and changes that
// wait until then.
func TestATopicThatIsEditedWhileItIsUsedIsFound(t *testing.T) {
	t.Parallel()
	for _, check := range []string{checkWarn, checkRequire} {
		for name, values := range map[string][2]string{"retention.ms": {"60000", "604800000"}, "cleanup.policy": {"compact", "delete"}} {
			t.Run(check+" "+name, func(t *testing.T) {
				_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA))
				s := openSink(t, Config{Brokers: brokers, Topic: topicA, CheckTopics: check})
				lane := laneOf(t, s, pod("a", 1))
				mustPublish(t, s, lane, pods("a", 1, 2))
				lookUntil := func(faulty bool) {
					t.Helper()
					for t.Context().Err() == nil {
						s.topics.checker.mu.Lock()
						s.topics.checker.checkedAt = time.Time{}
						s.topics.checker.mu.Unlock()
						s.router.layoutsCheckedAt = time.Time{}
						s.PendingRepartitions()
						found := s.topics.checker.refusal(topicA) != nil
						if check == checkWarn {
							found = slices.ContainsFunc(s.Conditions(), func(c condition.Status) bool {
								return c.Code == condition.SinkMayLose && strings.Contains(c.Cause, name)
							})
						}
						if found == faulty {
							return
						}
						time.Sleep(time.Millisecond)
					}
				}
				alterTopic(t, brokers, topicA, name, values[0])
				lookUntil(true)
				n, err := s.Publish(t.Context(), lane, pods("a", 2, 3))
				if want := check == checkWarn; (n == 1 && err == nil) != want {
					t.Errorf("published %d: %v", n, err)
				}
				alterTopic(t, brokers, topicA, name, values[1])
				if check == checkWarn {
					lookUntil(false)
				}
				mustPublish(t, s, lane, pods("a", 2+n, 4))
				wantVersions(t, readTopics(t, brokers, topicA), 1, 4)
			})
		}
	}
}

// TestTopicsOfOthersAreNotJudged, whatever their settings are: also not while the sink writes to no topic yet.
func TestTopicsOfOthersAreNotJudged(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA, "other"))
	alterTopic(t, brokers, "other", "cleanup.policy", "compact")
	s, log := openSinkWithLog(t, Config{Brokers: brokers, Topic: topicA})
	s.topics.checkLayouts(t.Context(), nil)
	if warning := s.topics.checker.warning(); warning != "" || strings.Contains(log.String(), "other") {
		t.Errorf("%s\n%s", warning, log)
	}
}
