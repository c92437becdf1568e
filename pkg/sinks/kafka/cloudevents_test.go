package kafka

import (
	"log/slog"
	"maps"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

func TestACloudEventHasTheHeadersOfItsMode(t *testing.T) {
	t.Parallel()
	c := pod("a", 7)
	c.Resource.Group, c.Coalesced = "apps", true
	for f, want := range map[format.Format]map[string]string{
		format.CloudEvents: {
			"content-type": "application/json", "ce_specversion": "1.0", "ce_id": "test/uid-a/7/updated",
			"ce_source": "/clusters/test/apps/v1/pods", "ce_type": "io.kubecdc.resource.updated", "ce_subject": "default/a",
			"ce_time": c.ObservedAt.Format(time.RFC3339Nano), "ce_cluster": "test", "ce_group": "apps", "ce_resource": "pods",
			"ce_kind": "Pod", "ce_uid": "uid-a", "ce_resourceversion": "7", "ce_sequence": "00000000000000000007",
			"ce_partitionkey": "test/apps/pods/default/a", "ce_delta": "Updated", "ce_coalesced": "true",
		},
		format.CloudEventsStructured: {"content-type": "application/cloudevents+json"},
	} {
		t.Run(f.String(), func(t *testing.T) {
			_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA))
			s := openSinkWith(t, Config{Brokers: brokers, Topic: topicA}, f, slog.New(slog.DiscardHandler))
			gone := pod("a", 8) // only the deletion is known
			gone.Type, gone.After = event.Deleted, nil
			mustPublish(t, s, laneName(topicA, 0, 1), []sinks.Message{{Offset: 7, Change: c}, {Offset: 8, Change: gone}})
			records := readTopics(t, brokers, topicA)
			got := map[string]string{}
			for _, h := range records[0].Headers {
				got[h.Key] = string(h.Value)
			}
			if len(got) != len(records[0].Headers) || !maps.Equal(got, want) {
				t.Errorf("headers %v\nwant %v", got, want)
			}
			for _, r := range records {
				if len(r.Value) == 0 {
					t.Errorf("offset %d has no value and is a tombstone", r.Offset)
				}
			}
		})
	}
}
