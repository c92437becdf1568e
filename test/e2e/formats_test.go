package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// Records without a value have this header.
const (
	kafkaFacts = "change"
	natsFacts  = "Kubecdc-Change"
)

// loseHistory has an object deleted while the exporter is away, makes etcd forget it, and waits until both buses have it.
func (s *fixture) loseHistory() {
	s.t.Helper()
	s.must(s.cluster.Delete(s.t.Context(), workload.ConfigMaps, s.name, "there-before"))
	s.must(s.etcd.Compact(s.t.Context()))
	s.must(s.controlPlane.StopAPIServer()) // its watch cache remembers what etcd has forgotten
	s.must(s.controlPlane.StartAPIServer(s.t.Context()))
	s.must(s.exporter.Start(s.t.Context()))
	for _, b := range s.buses {
		s.await(b, tellsOfAGap)
	}
}

// native returns a native object and the key that follows from it.
func native(payload []byte) ([]byte, string, error) {
	var o struct{ Cluster, Group, Resource, Namespace, Name string }
	if err := json.Unmarshal(payload, &o); err != nil {
		return nil, "", err
	}
	return payload, strings.Join([]string{o.Cluster, cmp.Or(o.Group, "core"), o.Resource, o.Namespace, o.Name}, "/"), nil
}

// TestCompactedTopicEqualsTheCluster writes bare objects into compacted topics, waits until the broker has compacted them,
// and compares what is left with etcd.
func TestCompactedTopicEqualsTheCluster(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Widgets}
	s := newFixture(t, kinds, func(settings *exporter.Settings) {
		settings.Format = "upsert"
		settings.Kafka = map[string]any{"createTopics": map[string]any{"enabled": true, "partitions": 1, "configs": []map[string]string{
			{"name": "cleanup.policy", "value": "compact"}, {"name": "segment.ms", "value": "200"},
			{"name": "min.cleanable.dirty.ratio", "value": "0.001"},
		}}}
	})
	s.read(format.Upsert, upsert{"id", "type", "cluster", "resource", "snapshot", kafkaFacts}.unwrap,
		upsert{"Kubecdc-Id", "Kubecdc-Type", "Kubecdc-Cluster", "Kubecdc-Resource", "Kubecdc-Snapshot", natsFacts}.unwrap)
	s.buses[0].compacted = true
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "there-before"))
	for _, kind := range kinds {
		s.must(s.cluster.Create(t.Context(), kind, s.name, marker))
	}
	s.must(s.exporter.Start(t.Context()))
	s.must(s.load(200, kinds).Wait())
	s.awaitHistory(s.buses[1]) // the stream keeps everything; the topics are compacted while they are read
	s.must(s.exporter.Stop())
	s.receiveAll()
	if wrong := s.history().Judge(s.buses[1].records, oracle.Rules{}); len(wrong) > 0 {
		t.Errorf("nats: %d points, the first ones:\n%s", len(wrong), first(wrong))
	}
	s.loseHistory()
	left := s.compacted(kinds)
	s.equalsTheCluster(left)
	s.must(s.exporter.Stop())
	s.readElsewhere("upsert")
}

// marker is an object that is changed to make the broker begin new segments: the newest one is never compacted.
const marker = "marker"

// compacted reads the topics from their beginning until no key but the markers' has more than one record.
func (s *fixture) compacted(kinds []workload.Kind) map[string]bus.Record {
	s.t.Helper()
	left := make(map[string]bus.Record)
	step := 0
	s.await(s.buses[0], func([]bus.Record) string {
		step++
		for _, kind := range kinds {
			s.must(s.cluster.Change(s.t.Context(), kind, s.name, marker, step))
		}
		again, err := bus.NewKafka(s.kafka.Brokers(), s.name+".")
		s.must(err)
		defer again.Close()
		again.Form = s.buses[0].Reader.(*bus.Kafka).Form
		records, err := again.Read(s.t.Context())
		if err != nil {
			return "the topics to be read: " + err.Error()
		}
		clear(left)
		twice := 0
		for _, r := range records {
			if _, seen := left[r.Key]; seen && r.Name != marker {
				twice++
			}
			left[r.Key] = r
		}
		if twice > 0 || len(records) == 0 {
			return fmt.Sprintf("the broker to compact: %d of %d records have newer ones", twice, len(records))
		}
		s.t.Logf("%d records of %d changes are left", len(records), len(s.buses[0].records))
		return ""
	})
	return left
}

// equalsTheCluster compares what is left of each key with what etcd has.
func (s *fixture) equalsTheCluster(left map[string]bus.Record) {
	s.t.Helper()
	exist := make(map[bus.Object]int64)
	state, err := s.etcd.State(s.t.Context(), s.resources)
	s.must(err)
	for _, r := range state {
		if r.Object.Name != marker {
			exist[r.Object] = r.Revision
		}
	}
	for key, r := range left {
		if r.Type == "deleted" || r.Name == "" || r.Name == marker {
			continue
		}
		if exist[r.Object] != r.Revision {
			s.t.Errorf("the topic has %s at %d, etcd at %d (0: not at all)", key, r.Revision, exist[r.Object])
		}
		delete(exist, r.Object)
	}
	if len(exist) > 0 {
		s.t.Errorf("the topic lacks %d objects: %v", len(exist), exist)
	}
}

// upsert reads bare objects. It holds the names of headers.
type upsert struct{ id, typ, cluster, resource, snapshot, facts string }

// unwrap makes a native object of a bare one, as far as there is enough.
func (u upsert) unwrap(headers map[string]string, value []byte) (payload []byte, key string, err error) {
	facts := make(map[string]any)
	if text := headers[u.facts]; text != "" {
		if err := json.Unmarshal([]byte(text), &facts); err != nil {
			return nil, "", err
		}
	}
	switch {
	case len(value) == 0 && len(facts) == 0:
		return nil, "", errors.New("neither a value nor a word why")
	case len(value) == 0 && facts["type"] == "deleted":
		facts["before"] = map[string]any{"metadata": map[string]any{ // all that is known of what was there
			"namespace": facts["namespace"], "name": facts["name"], "uid": facts["uid"], "resourceVersion": facts["resourceVersion"],
		}}
	case len(value) > 0:
		var object struct {
			Metadata struct{ Namespace, Name, UID, ResourceVersion string }
		}
		if err := json.Unmarshal(value, &object); err != nil {
			return nil, "", err
		}
		resource, group, _ := strings.Cut(headers[u.resource], ".")
		m := object.Metadata
		facts = map[string]any{
			"id": headers[u.id], "type": headers[u.typ], "cluster": headers[u.cluster], "group": group, "resource": resource,
			"namespace": m.Namespace, "name": m.Name, "uid": m.UID, "resourceVersion": m.ResourceVersion, "after": json.RawMessage(value),
		}
		if id := headers[u.snapshot]; id != "" {
			facts["snapshot"] = map[string]string{"id": id}
		}
	}
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(facts); err != nil {
		return nil, "", err
	}
	return native(b.Bytes())
}
