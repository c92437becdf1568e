package e2e

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

const (
	// orphanedObjects is how many objects are deleted while there is no journal.
	orphanedObjects = 300
	// orphanKills is how often the exporter is killed: before it reads the destinations, while it does, and behind that.
	orphanKills = 5
)

// TestRowsOfObjectsDeletedWithoutAJournalAreRemoved deletes objects while the exporter is away, and its journal with them.
// The next one reads the topic and the bucket back behind its snapshots, also after kills and under load, in which some
// objects are made again: then both have what the cluster has, and the rows of another cluster.
func TestRowsOfObjectsDeletedWithoutAJournalAreRemoved(t *testing.T) {
	require.Long(t)
	kinds := []workload.Kind{workload.ConfigMaps, workload.Widgets}
	var journal string
	s := newFixture(t, kinds, verifiedSettings, func(given *exporter.Settings) {
		journal, given.Format, given.Kafka = given.JournalDir(), "upsert", map[string]any{"repair": true}
		given.Sinks = given.WholeSinks()
		given.Sinks[2]["nats"].(map[string]any)["repair"] = true
	})
	published := s.recordBucket(s.name)
	s.must(s.run(workload.Plan{Objects: 4 * orphanedObjects}, kinds).Wait()) // every second is deleted
	s.must(s.exporter.Start(t.Context()))
	s.awaitTopics(kinds)
	s.awaitVerified(workload.ConfigMaps)
	s.must(s.exporter.Kill())
	s.must(os.RemoveAll(journal))
	name := func(i int) string { return fmt.Sprintf("load-1-%04d", i) }
	remove := func(each func(kind workload.Kind, name string) error) {
		for i := range 2 * orphanedObjects {
			if i/len(kinds)%2 == 0 {
				s.must(each(kinds[i%len(kinds)], name(i)))
			}
		}
	}
	remove(func(kind workload.Kind, name string) error { return s.cluster.Delete(t.Context(), kind, s.name, name) })
	topic := s.readTopic(s.name + ".configmaps")
	theirs := ofAnotherCluster(lastRow(t, slices.Concat(topic...), name(0)))
	s.produce(s.name+".configmaps", rawLanes{{theirs}})
	js, _, hangUp := s.openStream("KV_" + s.name)
	defer hangUp()
	theirValue := ofAnotherCluster(lastRow(t, published()[0], name(0)))
	s.publish(js, "", "", []rawRecord{theirValue})

	load := s.run(workload.Plan{Objects: math.MaxInt32, Updates: 3, Rate: verifyRate}, kinds)
	for i := range orphanKills {
		s.must(s.exporter.Start(t.Context()))
		await.Pause(t, time.Duration(i)*400*time.Millisecond)
		s.must(s.exporter.Kill())
	}
	s.must(s.exporter.Start(t.Context()))
	for i := range 20 {
		s.must(s.cluster.Create(t.Context(), kinds[i%2], s.name, name(4*(i/2)+i%2)))
	}
	for _, sink := range []string{"kafka", "kv"} {
		for ; ; await.Pause(t, lookEvery) {
			code, v, stderr := s.verify(s.exporter.Config(), sink, "--bodies")
			if code == 0 {
				break
			}
			if code != 4 {
				t.Fatalf("%s: exit code %d, %s\n%s", sink, code, v.reasons(), stderr)
			}
		}
		s.mustVerify(s.exporter.Config(), sink, "--bodies")
	}
	load.Stop()
	if r := slices.Concat(s.readTopic(s.name + ".configmaps")...); !slices.ContainsFunc(r, func(r rawRecord) bool { return bytes.Equal(r.key, theirs.key) }) ||
		slices.ContainsFunc(r, func(r rawRecord) bool { return bytes.Equal(r.key, theirs.key) && len(r.value) == 0 }) {
		t.Errorf("the row %s of another cluster is gone", theirs.key)
	}
	bucket, err := js.KeyValue(t.Context(), s.name)
	s.must(err)
	if _, err := bucket.Get(t.Context(), strings.TrimPrefix(theirValue.subject, "$KV."+s.name+".")); err != nil {
		t.Errorf("the value %s of another cluster is gone: %v", theirValue.subject, err)
	}
	deletes := 0
	for _, r := range slices.Concat(s.readTopic(s.name + ".configmaps")...) {
		if strings.Contains(string(r.key), "/load-1-") && len(r.value) == 0 {
			deletes++
		}
	}
	t.Logf("%d deletes in the topic, of %d rows of one kind that were orphans", deletes, orphanedObjects/2)
}

// lastRow returns the newest record of an object.
func lastRow(t *testing.T, records []rawRecord, name string) (last rawRecord) {
	t.Helper()
	for _, r := range records {
		if strings.HasSuffix(r.stored.Key, "/"+name) && len(r.value) > 0 {
			last = r
		}
	}
	if last.value == nil {
		t.Fatalf("there is no row of %s", name)
	}
	return last
}

// ofAnotherCluster returns a row as an exporter of another cluster writes it.
func ofAnotherCluster(r rawRecord) rawRecord {
	rename := func(text string) []byte {
		if text == "e2e" {
			return []byte("other")
		}
		if rest, ours := strings.CutPrefix(text, "e2e/"); ours {
			return []byte("other/" + rest)
		}
		return []byte(text)
	}
	r.key, r.subject = rename(string(r.key)), strings.Replace(r.subject, ".e2e.", ".other.", 1)
	r.headers = slices.Clone(r.headers)
	for i, h := range r.headers {
		r.headers[i] = kgo.RecordHeader{Key: h.Key, Value: rename(string(h.Value))}
	}
	return r
}
