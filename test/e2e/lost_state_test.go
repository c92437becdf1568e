package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// TestAStateThatIsLostWithAllJournalsIsAGap takes the state and the journals of all exporters away.
func TestAStateThatIsLostWithAllJournalsIsAGap(t *testing.T) {
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

// TestAStateThatIsLostWithItsOwnerIsAGap deletes the state and kills its owner before that can write it again. The standby
// that followed the state, and the one that restarts in between, start with a gap of each resource on each bus, and nothing
// is missing outside of that.
func TestAStateThatIsLostWithItsOwnerIsAGap(t *testing.T) {
	servers(t)
	kinds := []workload.Kind{workload.ConfigMaps, workload.Pods}
	for name, restart := range map[string]bool{"the standby follows": false, "the standby restarts": true} {
		t.Run(name, func(t *testing.T) {
			forEachStateBus(t, kinds, func(p *replicas, b stateBus) {
				p.start()
				p.must(p.load(50, kinds).Wait())
				owner := p.awaitSettled()
				standby := p.other(owner)
				p.awaitAnswerOf(standby, "/metrics", "\nkubecdc_ready 1\n")

				p.must(owner.Pause())
				p.must(b.remove(p.t.Context()))
				if restart {
					p.must(standby.Kill())
				}
				p.must(p.load(100, kinds).Wait())
				p.kill(owner)
				p.down[owner] = true
				p.deleteLease()
				if restart {
					p.must(standby.Launch(p.t.Context()))
				}
				p.active()
				for _, received := range p.buses {
					p.await(received, func(records []bus.Record) string {
						gaps := slices.DeleteFunc(slices.Clone(records), func(r bus.Record) bool {
							return r.Type != "gap" || !strings.Contains(r.Gap.Reason, "the replicated state was lost")
						})
						if len(gaps) == len(kinds) {
							return ""
						}
						return fmt.Sprintf("%d gaps, there are %d", len(kinds), len(gaps))
					})
				}
				p.must(p.load(50, kinds).Wait())
				p.awaitAll()
				p.must(standby.Stop())
				p.receiveAll()
				for _, received := range p.buses {
					others := slices.DeleteFunc(slices.Clone(received.records), func(r bus.Record) bool { return r.Type == "gap" })
					if missing := p.history().Missing(received.records); len(missing) > 0 {
						p.t.Errorf("%s: outside of the gaps is missing:\n%s", received.Name(), first(missing))
					}
					if len(received.records)-len(others) != len(kinds) || len(p.history().Missing(others)) == 0 {
						p.t.Errorf("%s: gaps for nothing: %s", received.Name(), received.count())
					}
				}
			}, keepLease)
		})
	}
}
