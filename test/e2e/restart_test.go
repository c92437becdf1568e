package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/proxy"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
)

const (
	restarts = 10
	cuts     = 40
)

// longLoad writes ConfigMaps as often as KUBECDC_E2E_CHANGES says, else 20,000 times.
func longLoad(t *testing.T) workload.Plan {
	changes := sizeFrom(t, "KUBECDC_E2E_CHANGES", 20_000)
	return workload.Plan{Objects: changes * 2 / 25, Updates: 11} // and every second one is deleted
}

// sizeFrom reads a number from the environment.
func sizeFrom(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	given := os.Getenv(variable)
	if given == "" {
		return otherwise
	}
	n, err := strconv.Atoi(given)
	if err != nil || n < 1000 {
		t.Fatalf("%s is %q, want a number, 1000 at least", variable, given)
	}
	return n
}

// TestRestartsAndCutWatchesLoseNothing runs two API servers on one etcd behind a proxy. They are stopped and killed in turn
// while ConfigMaps are written, and all connections are cut at random moments: as long as one of the two knows the
// history, nothing may be lost, and nothing read anew.
func TestRestartsAndCutWatchesLoseNothing(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	env := servers(t).withControlPlane(t, controlplane.Options{Second: true, NoAudit: true})
	apiServers := env.controlPlane.APIServers()
	between, kubeconfig := startProxy(t, env)
	_, forLoad := startProxy(t, env)
	cluster, err := workload.Connect(forLoad)
	if err != nil {
		t.Fatal(err)
	}
	env.cluster = cluster
	s := newSceneIn(t, env, kinds, func(settings *exporter.Settings) { settings.Kubeconfig = kubeconfig })
	s.must(s.exporter.Start(t.Context()))

	random := dice(t)
	plan := longLoad(t)
	total := plan.Operations()
	var cutAt []int
	for range cuts {
		cutAt = append(cutAt, random.IntN(total*9/10))
	}
	slices.Sort(cutAt)
	load := s.run(plan, kinds)
	for i := range restarts {
		restartAt := total * (i + 1) / (restarts + 2)
		for len(cutAt) > 0 && cutAt[0] < restartAt {
			load.AwaitOperations(cutAt[0])
			between.Cut()
			cutAt = cutAt[1:]
		}
		load.AwaitOperations(restartAt)
		away := apiServers[i%2]
		if random.IntN(2) == 0 {
			s.must(away.Stop())
		} else {
			s.must(away.Kill())
		}
		between.Cut()
		s.must(away.Start(t.Context()))
	}
	for _, at := range cutAt {
		load.AwaitOperations(at)
		between.Cut()
	}
	s.must(load.Wait())
	s.awaitAll()
	s.awaitMetric(`kubecdc_resource_relists_total{resource="configmaps"}`, "0")
	t.Logf("%d writes, %d restarts, %d connections cut", load.Operations(), restarts, between.Cuts())
	s.judge(oracle.Rules{})
}

// TestAGapIsToldWhenNoAPIServerKnowsTheHistory kills both API servers at once while ConfigMaps are written. Neither knows
// what happened before its own start, so what was written and not yet read is lost to everyone but etcd: the stream says
// so, and what it tells is true.
func TestAGapIsToldWhenNoAPIServerKnowsTheHistory(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	env := servers(t).withControlPlane(t, controlplane.Options{Second: true, NoAudit: true})
	between, kubeconfig := startProxy(t, env)
	s := newSceneIn(t, env, kinds, func(settings *exporter.Settings) { settings.Kubeconfig = kubeconfig })
	s.must(s.exporter.Start(t.Context()))
	s.must(s.load(100, kinds).Wait())
	s.awaitAll()

	// What the exporter is kept from reading.
	between.Block()
	s.must(s.load(100, kinds).Wait())
	for _, a := range env.controlPlane.APIServers() {
		s.must(a.Kill())
	}
	for _, a := range env.controlPlane.APIServers() {
		s.must(a.Start(t.Context()))
	}
	between.Unblock()
	s.must(s.load(100, kinds).Wait())
	s.awaitAll()
	for _, b := range s.buses {
		gaps := slices.DeleteFunc(slices.Clone(b.records), func(r bus.Record) bool { return r.Type != "gap" })
		if len(gaps) != 1 || gaps[0].Resource != "configmaps" || gaps[0].Gap.Reason == "" {
			t.Errorf("%s: gaps %+v, want one of configmaps", b.Name(), gaps)
		}
	}
	s.judge(oracle.Rules{Gaps: true})
}

// startProxy starts a proxy before all API servers and returns it with the admin's kubeconfig through it.
func startProxy(t *testing.T, env *environment) (*proxy.Proxy, string) {
	t.Helper()
	p := proxyFor(t, env.controlPlane.APIServers())
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := p.Kubeconfig(env.controlPlane.Kubeconfig(), kubeconfig); err != nil {
		t.Fatal(err)
	}
	return p, kubeconfig
}
