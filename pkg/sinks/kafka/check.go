package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// Values of Config.CheckTopics.
const (
	checkOff     = "off"
	checkWarn    = "warn"
	checkRequire = "require"
)

// topicChecker compares the settings of existing topics with the configuration, and finds settings that lose acknowledged
// records. It is safe for concurrent use.
type topicChecker struct {
	config  Config
	format  format.Format
	cluster *cluster.Cluster
	log     *slog.Logger

	mu        sync.Mutex
	warned    map[string]struct{} // faults that were logged
	faults    map[string]string   // of topics, as of the last look
	checkedAt time.Time           // when all topics in use were looked at last
}

// topicCheckInterval is how old a look at the settings of the topics in use may be: they may be edited at any time.
const topicCheckInterval = time.Minute

// checkTopic checks an existing topic. An error means that its changes wait.
func (c *topicChecker) checkTopic(ctx context.Context, topic string, found *cluster.Layout) error {
	if c.config.CheckTopics == checkOff {
		return nil
	}
	settings, err := c.cluster.TopicSettings(ctx, topic)
	if errors.Is(err, kafka.TopicAuthorizationFailed) {
		err = fmt.Errorf("topic %q cannot be checked: grant DESCRIBE_CONFIGS on it, or set kafka.checkTopics to off: %w", topic, err)
		if c.config.CheckTopics == checkRequire {
			return err
		}
		c.warnOnce("the settings of a topic cannot be checked", topic, err.Error())
		return nil
	}
	if err != nil {
		return c.cluster.SinkError(ctx, topic, err)
	}
	faults := strings.Join(append(c.config.CreateTopics.settingFaults(found, settings), c.retentionFaults(settings)...), "; ")
	c.mu.Lock()
	c.faults[topic] = faults
	c.mu.Unlock()
	if faults != "" && c.config.CheckTopics == checkWarn {
		c.warnOnce("a topic does not have the expected settings", topic, faults)
	}
	return c.refusal(topic)
}

// refusal returns why nothing is written to a topic, as of the last look.
func (c *topicChecker) refusal(topic string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	faults := c.faults[topic]
	if faults == "" || c.config.CheckTopics != checkRequire {
		return nil
	}
	return fmt.Errorf("topic %q does not have the expected settings: %s; correct the topic, or kafka.createTopics", topic, faults)
}

// startRecheck reports whether a look at all topics is due, which the caller begins then, and returns those with faults.
func (c *topicChecker) startRecheck() (faulty []string, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.config.CheckTopics == checkOff || time.Since(c.checkedAt) < topicCheckInterval {
		return nil, false
	}
	c.checkedAt = time.Now()
	for topic, faults := range c.faults {
		if faults != "" {
			faulty = append(faulty, topic)
		}
	}
	return faulty, true
}

// recheck looks at topics again, and forgets those that are gone. After an error the last look counts.
func (c *topicChecker) recheck(ctx context.Context, found map[string]*cluster.Layout) {
	var looks sync.WaitGroup
	for topic, layout := range found {
		switch {
		case layout.Err == nil && len(layout.Leads) > 0:
			looks.Go(func() { _ = c.checkTopic(ctx, topic, layout) })
		case errors.Is(layout.Err, kafka.UnknownTopicOrPartition):
			c.mu.Lock()
			delete(c.faults, topic)
			c.mu.Unlock()
		}
	}
	looks.Wait()
}

// warning returns what is wrong with the settings of topics that are written to nevertheless; "" if nothing is.
func (c *topicChecker) warning() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var faulty []string
	for topic, faults := range c.faults {
		if faults != "" && c.config.CheckTopics == checkWarn {
			faulty = append(faulty, topic)
		}
	}
	if len(faulty) == 0 {
		return ""
	}
	first, others := slices.Min(faulty), ""
	if n := len(faulty) - 1; n > 0 {
		others = fmt.Sprintf(" (%d other topics have faults, too)", n)
	}
	return fmt.Sprintf("topic %q%s: %s", first, others, c.faults[first])
}

// warnOnce logs what is wrong with a topic, unless the same was logged for another one: topics that were created alike have
// the same faults.
func (c *topicChecker) warnOnce(what, topic, why string) {
	why = strings.ReplaceAll(why, strconv.Quote(topic), "…")
	c.mu.Lock()
	_, warned := c.warned[why]
	c.warned[why] = struct{}{}
	c.mu.Unlock()
	if !warned {
		c.log.Warn(what+"; other topics with the same faults are not logged", "topic", topic, "why", why)
	}
}

