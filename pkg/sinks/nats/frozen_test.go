package nats

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// TestAFrozenServerOfThreeDelaysNoTakeOver freezes a server that does not lead the stream. Exporters that are connected
// to it move to another one long before the library gives their connections up, which takes it half a minute. Each has
// picked its server by chance.
func TestAFrozenServerOfThreeDelaysNoTakeOver(t *testing.T) {
	t.Parallel()
	const within, exporters = 20 * time.Second, 12 // the library takes 20 to 30 seconds
	servers := startCluster(t, samePort)
	cfg, js := testConfig(servers.URL()), connectClient(t, servers.URL())
	cfg.Create.Replicas = 3
	published := 0
	publish := func(r *fencedPublisher) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		for {
			_, err := r.sink.Fence(ctx, r.claim, []sinks.Lane{singleLane})
			if err == nil {
				n, err := r.sink.Publish(ctx, singleLane, podVersions(published+1, published+10))
				published += n
				return err
			}
			if ctx.Err() != nil {
				return err
			}
		}
	}
	if err := publish(startFencedPublisher(t, cfg, "first")); err != nil {
		t.Fatal(err)
	}
	var all []*fencedPublisher
	for i := range exporters {
		all = append(all, startFencedPublisher(t, cfg, fmt.Sprint("exporter ", i)))
	}
	leader, err := leaderOf(js, servers, "K8S")
	if err != nil {
		t.Fatal(err)
	}
	frozen := servers[(slices.Index(servers, leader)+1)%len(servers)].Process()
	if err := frozen.Freeze(); err != nil {
		t.Fatal(err)
	}
	defer frozen.Resume() //nolint:errcheck // the test is over
	for i, r := range all {
		if err := publish(r); err != nil {
			t.Errorf("exporter %d: %v", i, err)
		}
	}
	if err := frozen.Resume(); err != nil {
		t.Fatal(err)
	}
	if last := mustBeContinuous(t, js, "K8S"); last != published || published < 10*exporters {
		t.Errorf("the stream ends with version %d, want %d", last, published)
	}
}
