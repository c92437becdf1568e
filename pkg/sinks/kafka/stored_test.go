package kafka

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// readIDs returns the IDs of the records in spans, by lane, and which positions they have.
func readIDs(t *testing.T, r *StoredReader, spans []sinks.StoredSpan) (ids [][]string, positions [][]int64) {
	t.Helper()
	ids, positions = make([][]string, len(spans)), make([][]int64, len(spans))
	err := r.ReadStored(t.Context(), spans, func(stored sinks.StoredRecord) error {
		s, ours := format.ReadStored(stored.Value, stored.Header)
		if !ours {
			t.Errorf("not ours: %q", stored.Value)
		}
		ids[stored.Lane], positions[stored.Lane] = append(ids[stored.Lane], s.ID), append(positions[stored.Lane], stored.Position)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids, positions
}

// TestStoredRecordsAreReadBackWithReadRightsAlone needs READ and DESCRIBE, names them when they are missing, and returns the
// records of each partition in order, within the positions that are asked for.
func TestStoredRecordsAreReadBackWithReadRightsAlone(t *testing.T) {
	t.Parallel()
	b, cfg := startKafkaWithACLs(t)
	const partitions, each = 3, 200
	s := openSink(t, Config{Brokers: b.Brokers(), Topic: topicA, CreateTopics: CreateTopics{Enabled: true, Partitions: partitions}})
	laneOf(t, s, pod("a", 1))
	var want [][]string
	for p := range partitions {
		all := pods("p"+itoa(p), 1, each+1)
		publishUntilAccepted(t, s, laneName(topicA, int32(p), partitions), all)
		var ids []string
		for _, m := range all {
			ids = append(ids, m.Change.ID())
		}
		want = append(want, ids)
	}
	r, err := OpenStoredReader(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(t.Context()) })
	if _, err := r.StoredLanes(t.Context(), topicA); err == nil || !strings.Contains(err.Error(), "READ and DESCRIBE") {
		t.Errorf("without rights: %v", err)
	}
	grantRights(t, b, kafka.ResourceTypeTopic, topicA, kafka.PatternTypeLiteral, kafka.ACLOperationTypeDescribe)
	var lanes []sinks.StoredLane
	for lanes == nil { // a grant takes a moment to apply
		if lanes, err = r.StoredLanes(t.Context(), topicA); err != nil && t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	spans := make([]sinks.StoredSpan, len(lanes))
	for i, l := range lanes {
		spans[i] = sinks.StoredSpan{StoredLane: l, From: l.First, To: l.End}
		if l.Index != i || l.Count != partitions || l.First != 0 || l.End != each || l.Truncated || !l.Replaces {
			t.Errorf("without the right to read settings a topic may be compacted: %+v", l)
		}
	}
	err = r.ReadStored(t.Context(), spans, func(sinks.StoredRecord) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "grant READ") {
		t.Errorf("without READ: %v", err)
	}
	grantRights(t, b, kafka.ResourceTypeTopic, topicA, kafka.PatternTypeLiteral, kafka.ACLOperationTypeRead, kafka.ACLOperationTypeDescribeConfigs)
	for err != nil && t.Context().Err() == nil {
		err = r.ReadStored(t.Context(), spans, func(sinks.StoredRecord) error { return nil })
	}
	for i, ids := range first(readIDs(t, r, spans)) {
		if !slices.Equal(ids, want[i]) {
			t.Errorf("partition %d: %d records, want %d", i, len(ids), len(want[i]))
		}
	}
	for i := range spans {
		spans[i].From, spans[i].To = 50, 60+int64(i)
	}
	for i, positions := range second(readIDs(t, r, spans)) {
		if len(positions) != 10+i || positions[0] != 50 {
			t.Errorf("partition %d: positions %v", i, positions)
		}
	}
	if lanes, err := r.StoredLanes(t.Context(), topicA); err != nil || lanes[0].Replaces {
		t.Errorf("%+v: %v", lanes, err)
	}
	stop := errors.New("enough")
	if err := r.ReadStored(t.Context(), spans, func(sinks.StoredRecord) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("an error of the caller: %v", err)
	}
}

func first[A, B any](a A, _ B) A  { return a }
func second[A, B any](_ A, b B) B { return b }

// TestMissingTopicIsNamed with the remedy.
func TestMissingTopicIsNamed(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1))
	r, err := OpenStoredReader(Config{Brokers: brokers, Topic: topicA})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(t.Context()) })
	if _, err := r.StoredLanes(t.Context(), "nowhere"); err == nil || !strings.Contains(err.Error(), `topic "nowhere" does not exist`) {
		t.Error(err)
	}
}
