package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/planting"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

const (
	// quietResources is how many resources there are in which nothing happens; KUBECDC_E2E_QUIET sets it.
	quietResources = 2
	quietGroup     = "quiet.kubecdc.io"
	// repairWithin bounds a repair and the verification behind it beside a hundred quiet resources, where KUBECDC_E2E_QUIET
	// asks for that: in the pipeline nothing is measured.
	repairWithin = 15 * time.Second
)

// plantForms are the formats of a topic and of a stream, and "kv", a compacted topic and a bucket.
var plantForms = []string{"json", "cloudevents", "debezium", "upsert", "kv"}

// TestVerifyNamesAndRepairsWhatIsPlanted plants into what a running exporter delivers to Kafka and to NATS, at objects of
// their own, and verifies at once: exactly the objects of those plants that change what readers have are named, and the
// repair ends with nothing that differs. KUBECDC_E2E_PLANTS_AT_ONCE=1 plants and repairs one by one.
func TestVerifyNamesAndRepairsWhatIsPlanted(t *testing.T) {
	require.Long(t)
	e := servers(t)
	quiet, forms := defineQuiet(t, e), plantForms
	if len(quiet) == quietResources { // the others have the same readers, and are verified in memory
		forms = []string{"upsert", "kv"}
	}
	for _, form := range forms {
		t.Run(form, func(t *testing.T) {
			s := newPlanted(t, form, quiet)
			for _, sink := range s.sinks {
				s.plantAll(sink)
			}
		})
	}
}

