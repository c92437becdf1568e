package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/hostile"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

func bucketConfig(url string) Config {
	return Config{URL: url, Mode: modeKV, Bucket: "objects", Subject: "{cluster}.{group}.{resource}.{namespace}.{name}", AckTimeout: testTimeout,
		Create: Create{Enabled: true}}
}

// A bucket does not keep earlier values of its keys, so the suite reads the messages that the bucket republishes as it
// stores them.
func TestABucketKeepsTheContract(t *testing.T) {
	t.Parallel()
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	listener := newSubscriber(t, server, "seen.>")
	if _, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "objects",
		RePublish: &jetstream.RePublish{Source: ">", Destination: "seen.>"}}); err != nil {
		t.Fatal(err)
	}
	h := newHarness(server, server.URL())
	h.New = func(t testing.TB) sinks.Sink {
		cfg := bucketConfig(server.URL())
		cfg.AckTimeout = time.Second
		return newSink(t, cfg, discardLog)
	}
	h.StateOnly, h.OrderPerObject = true, true
	h.Value = func(c *event.Change) []byte {
		if c.Type == event.Deleted {
			return nil
		}
		return format.JSON.AppendValue(nil, c)
	}
	h.Read = listener.delivered
	sinktest.Run(t, h)
}

func TestABucketHoldsTheCurrentState(t *testing.T) {
	server := startServer(t, "")
	s := openSink(t, bucketConfig(server.URL()), discardLog)
	gone := newPod("old", 3)
	gone.Type, gone.After = event.Deleted, nil
	gap := &event.Change{Type: event.Gap, Cluster: "c", Resource: gone.Resource, Gap: &event.GapInfo{}}
	mustPublish(t, s, newPod("web.eu", 1), newPod("web.eu", 2))
	mustPublish(t, s, newPod("old", 1), gone)
	mustPublish(t, s, gap)
	kv, err := connectClient(t, server.URL()).KeyValue(t.Context(), "objects")
	if err != nil {
		t.Fatal(err)
	}
	entry, err := kv.Get(t.Context(), "c.core.pods.shop.web=2Eeu")
	if err != nil || string(entry.Value()) != string(format.JSON.AppendValue(nil, newPod("web.eu", 2))) {
		t.Errorf("the bucket holds %v, %v", entry, err)
	}
	if _, err := kv.Get(t.Context(), "c.core.pods.shop.old"); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("the key of a deleted object: %v", err)
	}
	history, err := kv.History(t.Context(), "c.core.pods.shop.old")
	if err != nil || len(history) != 1 || history[0].Operation() != jetstream.KeyValuePurge {
		t.Errorf("the deleted object left %v, %v", history, err)
	}
	if got := s.OmittedRecords(); got != 1 {
		t.Errorf("%d control records omitted, want 1", got)
	}
	keys, err := kv.Keys(t.Context())
	if err != nil || !slices.Equal(keys, []string{"c.core.pods.shop.web=2Eeu"}) {
		t.Errorf("keys %q, %v", keys, err)
	}
}

// TestABucketHoldsTheNewestWatermarkOfEachScope under a key that no object has, as a value that clients of buckets can read,
// whatever the format is; the marker of a deleted object names it in each.
func TestABucketHoldsTheNewestWatermarkOfEachScope(t *testing.T) {
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	for _, f := range format.All() {
		cfg := bucketConfig(server.URL())
		cfg.Bucket, cfg.Create.MaxBytes = f.String(), 1<<20 // a server reserves it
		s, err := New(cfg, f, discardLog)
		if err != nil {
			t.Fatal(err)
		}
		closeAtEnd(t, s)
		mark := func(namespace string, sequence uint64) *event.Change {
			return &event.Change{
				Type: event.Watermark, Cluster: "a.b", Resource: event.Resource{Group: "apps", Resource: "deployments"}, Namespace: namespace,
				ResourceVersion: fmt.Sprint(sequence), Watermark: &event.WatermarkInfo{Epoch: "E", Sequence: sequence, Lanes: 1},
			}
		}
		gone := newPod("old", 3)
		gone.Type, gone.After = event.Deleted, nil
		changes := []*event.Change{newPod("old", 1), newPod("web", 2), mark("", 1), gone, mark("shop", 2), mark("", 3)}
		mustPublish(t, s, changes...)
		kv, err := js.KeyValue(t.Context(), cfg.Bucket)
		if err != nil {
			t.Fatal(err)
		}
		keys, err := kv.Keys(t.Context())
		want := []string{"c.core.pods.shop.web", "kubecdc.watermark.a=2Eb/apps/deployments", "kubecdc.watermark.a=2Eb/apps/deployments/shop"}
		slices.Sort(keys)
		if err != nil || !slices.Equal(keys, want) {
			t.Fatalf("%v: keys %q, %v", f, keys, err)
		}
		entry, err := kv.Get(t.Context(), want[1])
		if err != nil {
			t.Fatal(err)
		}
		if got, ours := format.ReadStored(entry.Value(), func(string) string { return "" }); !ours || got.ID != changes[5].ID() {
			t.Errorf("%v: %s", f, entry.Value())
		}
		ids, lane := readStoredIDs(t, cfg, 0, 0)
		if !slices.Equal(ids, []string{changes[1].ID(), gone.ID(), changes[4].ID(), changes[5].ID()}) || !lane.Replaces || lane.Truncated {
			t.Errorf("%v: %q in %+v", f, ids, lane)
		}
	}
}

