package source

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/proxy"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// TestInterruptedFirstListLosesNothing interrupts first lists in the middle, by SIGKILL, by a stop and by cut connections,
// while the objects change. The records are compared with etcd's history.
func TestInterruptedFirstListLosesNothing(t *testing.T) {
	require.Long(t)
	seed := randomSeed(t)
	for n := range numberFromEnv(t, "KUBECDC_E2E_LISTS", 3) {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			interruptFirstList(t, rand.New(rand.NewPCG(seed, uint64(n))))
		})
	}
}

func interruptFirstList(t *testing.T, rnd *rand.Rand) {
	const objects, bytes, interruptions = 120, 4 << 10, 3
	s, gateway := newFixtureBehindGateway(t, sharedControlPlane(t), nil)
	s.setRules(s.namespacedRule("configmaps"))
	stopped, rations := make(chan struct{}, 100), make(chan int, 100)
	for range cap(rations) {
		rations <- rnd.IntN(objects * bytes / 2) // no list completes
	}
	listing := func(r proxy.Request) bool { return r.Resource == "configmaps" && !r.Watch() }
	heal := gateway.Fault(listing, func(w http.ResponseWriter, r *http.Request) {
		gateway.Pass(&limitedResponse{ResponseWriter: w, left: <-rations, until: r.Context().Done(), onStop: func() { stopped <- struct{}{} }}, r)
	})
	begin, err := s.etcd.Revision(t.Context())
	s.requireNoError(err)
	s.createMany(objects, bytes)
	ctx, enough := context.WithCancel(t.Context())
	written := make(chan error, 1)
	go func() { written <- s.writeRandomly(ctx, rand.New(rand.NewPCG(rnd.Uint64(), 0)), objects, bytes) }()

	s.requireNoError(s.exporter.Launch(t.Context()))
	for range interruptions {
		select {
		case <-stopped:
		case <-time.After(arriveTimeout):
			t.Fatalf("no list has started within %v", arriveTimeout)
		}
		switch rnd.IntN(3) {
		case 0:
			gateway.Cut()
		case 1:
			s.killExporter()
			s.requireNoError(s.exporter.Launch(t.Context()))
		case 2:
			s.awaitPage("/livez", http.StatusOK, "") // it may have been launched a moment ago, and not handle signals yet
			s.stopExporter()
			s.requireNoError(s.exporter.Launch(t.Context()))
		}
	}
	heal()
	gateway.Cut()
	enough()
	s.requireNoError(<-written)
	s.awaitPage("/readyz", http.StatusOK)
	s.createMarker(workload.ConfigMaps, s.name)
	s.stopExporter()

	end, err := s.etcd.Revision(t.Context())
	s.requireNoError(err)
	ours := oracle.Resource{Resource: "configmaps", Prefix: "/registry/configmaps/", Namespace: s.name}
	history, err := s.etcd.History(t.Context(), []oracle.Resource{ours}, begin, end)
	s.requireNoError(err)
	for _, wrong := range history.Judge(s.records, oracle.Rules{Repetitions: true, Keyless: true}) {
		t.Error(wrong)
	}
}

// writeRandomly changes, deletes and recreates objects until ctx ends.
func (s *fixture) writeRandomly(ctx context.Context, rnd *rand.Rand, objects, bytes int) error {
	for step := 1; ctx.Err() == nil; step++ {
		i := rnd.IntN(objects)
		name := fmt.Sprintf("o-%04d", i)
		write := context.WithoutCancel(ctx) // not interrupted, so that each object exists for the next step
		if rnd.IntN(4) > 0 {
			if err := s.cluster.Change(write, workload.ConfigMaps, s.name, name, step); err != nil {
				return err
			}
			continue
		}
		if err := s.cluster.Delete(write, workload.ConfigMaps, s.name, name); err != nil {
			return err
		}
		if err := s.cluster.Create(write, incompressible(i, bytes), s.name, name); err != nil {
			return err
		}
	}
	return nil
}
