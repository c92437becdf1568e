package e2e

import (
	"slices"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// TestASinkOfOneReplicaGetsAGapForTheOthersTerm runs two replicas of which only the first has both sinks: what happens in
// the term of the second one lies inside a gap in the bus that it does not know, and the other bus gets everything and no
// gap.
func TestASinkOfOneReplicaGetsAGapForTheOthersTerm(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Pods}
	forEachStateBus(t, kinds, func(p *replicas, b stateBus) {
		one, two := p.all[0], p.all[1]
		p.must(two.Configure(func(s *exporter.Settings) {
			s.Sinks = slices.DeleteFunc(s.WholeSinks(), func(sink map[string]any) bool { return sink["name"] != b.name })
		}))
		p.start()
		p.must(p.load(50, kinds).Wait())
		p.awaitSettled()

		p.removeReplica(one)
		p.active()
		p.must(p.load(100, kinds).Wait())
		held := p.buses[slices.IndexFunc(p.buses, func(r *received) bool { return r != b.other })]
		p.awaitHistory(held)
		p.awaitCovered(two)

		p.must(one.Launch(p.t.Context()))
		p.down[one] = false
		p.awaitAnswerOf(one, "/metrics", "\nkubecdc_ready 1\n")
		p.removeReplica(two)
		p.active()
		p.must(p.load(50, kinds).Wait())
		p.awaitAll()
		p.must(one.Stop())
		p.receiveAll()
		if wrong := p.history().Judge(held.records, oracle.Rules{}); len(wrong) > 0 {
			p.t.Errorf("%s: %d points, the first ones:\n%s", held.Name(), len(wrong), first(wrong))
		}
		gaps := fewer(b.other.records, "gap", len(kinds))
		if h := p.history(); gaps != "" || len(h.Missing(b.other.records)) > 0 {
			p.t.Errorf("%s: %s; outside of gaps is missing:\n%s", b.other.Name(), gaps, first(h.Missing(b.other.records)))
		}
		all := len(b.other.records)
		if delivered := slices.DeleteFunc(slices.Clone(b.other.records), func(r bus.Record) bool { return r.Type == "gap" }); all-len(delivered) > len(kinds) ||
			len(p.history().Missing(delivered)) == 0 {
			p.t.Errorf("%s: %s", b.other.Name(), b.other.count())
		}
	}, keepLease)
}
