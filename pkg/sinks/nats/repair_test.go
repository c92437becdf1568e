package nats

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// control makes a record of a snapshot of pods, of one namespace or of all.
func control(kind event.Type, id, namespace string) *event.Change {
	c := pod("", 0)
	return &event.Change{Type: kind, Cluster: "c", Resource: c.Resource, Namespace: namespace, Snapshot: &event.SnapshotInfo{ID: id}}
}

// remembered lists the keys of the bucket.
func remembered(t *testing.T, url string) string {
	t.Helper()
	kv, err := client(t, url).KeyValue(t.Context(), "objects")
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

func elsewhere(c *event.Change, namespace string) *event.Change {
	c.Namespace = namespace
	return c
}

func TestABucketIsRepairedAtTheEndOfASnapshot(t *testing.T) {
	server := serve(t, "")
	cfg := bucket(server.URL())
	cfg.Repair = true
	s := opened(t, cfg, quiet)
	node := pod("n1", 1)
	node.Resource = event.Resource{Version: "v1", Resource: "nodes", Kind: "Node"}
	accepted(t, s, pod("here", 1), pod("ghost", 1), elsewhere(pod("other", 1), "bank"), node)

	after := opened(t, cfg, quiet) // its journal was lost
	here := pod("here", 1)
	here.Type, here.Snapshot = event.Snapshot, &event.SnapshotInfo{ID: "7"}
	accepted(t, after, control(event.SnapshotBegin, "7", "shop"), here, pod("new", 2), control(event.SnapshotEnd, "7", "shop"), pod("newer", 3))
	if got, want := remembered(t, server.URL()), "core.nodes.shop.n1 core.pods.bank.other core.pods.shop.here core.pods.shop.new core.pods.shop.newer"; got != want {
		t.Errorf("the bucket has %s\nwant %s", got, want)
	}
	accepted(t, after, control(event.SnapshotBegin, "8", ""), pod("here", 4), control(event.SnapshotEnd, "8", ""))
	accepted(t, after, pod("last", 5))
	if got, want := remembered(t, server.URL()), "core.nodes.shop.n1 core.pods.shop.here core.pods.shop.last"; got != want {
		t.Errorf("the bucket has %s\nwant %s", got, want)
	}
	if !after.ordered.possible.Load() {
		t.Errorf("the repair was taken for another writer: %v", after.Cautions())
	}
}

func TestABucketIsNotRepairedUnlessAskedFor(t *testing.T) {
	server := serve(t, "")
	s := opened(t, bucket(server.URL()), quiet)
	accepted(t, s, pod("ghost", 1), control(event.SnapshotBegin, "7", ""), pod("here", 1), control(event.SnapshotEnd, "7", ""))
	if got, want := remembered(t, server.URL()), "core.pods.shop.ghost core.pods.shop.here"; got != want {
		t.Errorf("the bucket has %s, want %s", got, want)
	}
}

// The journal does not reach back to where the snapshot began, so that only its end comes again.
func TestABucketThatIsMadeAnewDuringASnapshotIsNotRepaired(t *testing.T) {
	server := serve(t, "")
	cfg := bucket(server.URL())
	cfg.Repair = true
	s := opened(t, cfg, quiet)
	accepted(t, s, pod("a", 1), pod("b", 1), pod("c", 1), control(event.SnapshotBegin, "7", ""))
	if err := client(t, server.URL()).DeleteKeyValue(t.Context(), "objects"); err != nil {
		t.Fatal(err)
	}
	if err := until(func(context.Context) bool {
		_, err := deliver(t, s, pod("a", 2))
		return errors.As(err, new(*sinks.LostError))
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Restore(s.State(0), offsets.Load(), nil); err != nil {
		t.Fatal(err)
	}
	accepted(t, s, pod("a", 2), pod("b", 2), control(event.SnapshotEnd, "7", ""))
	if got, want := remembered(t, server.URL()), "core.pods.shop.a core.pods.shop.b"; got != want {
		t.Errorf("the bucket has %q, want %s", got, want)
	}
}

func TestASnapshotThatBeganBeforeTheProcessRepairsNothing(t *testing.T) {
	server := serve(t, "")
	cfg := bucket(server.URL())
	cfg.Repair = true
	var lines transcript
	s := opened(t, cfg, lines.logger())
	accepted(t, s, pod("ghost", 1), control(event.SnapshotEnd, "7", ""))
	if got := remembered(t, server.URL()); got != "core.pods.shop.ghost" || !strings.Contains(lines.String(), "a bucket is not repaired") {
		t.Errorf("the bucket has %s; the log is\n%s", got, lines.String())
	}
}
