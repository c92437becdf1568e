package nats

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Mirrors answer in place of a stream that allows direct access. This one holds the messages of one object only.
func TestATailIsCompleteThoughMirrorsAnswer(t *testing.T) {
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	cfg := testConfig(server.URL())
	older := startFencedPublisher(t, cfg, "one")
	const many = 60
	var want []string
	for version := 1; version <= many; version++ {
		c := newPod(fmt.Sprint("web-", version%3), version)
		mustPublish(t, older.sink, c)
		want = append(want, c.ID())
	}
	mirror, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "MIRROR", MirrorDirect: true,
		Mirror: &jetstream.StreamSource{Name: "K8S", FilterSubject: "k8s.c.core.pods.shop.web-1"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := waitUntil(func(ctx context.Context) bool {
		info, err := mirror.Info(ctx)
		return err == nil && info.State.Msgs == many/3
	}); err != nil {
		t.Fatal(err)
	}
	newer := startFencedPublisher(t, cfg, "two")
	for range 20 { // either may answer
		var got []string
		if _, err := newer.sink.ReadTail(t.Context(), map[sinks.Lane]sinks.Tail{singleLane: {From: 1}}, func(_ sinks.Lane, e sinks.Emitted) error { got = append(got, e.ID); return nil }); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d of %d: %q", len(got), len(want), got)
		}
	}
}

func TestTheTailsOfManyLanesAreReadAtOnce(t *testing.T) {
	const objects, lanes = 1000, 4096
	server := startServer(t, "")
	cfg := testConfig(server.URL())
	cfg.Lanes = lanes
	older := startFencedPublisher(t, cfg, "one")
	want, from := map[sinks.Lane][]string{}, map[sinks.Lane]sinks.Tail{"not one": {From: 1}}
	for i := range objects {
		c := newPod(fmt.Sprint("web-", i), 1)
		lane := older.sink.splitLaneOf(c)
		if n, err := older.sink.Publish(t.Context(), lane, []sinks.Message{{Offset: offsets.Add(1), Change: c}}); n != 1 {
			t.Fatal(err)
		}
		want[lane] = append(want[lane], c.ID())
		from[lane] = sinks.Tail{From: 1}
	}
	behind := newPod("behind", 1)
	begin := older.sink.LaneProgress()
	mustPublish(t, older.sink, behind) // in a batch, in the single lane
	end := sinks.LanePosition(0)
	for _, place := range begin {
		end = max(end, place)
	}
	from[singleLane] = sinks.Tail{From: end}
	want[singleLane] = []string{behind.ID()}
	lane := older.sink.splitLaneOf(behind)
	if _, known := from[lane]; known {
		want[lane] = append(want[lane], behind.ID())
	}
	newer := startFencedPublisher(t, cfg, "two")
	var requests atomic.Int64
	other := connectClient(t, server.URL()).Conn()
	if _, err := other.Subscribe("$JS.API.DIRECT.GET.>", func(*nats.Msg) { requests.Add(1) }); err != nil {
		t.Fatal(err)
	}
	if err := other.FlushTimeout(testTimeout); err != nil {
		t.Fatal(err)
	}
	got := map[sinks.Lane][]string{}
	if _, err := newer.sink.ReadTail(t.Context(), from, func(lane sinks.Lane, e sinks.Emitted) error {
		got[lane] = append(got[lane], e.ID)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%d lanes, want %d; of the single lane %v, want %v", len(got), len(want), got[singleLane], want[singleLane])
	}
	if n := requests.Load(); n > 5 {
		t.Errorf("%d requests", n)
	}
}
