package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/createtopics"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
)

// What is done about a topic that is not as kafka.createTopics says, or that may lose what it has acknowledged.
const (
	checkOff     = "off"
	checkWarn    = "warn"
	checkRequire = "require"
)

// checkTopic compares a topic that exists with what is asked of it. An error holds its changes back.
func (s *Sink) checkTopic(ctx context.Context, topic string, found *cluster.Layout) error {
	if s.config.CheckTopics == checkOff {
		return nil
	}
	settings, err := s.cluster.TopicSettings(ctx, topic)
	if errors.Is(err, kafka.TopicAuthorizationFailed) {
		err = fmt.Errorf("topic %q cannot be checked: grant DESCRIBE_CONFIGS on it, or set kafka.checkTopics to off: %w", topic, err)
		if s.config.CheckTopics == checkRequire {
			return err
		}
		s.warnOnce("a topic is used unchecked", topic, err.Error())
		return nil
	}
	if err != nil {
		return s.cluster.SinkError(ctx, topic, err)
	}
	faults := append(s.config.CreateTopics.settingFaults(found, settings), s.retentionFaults(settings)...)
	switch {
	case len(faults) == 0:
		return nil
	case s.config.CheckTopics == checkRequire:
		return fmt.Errorf("topic %q is not as it should be: %s; correct it or kafka.createTopics", topic, strings.Join(faults, "; "))
	}
	s.warnOnce("a topic is not as it should be; it is used all the same", topic, strings.Join(faults, "; "))
	return nil
}

// warnOnce logs what is wrong with a topic, unless the same was said of another one: topics that are made alike are wrong
// alike.
func (s *Sink) warnOnce(what, topic, why string) {
	why = strings.ReplaceAll(why, strconv.Quote(topic), "…")
	s.mu.Lock()
	_, told := s.warned[why]
	s.warned[why] = struct{}{}
	s.mu.Unlock()
	if !told {
		s.log.Warn(what+"; others of which the same is true are not listed", "topic", topic, "why", why)
	}
}

const (
	minMessageBytes = 1 << 20   // bytes; the largest objects of Kubernetes are a little larger
	minRetention    = time.Hour // a consumer that is away for so long misses what was written meanwhile
)

// retentionFaults says how a topic loses changes that it has acknowledged, or has no room for them. What createTopics asks for is
// meant.
func (s *Sink) retentionFaults(settings map[string]string) (faults []string) {
	meant := map[string]bool{}
	for _, c := range s.config.CreateTopics.Configs {
		meant[c.Name] = true
	}
	number := func(name string, below int64) bool {
		n, err := strconv.ParseInt(settings[name], 10, 64)
		return err == nil && n >= 0 && n < below && !meant[name]
	}
	policy := settings["cleanup.policy"]
	if number("max.message.bytes", minMessageBytes) {
		faults = append(faults, fmt.Sprintf("max.message.bytes %s: compressed changes that are larger arrive in part or not at all; set it to 2097152",
			settings["max.message.bytes"]))
	}
	if strings.Contains(policy, "delete") && number("retention.ms", minRetention.Milliseconds()) {
		faults = append(faults, fmt.Sprintf("retention.ms %s: changes are deleted that consumers had no hour to read", settings["retention.ms"]))
	}
	if !strings.Contains(policy, "compact") || meant["cleanup.policy"] {
		return faults
	}
	switch s.format {
	case format.Upsert:
	case format.Debezium:
		if !s.config.Tombstones {
			faults = append(faults, "cleanup.policy "+policy+": deleted objects stay, as nothing says that they are gone; set kafka.tombstones to true")
		}
	default:
		faults = append(faults, fmt.Sprintf(
			"cleanup.policy %s: of each object only the newest change stays, and deleted ones stay for ever; set it to delete, or use the format upsert", policy))
	}
	return faults
}

// settingFaults says in what a topic falls short. More partitions or replicas than asked for are none.
func (c CreateTopics) settingFaults(found *cluster.Layout, settings map[string]string) []string {
	var faults []string
	if len(found.Leads) < c.Partitions {
		faults = append(faults, fmt.Sprintf("partitions %d, expected %d", len(found.Leads), c.Partitions))
	}
	if found.Replicas < c.ReplicationFactor {
		faults = append(faults, fmt.Sprintf("replicationFactor %d, expected %d", found.Replicas, c.ReplicationFactor))
	}
	given := map[string]bool{}
	for _, want := range c.Configs {
		given[want.Name] = true
		if got, known := settings[want.Name]; !known || got != want.Value {
			faults = append(faults, fmt.Sprintf("%s %q, expected %q", want.Name, got, want.Value))
		}
	}
	// What is acknowledged must survive the broker that acknowledged it.
	if found.Replicas > 1 && settings["min.insync.replicas"] == "1" && !given["min.insync.replicas"] {
		faults = append(faults, "min.insync.replicas 1: what one broker alone has is acknowledged, and lost with it; set it to 2")
	}
	if settings["unclean.leader.election.enable"] == "true" && !given["unclean.leader.election.enable"] {
		faults = append(faults, "unclean.leader.election.enable true: a replica that lags may take over and forget what was acknowledged; set it to false")
	}
	return faults
}

// createRequest asks for a topic that is as it should be.
func (c CreateTopics) createRequest(topic string) createtopics.RequestTopic {
	r := createtopics.RequestTopic{Name: topic, NumPartitions: -1, ReplicationFactor: -1}
	if c.Partitions > 0 {
		r.NumPartitions = int32(c.Partitions)
	}
	if c.ReplicationFactor > 0 {
		r.ReplicationFactor = int16(c.ReplicationFactor)
	}
	for _, entry := range c.Configs {
		r.Configs = append(r.Configs, createtopics.RequestConfig(entry))
	}
	return r
}