const (
	minMessageBytes = 1 << 20   // the largest Kubernetes objects are a little larger than 1 MiB
	minRetention    = time.Hour // a consumer that is down for so long misses changes
)

// retentionFaults returns the settings with which a topic drops acknowledged changes, or refuses large ones. Settings that
// createTopics names are intended.
func (c *topicChecker) retentionFaults(settings map[string]string) (faults []string) {
	isBelow := func(name string, limit int64) bool {
		n, err := strconv.ParseInt(settings[name], 10, 64)
		return err == nil && n >= 0 && n < limit && !c.config.CreateTopics.names(name)
	}
	policy := settings["cleanup.policy"]
	if isBelow("max.message.bytes", minMessageBytes) {
		faults = append(faults, fmt.Sprintf("max.message.bytes %s: larger changes (compressed) are truncated or dead-lettered; set it to 2097152",
			settings["max.message.bytes"]))
	}
	if strings.Contains(policy, "delete") && isBelow("retention.ms", minRetention.Milliseconds()) {
		faults = append(faults, fmt.Sprintf("retention.ms %s: changes are deleted before consumers had an hour to read them", settings["retention.ms"]))
	}
	if !strings.Contains(policy, "compact") || c.config.CreateTopics.names("cleanup.policy") {
		return faults
	}
	switch {
	case c.format == format.Upsert:
	case c.format.IsEnvelope():
		if !c.config.Tombstones {
			faults = append(faults, "cleanup.policy "+policy+": deleted objects stay because they have no tombstones; set kafka.tombstones to true")
		}
	default:
		faults = append(faults, fmt.Sprintf(
			"cleanup.policy %s: only the newest change of each object stays, and deleted objects stay forever; set it to delete, or use the format upsert", policy))
	}
	return faults
}

// settingFaults returns how the settings of a topic differ from the configured ones, and which of them lose acknowledged
// records. More partitions or replicas than configured are no fault.
func (c CreateTopics) settingFaults(found *cluster.Layout, settings map[string]string) []string {
	var faults []string
	if len(found.Leads) < c.Partitions {
		faults = append(faults, fmt.Sprintf("partitions %d, expected %d", len(found.Leads), c.Partitions))
	}
	if found.Replicas < c.ReplicationFactor {
		faults = append(faults, fmt.Sprintf("replicationFactor %d, expected %d", found.Replicas, c.ReplicationFactor))
	}
	for _, want := range c.Configs {
		if got, known := settings[want.Name]; !known || got != want.Value {
			faults = append(faults, fmt.Sprintf("%s %q, expected %q", want.Name, got, want.Value))
		}
	}
	// An acknowledged record must survive the broker that acknowledged it.
	if found.Replicas > 1 && settings["min.insync.replicas"] == "1" && !c.names("min.insync.replicas") {
		faults = append(faults, "min.insync.replicas 1: records on a single broker are acknowledged, and lost with that broker; set it to 2")
	}
	if settings["unclean.leader.election.enable"] == "true" && !c.names("unclean.leader.election.enable") {
		faults = append(faults, "unclean.leader.election.enable true: a lagging replica may become leader and drop acknowledged records; set it to false")
	}
	return faults
}

func (c CreateTopics) names(setting string) bool {
	return slices.ContainsFunc(c.Configs, func(entry TopicConfig) bool { return entry.Name == setting })
}

func (c CreateTopics) newTopic(name string) cluster.NewTopic {
	t := cluster.NewTopic{Name: name, Partitions: c.Partitions, Replicas: c.ReplicationFactor}
	for _, entry := range c.Configs {
		t.Settings = append(t.Settings, [2]string{entry.Name, entry.Value})
	}
	return t
}

// maxTopicNameLength is Kafka's limit on the length of a topic name, in bytes (org.apache.kafka.common.internals.Topic).
const maxTopicNameLength = 249

