package kafka

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

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

// topicOfLane returns the topic of any lane.
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
