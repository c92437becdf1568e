package kafka

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
	broker "github.com/kubecdc/kubecdc/test/parts/kafka"
)

// startKafkaWithACLs starts a broker that denies the user exporter everything until it is granted.
func startKafkaWithACLs(t *testing.T) (*broker.Broker, Config) {
	t.Helper()
	dir := t.TempDir()
	ca := certificates.New(t)
	writeFile(t, dir, "ca.pem", ca.PEM)
	writeFile(t, dir, "password", []byte(rightPassword))
	cert, key := ca.Issue(t)
	const login = "org.apache.kafka.common.security."
	b := startKafkaIn(t, t.TempDir(), 1, broker.Options{
		Properties: map[string]string{
			"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			"super.users":           "User:ANONYMOUS", // clients without TLS
		},
		Secure: &broker.Secure{Certificate: string(cert), Key: string(key), Mechanisms: map[string]string{
			"PLAIN": login + `plain.PlainLoginModule required user_exporter="` + rightPassword + `";`,
		}}})[0]
	return b, Config{Brokers: []string{b.SecureAddress()}, Topic: topicA, CreateTopics: CreateTopics{Enabled: true, Partitions: 1},
		TLS:  auth.TLS{Enabled: true, TLS: credentials.TLS{CA: filepath.Join(dir, "ca.pem")}},
		SASL: auth.SASL{Mechanism: "plain", Username: "exporter", Password: credentials.InFile(filepath.Join(dir, "password"))}}
}

// grantRights grants operations to the user exporter.
func grantRights(t *testing.T, b *broker.Broker, kind kafka.ResourceType, name string, pattern kafka.PatternType, what ...kafka.ACLOperationType) {
	t.Helper()
	withClient(t, b.Brokers(), func(ctx context.Context, c *kafka.Client) error {
		var entries []kafka.ACLEntry
		for _, operation := range what {
			entries = append(entries, kafka.ACLEntry{ResourceType: kind, ResourceName: name, ResourcePatternType: pattern,
				Principal: "User:exporter", Host: "*", Operation: operation, PermissionType: kafka.ACLPermissionTypeAllow})
		}
		r, err := c.CreateACLs(ctx, &kafka.CreateACLsRequest{ACLs: entries})
		if err != nil {
			return err
		}
		return errors.Join(r.Errors...)
	})
}

