package faults

import (
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

var leases = workload.Kind{Resource: schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}}

// replicated is an exporter with its state in a stream of a server, which competes for a Lease, which it keeps although a
// busy machine lets it stand still for seconds.
func (c *fixture) replicated(url, lease, identity string) {
	c.settings.Sinks = nil
	c.sink("nats", c.toNATS(url, createStream))
	c.settings.State = mapping{"sink": "nats", "name": c.name + "-state"}
	c.settings.Election = mapping{"lease": c.name + "/" + lease, "duration": "15s", "identity": identity}
}

// neighbour starts a further exporter with the settings of the fixture as they are now, and a directory of its own.
func (c *fixture) neighbour() *exporter.Exporter {
	c.t.Helper()
	settings := c.settings
	settings.Dir = c.t.TempDir()
	e, err := exporter.New(c.program, settings)
	c.must(err)
	c.t.Cleanup(func() { check(c.t, e.Kill()) })
	c.must(e.Start(c.t.Context()))
	c.prometheus.watch(c.t, e.Address())
	return e
}

// awaitActive waits until an exporter works.
func (c *fixture) awaitActive(e *exporter.Exporter) {
	c.t.Helper()
	c.await("who works", func() string { return c.works(e) })
}

// works returns why an exporter is not active; "" if it is.
func (c *fixture) works(e *exporter.Exporter) string {
	_, text, err := get(c.t.Context(), e.Address(), "/metrics")
	if err != nil {
		return err.Error()
	}
	if !strings.Contains(text, "\nkubecdc_active 1\n") {
		return "it does not"
	}
	return ""
}

func (c *fixture) stateAway() func() {
	c.alone()
	n := c.ownNATS("")
	c.replicated(n.URL(), "exporter", "one")
	c.must(n.Kill())
	c.launch()
	return func() { c.must(n.Restart(c.t.Context())) }
}

// leaseForbidden has an account that may read what is watched, and no Lease.
func (c *fixture) leaseForbidden() func() {
	c.alone()
	c.must(c.cluster.Allow(c.t.Context(), c.name, "reader", workload.ConfigMaps))
	var err error
	c.settings.Kubeconfig, err = c.controlPlane.KubeconfigFor("reader")
	c.must(err)
	c.replicated(c.nats.URL(), "exporter", "one")
	c.launch()
	return nil
}

// stateShared has an exporter that was given the state of another deployment, which works.
func (c *fixture) stateShared() func() {
	c.replicated(c.nats.URL(), "exporter", "one")
	c.awaitActive(c.neighbour())
	c.replicated(c.nats.URL(), "another", "two")
	c.launch()
	return nil
}

// streamTakesNoBatches has a stream that cannot refuse what a replaced exporter sends, until it is edited.
func (c *fixture) streamTakesNoBatches() func() {
	c.replicated(c.nats.URL(), "exporter", "one")
	stream := jetstream.StreamConfig{Subjects: []string{"kubecdc.fence." + c.name + ".>"}}
	c.stream(stream)
	c.launch()
	return func() {
		stream.AllowBatchPublish = true
		c.stream(stream)
	}
}

// takesTurns moves the Lease from one exporter to the other repeatedly.
func (c *fixture) takesTurns() {
	c.alone()
	c.replicated(c.nats.URL(), "exporter", "exporter-0")
	c.start()
	c.replicated(c.nats.URL(), "exporter", "exporter-1")
	both := []*exporter.Exporter{c.exporter, c.neighbour()}
	take := func(turn int) {
		next := (turn + 1) % 2
		c.await("a turn", func() string { // an exporter that renews the Lease too slowly loses it again
			c.must(c.cluster.Patch(c.t.Context(), leases, c.name, "exporter", fmt.Sprintf(`{"spec":{"holderIdentity":"exporter-%d"}}`, next)))
			if c.works(both[1-next]) == "" { // and would not notice that it is asked to go on
				return "the other one works, too"
			}
			return c.works(both[next])
		})
	}
	c.untilAlert("RepeatedFailovers", take)
	for turn := range 10 { // Prometheus extrapolates from its first samples: an alert that comes by that is gone again
		take(turn)
	}
}
