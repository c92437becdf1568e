package e2e

import (
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// TestAStateThatIsLostWithAllJournalsIsAGap takes the state and the journals of all exporters away.
func TestAStateThatIsLostWithAllJournalsIsAGap(t *testing.T) {
	require.Long(t)
	servers(t)
	kinds := []workload.Kind{workload.ConfigMaps, workload.Pods}
	forEachStateBus(t, kinds, func(p *replicas, b stateBus) {
		p.start()
		p.must(p.load(20, kinds).Wait())
		p.awaitSettled()
		for _, e := range p.all {
			p.must(e.Kill())
			p.removeVolume(e)
		}
		p.receiveAll()
		p.startWithoutMemory(func() {
			p.must(b.remove(p.t.Context()))
			p.deleteLease()
		})
	}, keepLease)
}