func TestAMarkerExpiresWhereTheBucketTakesThat(t *testing.T) {
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	for name, expires := range map[string]bool{"made": true, "found": false} {
		cfg := bucketConfig(server.URL())
		cfg.Bucket = name
		if !expires {
			if _, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: name}); err != nil {
				t.Fatal(err)
			}
		}
		gone := newPod("web", 1)
		gone.Type = event.Deleted
		mustPublish(t, openSink(t, cfg, discardLog), gone)
		last := readMessages(t, js, "KV_"+name)[0].Headers()
		if got := last.Get(nats.MsgTTLHdr) != ""; got != expires {
			t.Errorf("bucket %s: the marker has the headers %v", name, last)
		}
	}
}

func TestABucketWithAnotherWriterHoldsTheNewestValueAndReportsThatWriter(t *testing.T) {
	server := startServer(t, "")
	s := openSink(t, bucketConfig(server.URL()), discardLog)
	gone := newPod("web", 2)
	gone.Type = event.Deleted
	mustPublish(t, s, newPod("web", 1), gone, newPod("web", 3))
	kv, err := connectClient(t, server.URL()).KeyValue(t.Context(), "objects")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), "c.core.pods.shop.web", []byte("mine")); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, s, newPod("web", 4))
	entry, err := kv.Get(t.Context(), "c.core.pods.shop.web")
	if err != nil || string(entry.Value()) != string(format.JSON.AppendValue(nil, newPod("web", 4))) {
		t.Errorf("the bucket holds %v, %v", entry, err)
	}
	want := `another writer publishes to stream "KV_objects", for example to "$KV.objects.c.core.pods.shop.web"`
	if all := strings.Join(warningsOf(s), "\n"); !strings.Contains(all, want) {
		t.Errorf("reported: %q", all)
	}
}

// subscriber records the messages that an ordinary subscriber receives. It reconnects after the server was away.
type subscriber struct {
	nc       *nats.Conn
	mu       sync.Mutex
	received []sinktest.Delivered
}

func newSubscriber(t *testing.T, server *natsserver.Server, subject string) *subscriber {
	t.Helper()
	s, closed := &subscriber{}, make(chan struct{})
	nc, err := nats.Connect(server.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.Timeout(testTimeout),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		t.Fatal(err)
	}
	s.nc = nc
	t.Cleanup(func() { nc.Close(); <-closed })
	if _, err := nc.Subscribe(subject, func(m *nats.Msg) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.received = append(s.received, sinktest.Delivered{ID: changeIDOf(m.Header, m.Data), Value: m.Data, Topic: m.Subject})
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.FlushTimeout(testTimeout); err != nil {
		t.Fatal(err)
	}
	return s
}

// delivered returns the received messages after everything in flight has arrived.
func (s *subscriber) delivered(t testing.TB) []sinktest.Delivered {
	t.Helper()
	if err := s.nc.FlushTimeout(testTimeout); err != nil {
		t.Fatal(err)
	}
	arrived := make(chan struct{})
	if err := s.nc.Barrier(func() { close(arrived) }); err != nil {
		t.Fatal(err)
	}
	<-arrived
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.received)
}

// waitAccepted publishes a change until it is accepted.
func waitAccepted(t *testing.T, s *Sink, c *event.Change) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for {
		n, err := publishChanges(t, s, c)
		if n == 1 {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// TestABucketEqualsTheClustersAfterHostileRecords, in each format that it may have.
func TestABucketEqualsTheClustersAfterHostileRecords(t *testing.T) {
	server := startServer(t, "")
	for _, f := range []format.Format{format.JSON, format.Upsert} {
		cfg := bucketConfig(server.URL())
		cfg.Bucket = f.String()
		s, err := New(cfg, f, discardLog)
		if err != nil {
			t.Fatal(err)
		}
		closeAtEnd(t, s)
		stream := hostile.Make(2)
		for _, c := range stream.Changes {
			if f.CanRepresent(c) && !c.Type.IsBeside() {
				mustPublish(t, s, c)
			}
		}
		kv, err := connectClient(t, server.URL()).KeyValue(t.Context(), cfg.Bucket)
		if err != nil {
			t.Fatal(err)
		}
		keys, err := kv.Keys(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, key := range keys {
			entry, err := kv.Get(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			place, body := strings.Split(key, "."), entry.Value()
			if f == format.JSON {
				var change struct{ After json.RawMessage }
				if err := json.Unmarshal(body, &change); err != nil {
					t.Fatal(err)
				}
				body = change.After
			}
			row, err := hostile.Row(place[0], place[2], body)
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, row)
		}
		if slices.Sort(found); !slices.Equal(found, stream.Now) {
			t.Errorf("%s: the bucket has\n%q, the clusters\n%q", f, found, stream.Now)
		}
	}
}
