package nats

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/logs"
)

// snapshotRecord returns the begin or end record of a snapshot of pods, in one namespace or in all.
func snapshotRecord(kind event.Type, id, namespace string) *event.Change {
	c := newPod("", 0)
	return &event.Change{Type: kind, Cluster: "c", Resource: c.Resource, Namespace: namespace, Snapshot: &event.SnapshotInfo{ID: id}}
}

// bucketKeys lists the keys of the bucket.
func bucketKeys(t *testing.T, url string) string {
	t.Helper()
	kv, err := connectClient(t, url).KeyValue(t.Context(), "objects")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := kv.Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys)
	return strings.Join(keys, " ")
}

func inNamespace(c *event.Change, namespace string) *event.Change {
	c.Namespace = namespace
	return c
}

func TestABucketIsRepairedAtTheEndOfASnapshot(t *testing.T) {
	server := startServer(t, "")
	cfg := bucketConfig(server.URL())
	cfg.Repair = true
	s := openSink(t, cfg, discardLog)
	node := newPod("n1", 1)
	node.Resource = event.Resource{Version: "v1", Resource: "nodes", Kind: "Node"}
	theirs, gone := newPod("ghost", 1), newPod("left", 2) // two clusters share the bucket
	theirs.Cluster, gone.Type, gone.After = "d", event.Deleted, nil
	left := newPod("left", 1)
	left.Cluster = "d"
	mustPublish(t, s, newPod("here", 1), newPod("ghost", 1), inNamespace(newPod("other", 1), "bank"), node, theirs, left, newPod("left", 1), gone)

	after := openSink(t, cfg, discardLog) // with a new journal
	here := newPod("here", 1)
	here.Type, here.Snapshot = event.Snapshot, &event.SnapshotInfo{ID: "7"}
	mustPublish(t, after, snapshotRecord(event.SnapshotBegin, "7", "shop"), here, newPod("new", 2), snapshotRecord(event.SnapshotEnd, "7", "shop"), newPod("newer", 3))
	if got, want := bucketKeys(t, server.URL()), "c.core.nodes.shop.n1 c.core.pods.bank.other c.core.pods.shop.here c.core.pods.shop.new c.core.pods.shop.newer d.core.pods.shop.ghost d.core.pods.shop.left"; got != want {
		t.Errorf("the bucket has %s\nwant %s", got, want)
	}
	mustPublish(t, after, snapshotRecord(event.SnapshotBegin, "8", ""), newPod("here", 4), snapshotRecord(event.SnapshotEnd, "8", ""))
	mustPublish(t, after, newPod("last", 5))
	if got, want := bucketKeys(t, server.URL()), "c.core.nodes.shop.n1 c.core.pods.shop.here c.core.pods.shop.last d.core.pods.shop.ghost d.core.pods.shop.left"; got != want {
		t.Errorf("the bucket has %s\nwant %s", got, want)
	}
	if !after.features.takesBatches() {
		t.Errorf("the repair was taken for another writer: %v", warningsOf(after))
	}
}

func TestABucketIsNotRepairedUnlessAskedFor(t *testing.T) {
	server := startServer(t, "")
	s := openSink(t, bucketConfig(server.URL()), discardLog)
	mustPublish(t, s, newPod("ghost", 1), snapshotRecord(event.SnapshotBegin, "7", ""), newPod("here", 1), snapshotRecord(event.SnapshotEnd, "7", ""))
	if got, want := bucketKeys(t, server.URL()), "c.core.pods.shop.ghost c.core.pods.shop.here"; got != want {
		t.Errorf("the bucket has %s, want %s", got, want)
	}
}

// The journal does not reach back to the beginning of the snapshot, so only its end is sent again.
func TestABucketRecreatedDuringASnapshotIsNotRepaired(t *testing.T) {
	server := startServer(t, "")
	cfg := bucketConfig(server.URL())
	cfg.Repair = true
	s := openSink(t, cfg, discardLog)
	mustPublish(t, s, newPod("a", 1), newPod("b", 1), newPod("c", 1), snapshotRecord(event.SnapshotBegin, "7", ""))
	if err := connectClient(t, server.URL()).DeleteKeyValue(t.Context(), "objects"); err != nil {
		t.Fatal(err)
	}
	if err := waitUntil(func(context.Context) bool {
		_, err := publishChanges(t, s, newPod("a", 2))
		return errors.As(err, new(*sinks.LostError))
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.RestoreState(s.State(0), offsets.Load(), nil); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, s, newPod("a", 2), newPod("b", 2), snapshotRecord(event.SnapshotEnd, "7", ""))
	if got, want := bucketKeys(t, server.URL()), "c.core.pods.shop.a c.core.pods.shop.b"; got != want {
		t.Errorf("the bucket has %q, want %s", got, want)
	}
}

func TestASnapshotThatBeganBeforeTheProcessRepairsNothing(t *testing.T) {
	server := startServer(t, "")
	cfg := bucketConfig(server.URL())
	cfg.Repair = true
	var lines logs.Buffer
	s := openSink(t, cfg, lines.Logger())
	mustPublish(t, s, newPod("ghost", 1), snapshotRecord(event.SnapshotEnd, "7", ""))
	if got := bucketKeys(t, server.URL()); got != "c.core.pods.shop.ghost" || !strings.Contains(lines.String(), "bucket not repaired") {
		t.Errorf("the bucket has %s; the log is\n%s", got, lines.String())
	}
}