// defineQuiet defines resources without objects and returns how the configuration selects them.
func defineQuiet(t *testing.T, e *environment) (selected []string) {
	t.Helper()
	var all sync.WaitGroup
	for i := range sizeOf(t, "KUBECDC_E2E_QUIET", quietResources) {
		plural := fmt.Sprintf("quiets%d", i)
		selected = append(selected, plural+"."+quietGroup)
		all.Go(func() {
			if err := e.cluster.Define(t.Context(), quietGroup, plural, fmt.Sprintf("Quiet%d", i)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	return selected
}

// planter plants into the two sinks of an exporter.
type planter struct {
	*fixture
	form      format.Format
	replaces  bool // records take the place of older ones of their key
	sinks     []string
	published func() rawLanes // to the bucket
	bucket    []rawRecord
}

func newPlanted(t *testing.T, form string, quiet []string) *planter {
	s := &planter{sinks: []string{"kafka", "nats"}, replaces: form == "kv"}
	if s.replaces {
		s.sinks, form = []string{"kafka", "kv"}, "json"
	}
	var err error
	s.form, err = format.Parse(form)
	if err != nil {
		t.Fatal(err)
	}
	s.fixture = newFixture(t, []workload.Kind{workload.ConfigMaps}, verifiedSettings, func(given *exporter.Settings) {
		given.Format, given.Select = form, append(given.Select, quiet...)
		given.NATS = map[string]any{"subject": given.Stream + ".{cluster}.{group}.{resource}.{namespace}.{name}"}
		topics := map[string]any{"enabled": true, "partitions": 1} // so that all are in order
		if s.replaces {
			topics["configs"] = []map[string]any{{"name": "cleanup.policy", "value": "compact"}}
		}
		given.Kafka = map[string]any{"createTopics": topics}
		given.Sinks = slices.DeleteFunc(given.WholeSinks(), func(sink map[string]any) bool {
			return !slices.Contains(s.sinks, sink["name"].(string))
		})
	})
	s.published = s.recordBucket(s.name)
	s.each(func(name string) error { return s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, name) })
	s.must(s.exporter.Start(t.Context()))
	s.each(func(name string) error {
		if strings.HasPrefix(name, "gone") {
			return s.cluster.Delete(t.Context(), workload.ConfigMaps, s.name, name)
		}
		return s.cluster.Change(t.Context(), workload.ConfigMaps, s.name, name, 1)
	})
	s.awaitTopics([]workload.Kind{workload.ConfigMaps})
	return s
}

// plantedName is the name of an object of a plant in a sink.
func plantedName(what, sink string, plant int) string {
	return fmt.Sprintf("%s-%s-%02d", what, sink, plant)
}

// each calls do for the objects of all plants that exist at first.
func (s *planter) each(do func(name string) error) {
	s.t.Helper()
	for _, sink := range s.sinks {
		for i := range planting.All() {
			s.must(do(plantedName("kept", sink, i)))
			s.must(do(plantedName("gone", sink, i)))
		}
	}
}

// plantAll plants everything into a sink, some at a time, and has each time verified and repaired.
func (s *planter) plantAll(sink string) {
	s.t.Helper()
	all := planting.All()
	objects := s.awaitObjects(sink)
	atOnce := sizeOf(s.t, "KUBECDC_E2E_PLANTS_AT_ONCE", len(all))
	slowest := time.Duration(0)
	for from := 0; from < len(all); from += atOnce {
		var records []planting.Record
		var names, want []string
		for i := from; i < min(from+atOnce, len(all)); i++ {
			records, names = append(records, all[i].Records(objects[i])...), append(names, all[i].Name)
			if what := map[planting.Named]string{planting.Kept: "kept", planting.Gone: "gone", planting.Never: "never"}[all[i].Named]; what != "" &&
				all[i].Changes&planting.ReadersOf(s.form, s.replaces) != 0 {
				want = append(want, s.name+"/"+plantedName(what, sink, i))
			}
		}
		s.plant(sink, records)
		began := time.Now()
		code, v, stderr := s.verify(s.exporter.Config(), sink, "--bodies", "--repair")
		slowest = max(slowest, time.Since(began))
		s.checkPlanted(fmt.Sprintf("%s, %q", sink, names), want, code, v, stderr)
	}
	s.t.Logf("%s: %d plants, %d at once; the slowest repair took %v", sink, len(all), atOnce, slowest.Round(time.Millisecond))
	if quiet := sizeOf(s.t, "KUBECDC_E2E_QUIET", quietResources); slowest > repairWithin && quiet > quietResources {
		s.t.Errorf("%s: a repair took %v beside %d quiet resources, want %v at most", sink, slowest, quiet, repairWithin)
	}
}

// checkPlanted checks that exactly these objects are named, and that nothing differs behind the repair.
func (s *planter) checkPlanted(what string, want []string, code int, v verified, stderr string) {
	s.t.Helper()
	var found []string
	for _, d := range v.differences() {
		found = append(found, d.Namespace+"/"+d.Name)
	}
	slices.Sort(found)
	slices.Sort(want)
	without := func(of, others []string) []string {
		return slices.DeleteFunc(slices.Clone(of), func(name string) bool { return slices.Contains(others, name) })
	}
	if found = slices.Compact(found); !slices.Equal(found, want) {
		s.t.Errorf("%s: named are %d objects; %q in error, and not %q\n%s", what, len(found), without(found, want), without(want, found),
			v.reasons())
	}
	repaired := len(want) == 0 && v.Outcome == "equal" || v.Repair != nil && v.Repair.After != nil && v.Repair.After.Outcome == "equal"
	if code != 0 || !repaired {
		s.t.Errorf("%s: exit code %d, %s, repair %+v\n%s\n%s", what, code, v.Outcome, v.Repair, v.reasons(), stderr)
		if v.Repair != nil && v.Repair.After != nil {
			s.t.Errorf("behind the repair: %s\n%s", v.Repair.After.reasons(), first(v.Repair.After.differences()))
		}
	}
}

// awaitObjects waits until a sink has the newest record of every object, and returns those of each plant.
func (s *planter) awaitObjects(sink string) (all []planting.Objects) {
	s.t.Helper()
	states := map[string]*event.Change{}
	existing, err := s.cluster.List(s.t.Context(), workload.ConfigMaps)
	s.must(err)
	for _, o := range existing {
		content, err := json.Marshal(o.Object)
		s.must(err)
		states[o.GetNamespace()+"/"+o.GetName()] = &event.Change{
			Cluster: "e2e", Resource: event.Resource{Version: "v1", Resource: "configmaps", Kind: "ConfigMap"}, Namespace: o.GetNamespace(),
			Name: o.GetName(), UID: string(o.GetUID()), ResourceVersion: o.GetResourceVersion(), ObservedAt: time.Now(), After: content,
		}
	}
	for ; ; await.Pause(s.t, lookEvery) {
		byKey, mark := s.readObjects(sink)
		all = nil
		for i := range planting.All() {
			kept, gone := byKey[s.name+"/"+plantedName("kept", sink, i)], byKey[s.name+"/"+plantedName("gone", sink, i)]
			other := byKey[s.name+"/"+plantedName("kept", sink, (i+1)%len(planting.All()))]
			if len(kept) < 2 || len(gone) < 2 || len(other) < 2 || mark == nil {
				break
			}
			all = append(all, planting.Objects{
				Format: s.form, Older: kept[0], Kept: kept[1], Other: other[1], Former: gone[0], Gone: gone[1], Mark: *mark,
				State: states[s.name+"/"+plantedName("kept", sink, i)], Never: plantedName("never", sink, i),
			})
		}
		if len(all) == len(planting.All()) {
			return all
		}
	}
}

// readObjects returns the records of a sink by object, and a watermark.
func (s *planter) readObjects(sink string) (byKey map[string][]planting.Record, mark *planting.Record) {
	s.t.Helper()
	var lanes rawLanes
	switch sink {
	case "kafka":
		lanes = s.readTopic(s.name + ".configmaps")
	case "nats":
		lanes = s.readStream(s.name)
	case "kv":
		s.bucket = append(s.bucket, s.published()[0]...)
		lanes = rawLanes{s.bucket}
	}
	byKey = map[string][]planting.Record{}
	for _, lane := range lanes {
		for _, r := range lane {
			of := planting.Record{Key: "e2e/core/configmaps/" + r.stored.Key, Value: r.value, Headers: map[string]string{}}
			for _, h := range r.headers {
				fact := strings.ToLower(strings.TrimPrefix(h.Key, natsHeader))
				if slices.Contains(factHeaders, fact) || h.Key == operationHeader {
					of.Headers[fact] = string(h.Value)
				}
			}
			if byKey[r.stored.Key] = append(byKey[r.stored.Key], of); r.stored.Type == event.Watermark && r.stored.Resource.Resource == "configmaps" {
				mark = &of
			}
		}
	}
	return byKey, mark
}

// natsHeader is how the names of factHeaders begin in NATS. operationHeader is that of a delete in a bucket.
const natsHeader, operationHeader = "Kubecdc-", "KV-Operation"

var factHeaders = []string{format.HeaderID, format.HeaderType, format.HeaderCluster, format.HeaderKey, format.HeaderChange}

// plant writes records to where the sink has their keys.
func (s *planter) plant(sink string, records []planting.Record) {
	s.t.Helper()
	var lane []rawRecord
	prefix := map[string]string{"nats": s.name, "kv": "$KV." + s.name}[sink]
	for _, r := range records {
		raw := rawRecord{value: r.Value}
		if r.Key != "" {
			raw.key = []byte(r.Key)
		} else if s.replaces && sink == "kafka" { // a compacted topic refuses that
			continue
		}
		raw.subject = prefix
		for part := range strings.SplitSeq(r.Key, "/") {
			if part == "" {
				part = sinks.EmptyValue
			}
			raw.subject += "." + part
		}
		for name, value := range r.Headers {
			switch {
			case name == strings.ToLower(operationHeader):
				name = operationHeader
			case sink != "kafka":
				name = natsHeader + strings.ToUpper(name[:1]) + name[1:]
			}
			raw.headers = append(raw.headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
		}
		lane = append(lane, raw)
	}
	if sink == "kafka" {
		s.produce(s.name+".configmaps", rawLanes{lane})
		return
	}
	js, _, hangUp := s.openStream(map[string]string{"nats": s.name, "kv": "KV_" + s.name}[sink])
	defer hangUp()
	s.publish(js, prefix, prefix, lane)
}