// TestEachMissingRightOfAReplicatedStateIsNamed grants the rights that docs/kafka.md lists, one after the other, and checks
// the errors before each.
func TestEachMissingRightOfAReplicatedStateIsNamed(t *testing.T) {
	t.Parallel()
	b, cfg := startKafkaWithACLs(t)
	s := openSink(t, cfg)
	store, err := s.OpenState(stateName)
	if err != nil {
		t.Fatal(err)
	}
	lane := laneName(topicA, 0, 1)
	claim := sinks.Claim{Group: "test", Sink: "main", RecordLanes: func(context.Context, map[sinks.Lane]sinks.LanePosition) error { return nil }}
	// until checks the error without a right, grants it, and retries until it applies.
	until := func(what string, named []string, do func() error, allow func()) {
		t.Helper()
		err := do()
		for _, word := range named {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v; want an error that names %s", what, err, word)
			}
		}
		allow()
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		for err = do(); err != nil; err = do() { // brokers apply ACLs a moment later
			if ratelimit.Sleep(ctx, time.Millisecond) != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	topic := func(name string, what ...kafka.ACLOperationType) func() {
		return func() { grantRights(t, b, kafka.ResourceTypeTopic, name, kafka.PatternTypeLiteral, what...) }
	}
	published := 0
	until("publish", []string{"grant WRITE"}, func() error {
		n, err := s.Publish(t.Context(), lane, pods("a", published+1, 3))
		published += n
		return err
	}, topic(topicA, kafka.ACLOperationTypeWrite, kafka.ACLOperationTypeDescribe, kafka.ACLOperationTypeCreate, kafka.ACLOperationTypeDescribeConfigs))
	until("fence", []string{"WRITE", `"test-main"`}, func() error { _, err := s.Fence(t.Context(), claim, []sinks.Lane{lane}); return err },
		func() {
			grantRights(t, b, kafka.ResourceTypeTransactionalID, "test-", kafka.PatternTypePrefixed, kafka.ACLOperationTypeWrite)
		})
	publishUntilAccepted(t, s, lane, pods("a", 3, 4))
	held := 0
	until("tail", []string{"grant READ", topicA}, func() error {
		return tailOf(t, s, map[sinks.Lane]sinks.LanePosition{lane: 0}, func(sinks.Lane, sinks.Emitted) error { held++; return nil })
	}, topic(topicA, kafka.ACLOperationTypeRead))
	if held != 1 { // those from before the fence have a producer ID that no state names
		t.Errorf("the tail has %d messages, want 1", held)
	}
	until("claim", []string{stateName}, func() error { return store.Claim(t.Context(), sinks.Claim{Group: "test"}) },
		topic(stateName, kafka.ACLOperationTypeWrite, kafka.ACLOperationTypeDescribe, kafka.ACLOperationTypeCreate, kafka.ACLOperationTypeDescribeConfigs))
	until("read", []string{"grant READ", stateName}, func() error {
		_, err := store.Read(t.Context(), func(sinks.StateEntry) error { return nil })
		return err
	}, topic(stateName, kafka.ACLOperationTypeRead))
	if err := store.Append(t.Context(), []sinks.StateEntry{entry("a", "1")}, false); err != nil {
		t.Error(err)
	}
	publishUntilAccepted(t, s, lane, pods("a", 4, 5))
	wantVersions(t, readTopics(t, b.Brokers(), topicA), 1, 5)
}

// TestBrokersThatCannotLogTransactionsGetAtLeastOnce: a single broker with the defaults of a larger cluster.
func TestBrokersThatCannotLogTransactionsGetAtLeastOnce(t *testing.T) {
	t.Parallel()
	b := startKafkaWith(t, map[string]string{"transaction.state.log.replication.factor": "3"})
	s := openSink(t, Config{Brokers: b.Brokers(), Topic: topicA, RequestTimeout: time.Second, CreateTopics: CreateTopics{Enabled: true, Partitions: 1}})
	publishUntilAccepted(t, s, laneName(topicA, 0, 1), pods("a", 1, 9))
	wantVersions(t, readTopics(t, b.Brokers(), topicA), 1, 9)
	wantWarning(t, s, "transaction.state.log.replication.factor")
}

// TestWhoMayNotUseTransactionalIDsPublishes with the right to write to the topic alone, and turns the process before away
// as soon as one is granted.
func TestWhoMayNotUseTransactionalIDsPublishes(t *testing.T) {
	t.Parallel()
	b, cfg := startKafkaWithACLs(t)
	grantRights(t, b, kafka.ResourceTypeTopic, topicA, kafka.PatternTypeLiteral, kafka.ACLOperationTypeWrite, kafka.ACLOperationTypeDescribe,
		kafka.ACLOperationTypeCreate, kafka.ACLOperationTypeDescribeConfigs)
	s, k := openSink(t, cfg), &storedState{}
	restoreState(t, s, k, 0)
	publishUntilAccepted(t, s, laneName(topicA, 0, 1), pods("a", 1, 3))
	wantWarning(t, s, "TRANSACTIONAL_ID")
	k.state = s.State(0)
	grantRights(t, b, kafka.ResourceTypeTransactionalID, "kubecdc-", kafka.PatternTypePrefixed, kafka.ACLOperationTypeWrite)
	for v, granted := 3, false; !granted; v++ { // brokers apply ACLs a moment later
		s = openSink(t, cfg)
		restoreState(t, s, k, uint64(v))
		publishUntilAccepted(t, s, laneName(topicA, 0, 1), pods("a", v, v+1))
		granted, _ = s.fence.Load().grant()
		k.state = s.State(0)
	}
	wantWarning(t, s, "grant READ") // what is in doubt cannot be found
}
