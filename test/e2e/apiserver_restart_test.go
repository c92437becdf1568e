package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/proxy"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

const (
	restarts = 10
	cuts     = 40
)

// sizeFrom reads a number of changes from the environment.
func sizeFrom(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	n := sizeOf(t, variable, otherwise)
	if os.Getenv(variable) != "" && n < 1000 {
		t.Fatalf("%s is %d, want 1000 at least", variable, n)
	}
	return n
}

// sizeOf reads a number from the environment.
func sizeOf(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	given := os.Getenv(variable)
	if given == "" {
		return otherwise
	}
	n, err := strconv.Atoi(given)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q, want a number", variable, given)
	}
	return n
}

// TestAPIServerRestartsAndCutWatchesLoseNothing runs two API servers on one etcd behind a proxy. They are stopped and
// killed in turn while ConfigMaps are written, and all connections are cut at random moments: as long as one of the two
// knows the history, nothing may be lost, and nothing read again. An API server knows nothing from before its own start,
// so the next one is taken away only when something has arrived that was written after the last one came back.
func TestAPIServerRestartsAndCutWatchesLoseNothing(t *testing.T) {
	require.Long(t)
	kinds := []workload.Kind{workload.ConfigMaps}
	env := servers(t).withControlPlane(t, controlplane.Options{Second: true, NoAudit: true})
	apiServers := env.controlPlane.APIServers()
	between, kubeconfig := startProxy(t, env, account)
	_, forLoad := startProxy(t, env, "admin")
	cluster, err := workload.Connect(forLoad)
	if err != nil {
		t.Fatal(err)
	}
	env.cluster = cluster
	s := newRestrictedFixtureIn(t, env, kinds, func(settings *exporter.Settings) { settings.Kubeconfig = kubeconfig })
	s.must(s.exporter.Start(t.Context()))

	random := newRandom(t)
	changes := sizeFrom(t, "KUBECDC_E2E_CHANGES", 20_000)
	// Every second object is deleted, so that one of them is 12.5 writes.
	plan := workload.Plan{Objects: changes / restarts * 2 / 25, Updates: 11}
	for i := range restarts {
		load := s.run(plan, kinds)
		s.awaitSomeOf(fmt.Sprintf("load-%d-", s.loads))
		for range cuts / restarts {
			load.AwaitOperations(load.Operations() + random.IntN(plan.Operations()/2/cuts*restarts))
			between.Cut()
		}
		away := apiServers[i%2]
		if random.IntN(2) == 0 {
			s.must(away.Stop())
		} else {
			s.must(away.Kill())
		}
		between.Cut()
		s.must(away.Start(t.Context()))
		s.must(load.Wait())
	}
	s.awaitAll()
	s.awaitMetric(`kubecdc_resource_relists_total{resource="configmaps"}`, "0")
	t.Logf("%d writes, %d restarts, %d connections cut", restarts*plan.Operations(), restarts, between.Cuts())
	s.judge(oracle.Rules{})
}

// awaitSomeOf waits until a change of an object with the prefix has arrived.
func (s *fixture) awaitSomeOf(prefix string) {
	s.t.Helper()
	s.await(s.buses[0], func(records []bus.Record) string {
		for _, r := range slices.Backward(records) {
			if strings.HasPrefix(r.Name, prefix) {
				return ""
			}
		}
		return "the first of " + prefix
	})
}

// startProxy starts a proxy before all API servers and returns it with a user's kubeconfig through it.
func startProxy(t *testing.T, env *environment, user string) (*proxy.Proxy, string) {
	t.Helper()
	p := proxyFor(t, env.controlPlane.APIServers())
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	original, err := env.controlPlane.KubeconfigFor(user)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kubeconfig(original, kubeconfig); err != nil {
		t.Fatal(err)
	}
	return p, kubeconfig
}

// proxyFor starts a proxy before API servers.
func proxyFor(t *testing.T, apiServers []*controlplane.APIServer) *proxy.Proxy {
	t.Helper()
	var addresses []string
	for _, a := range apiServers {
		addresses = append(addresses, a.Address())
	}
	p, err := proxy.Start(addresses...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}