// appendEscaped appends the value of a placeholder in a form that is legal in a topic name. Almost all Kubernetes names are
// legal as they are; other bytes become "_" and two upper-case hexadecimal digits. An underscore is not escaped, so that in
// contrived cases two values share a topic. That is harmless: records carry their identity.
func appendEscaped(dst []byte, value string) []byte {
	const hex = "0123456789ABCDEF"
	for i := 0; i < len(value); i++ {
		if b := value[i]; isLegalInTopic(b) {
			dst = append(dst, b)
		} else {
			dst = append(dst, '_', hex[b>>4], hex[b&15])
		}
	}
	return dst
}

func isLegalInTopic(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '.' || b == '_' || b == '-'
}

// checkTopicName returns why Kafka would refuse a topic of this name.
func checkTopicName(name []byte) error {
	switch {
	case len(name) == 0 || string(name) == "." || string(name) == "..":
		return fmt.Errorf("the topic name %q is not allowed by Kafka", name)
	case len(name) > maxTopicNameLength:
		return fmt.Errorf("a topic name of %d bytes is longer than Kafka's limit of %d", len(name), maxTopicNameLength)
	}
	for _, b := range name {
		if !isLegalInTopic(b) {
			return fmt.Errorf("a topic name consists of letters, digits, \".\", \"_\" and \"-\", not %q", b)
		}
	}
	return nil
}

// laneName names one partition of a topic. It contains the partition count: with another count the same objects are in
// other partitions, and a cursor of the old lane must not be used for the new one.
func laneName(topic string, partition int32, count int) sinks.Lane {
	return sinks.Lane(topic + "/" + strconv.Itoa(int(partition)) + "of" + strconv.Itoa(count))
}

// waitingLane names the lane of a topic with unknown partitions, for example one that does not exist.
func waitingLane(topic string) sinks.Lane { return sinks.Lane(topic + waitingSuffix) }

const waitingSuffix = "/waiting"

// topicOfWaitingLane is the inverse of waitingLane.
func topicOfWaitingLane(name sinks.Lane) (topic string, ok bool) {
	return strings.CutSuffix(string(name), waitingSuffix)
}

func topicOfLane(lane sinks.Lane) string {
	topic, _, _ := strings.Cut(string(lane), "/")
	return topic
}

// recordedLane names a lane of a topic with this ID in the replicated state: an offset in one topic is none in another one
// that was created later under its name.
func recordedLane(name sinks.Lane, id protocol.TopicID) sinks.Lane {
	if id == (protocol.TopicID{}) {
		return name
	}
	return sinks.RecordedLane(name, id.String())
}

// parseRecordedLane is the inverse of recordedLane. States of 0.9.0 have no IDs; one that cannot be parsed is of no topic.
func parseRecordedLane(recorded sinks.Lane) (l topicLane, ok bool) {
	name, life := sinks.SplitRecordedLane(recorded)
	topic, index, count, err := parseLane(name)
	if err != nil {
		return l, false
	}
	l = topicLane{cluster.Partition{Topic: topic, Index: index}, cluster.TopicShape{Partitions: count}}
	if life != "" {
		l.of.ID, ok = protocol.ParseTopicID(life)
		return l, ok
	}
	return l, true
}

// topicLane is a partition of a topic that has, or had, this shape.
type topicLane struct {
	cluster.Partition
	of cluster.TopicShape
}

// isGone reports whether the topic of this name has another shape now, which the one of the lane cannot have got. The number
// of partitions of a topic never shrinks.
func (l topicLane) isGone(now cluster.TopicShape) bool {
	return l.of.Partitions > now.Partitions || l.of.ID != now.ID
}

// parseLane is the inverse of laneName.
func parseLane(name sinks.Lane) (topic string, partition int32, partitions int, err error) {
	topic, partitionOfCount, found := strings.Cut(string(name), "/")
	first, second, of := strings.Cut(partitionOfCount, "of")
	p, perr := strconv.ParseInt(first, 10, 32)
	count, cerr := strconv.ParseInt(second, 10, 32)
	if !found || !of || perr != nil || cerr != nil || p < 0 || p >= count || laneName(topic, int32(p), int(count)) != name {
		return "", 0, 0, fmt.Errorf("lane %q is not a Kafka lane; expected \"topic/PARTITIONofCOUNT\"", name)
	}
	if err := checkTopicName([]byte(topic)); err != nil {
		return "", 0, 0, fmt.Errorf("lane %q: %w", name, err)
	}
	return topic, int32(p), int(count), nil
}
