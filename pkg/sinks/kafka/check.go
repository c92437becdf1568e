package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/segmentio/kafka-go"
)

// What is done about a topic that is not as kafka.createTopics says, or that may lose what it has acknowledged.
const (
	checkOff     = "off"
	checkWarn    = "warn"
	checkRequire = "require"
)

// check compares a topic that exists with what is asked of it. An error holds its changes back.
func (s *Sink) check(ctx context.Context, topic string, found description) error {
	if s.config.CheckTopics == checkOff {
		return nil
	}
	settings, err := s.cluster.settings(ctx, topic)
	if errors.Is(err, kafka.TopicAuthorizationFailed) {
		err = fmt.Errorf("topic %q cannot be checked: grant DESCRIBE_CONFIGS on it, or set kafka.checkTopics to off: %w", topic, err)
		if s.config.CheckTopics == checkRequire {
			return err
		}
		s.log.Warn("a topic is used unchecked", "topic", topic, "error", err)
		return nil
	}
	if err != nil {
		return s.explain(ctx, topic, err)
	}
	faults := s.config.CreateTopics.faults(found, settings)
	switch {
	case len(faults) == 0:
		return nil
	case s.config.CheckTopics == checkRequire:
		return fmt.Errorf("topic %q is not as it should be: %s; correct it or kafka.createTopics", topic, strings.Join(faults, "; "))
	}
	s.log.Warn("a topic is not as it should be; it is used all the same", "topic", topic, "faults", faults)
	return nil
}

// faults says in what a topic falls short. More partitions or replicas than asked for are none.
func (c CreateTopics) faults(found description, settings map[string]string) []string {
	var faults []string
	if len(found.leads) < c.Partitions {
		faults = append(faults, fmt.Sprintf("partitions %d, expected %d", len(found.leads), c.Partitions))
	}
	if found.replicas < c.ReplicationFactor {
		faults = append(faults, fmt.Sprintf("replicationFactor %d, expected %d", found.replicas, c.ReplicationFactor))
	}
	given := map[string]bool{}
	for _, want := range c.Configs {
		given[want.Name] = true
		if got, known := settings[want.Name]; !known || got != want.Value {
			faults = append(faults, fmt.Sprintf("%s %q, expected %q", want.Name, got, want.Value))
		}
	}
	// What is acknowledged must survive the broker that acknowledged it.
	if found.replicas > 1 && settings["min.insync.replicas"] == "1" && !given["min.insync.replicas"] {
		faults = append(faults, "min.insync.replicas 1: what one broker alone has is acknowledged, and lost with it; set it to 2")
	}
	if settings["unclean.leader.election.enable"] == "true" && !given["unclean.leader.election.enable"] {
		faults = append(faults, "unclean.leader.election.enable true: a replica that lags may take over and forget what was acknowledged; set it to false")
	}
	return faults
}
