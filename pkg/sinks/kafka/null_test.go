package kafka

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// deletedAndRecreated returns n lives of one pod: each is added and deleted.
func deletedAndRecreated(n int) []sinks.Message {
	var ms []sinks.Message
	for v := 1; v <= 2*n; v += 2 {
		added, deleted := pod("a", v), pod("a", v+1)
		added.Type, deleted.Type = event.Added, event.Deleted
		deleted.Before, deleted.After = deleted.After, nil
		ms = append(ms, sinks.Message{Offset: uint64(v), Change: added}, sinks.Message{Offset: uint64(v + 1), Change: deleted})
	}
	return ms
}

// TestATombstoneFollowsEachDelete also covers the count: the broker rejects a batch with a number that does not follow the
// records of the last one.
func TestATombstoneFollowsEachDelete(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA))
	s := openSinkWith(t, Config{Brokers: brokers, Topic: topicA, Tombstones: true}, format.Debezium, slog.New(slog.DiscardHandler))
	lane, changes := laneName(topicA, 0, 1), deletedAndRecreated(6)
	for i := 0; i < len(changes); i += 3 { // batches that end behind a delete, and before one
		mustPublish(t, s, lane, changes[i:i+3])
	}
	var got []string
	for _, r := range readTopics(t, brokers, topicA) {
		if string(r.Key) != "test/core/pods/default/a" {
			t.Errorf("key %q", r.Key)
		}
		if r.Value == nil {
			got = append(got, recordHeader(r, "id")+" gone")
			continue
		}
		var envelope struct{ Op string }
		if err := json.Unmarshal(r.Value, &envelope); err != nil {
			t.Fatal(err)
		}
		got = append(got, recordHeader(r, "id")+" "+envelope.Op)
	}
	var want []string
	for _, m := range changes {
		if m.Change.Type == event.Deleted {
			want = append(want, m.Change.ID()+" d", m.Change.ID()+" gone")
		} else {
			want = append(want, m.Change.ID()+" c")
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if sequence := s.lanes.byName[lane].numbers.nextSequence().Sequence; int(sequence) != len(want) {
		t.Errorf("the next sequence is %d after %d records", sequence, len(want))
	}
}

func TestARecordWithoutAValueHasTheChangeHeader(t *testing.T) {
	t.Parallel()
	gap := &event.Change{
		Type: event.Gap, Cluster: "test", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, ResourceVersion: "9",
		ObservedAt: baseTime, Gap: &event.GapInfo{From: "3", To: "9", Reason: "expired"},
	}
	for _, f := range []format.Format{format.Debezium, format.Upsert} {
		t.Run(f.String(), func(t *testing.T) {
			_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA))
			s := openSinkWith(t, Config{Brokers: brokers, Topic: topicA}, f, slog.New(slog.DiscardHandler))
			mustPublish(t, s, laneName(topicA, 0, 1), append(pods("a", 1, 2), sinks.Message{Offset: 2, Change: gap}))
			records := readTopics(t, brokers, topicA)
			if len(records) != 2 || records[0].Value == nil || recordHeader(records[0], "change") != "" {
				t.Fatalf("the object is %v", records)
			}
			if r := records[1]; r.Value != nil || string(r.Key) != "test/core/pods//" || recordHeader(r, "type") != "gap" ||
				recordHeader(r, "change") != string(format.AppendFacts(nil, gap)) {
				t.Errorf("the gap has key %q, value %q, headers %v", r.Key, r.Value, r.Headers)
			}
		})
	}
}

func TestTombstonesAreForDebeziumOnly(t *testing.T) {
	t.Parallel()
	cfg := Config{Brokers: []string{"127.0.0.1:1"}, Topic: topicA, Tombstones: true}
	if _, err := New(cfg, format.JSON, slog.New(slog.DiscardHandler)); err == nil || !strings.HasPrefix(err.Error(), "kafka.tombstones: ") {
		t.Errorf("error %v", err)
	}
}
