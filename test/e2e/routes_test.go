package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// routes: no bus gets Services, only NATS gets deleted Deployments, and ConfigMaps with names that end in 0 have a
// topic and subjects of their own.
func (s *fixture) routes() []map[string]any {
	return []map[string]any{
		{"select": []string{"services"}, "drop": true},
		{"select": []string{"deployments.apps"}, "types": []string{"deleted"}, "to": []map[string]any{
			{"sink": "nats", "topic": s.name + ".gone.{resource}.{name}"},
		}},
		{"select": []string{"configmaps"}, "filter": `object.metadata.name.endsWith("0")`, "to": []map[string]any{
			{"sink": "kafka", "topic": s.name + ".chosen"}, {"sink": "nats", "topic": s.name + ".chosen.{name}"},
		}},
	}
}

// selectedFor returns the part of the history that each bus has to receive.
func selectedFor(b *received) func(oracle.Revision) bool {
	return func(r oracle.Revision) bool {
		return r.Object.Resource != "services" && (b.Name() == "nats" || r.Object.Resource != "deployments" || r.Op != oracle.Deleted)
	}
}

// destinationOf is the topic, or the first tokens of the subject, where a record belongs.
func (s *fixture) destinationOf(b *received, r bus.Record) string {
	if r.Resource == "configmaps" && strings.HasSuffix(r.Name, "0") {
		return s.name + ".chosen"
	}
	switch {
	case b.Name() == "kafka":
		return s.name + "." + r.Resource
	case r.Resource == "deployments" && r.Type == "deleted":
		return s.name + ".gone.deployments"
	case r.Group == "":
		return s.name + ".core." + r.Resource
	}
	return s.name + "." + r.Group + "." + r.Resource
}

func TestRoutesSendAndDropThroughRestarts(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Services, workload.Deployments}
	s := newFixture(t, kinds, func(settings *exporter.Settings) {
		settings.Routes = (&fixture{name: settings.Stream}).routes()
	})
	s.must(s.exporter.Start(t.Context()))
	plan := workload.Plan{Objects: 300, Updates: 3}
	load := s.run(plan, kinds)
	for i := range 3 {
		load.AwaitOperations(plan.Operations() * (i + 1) / 4)
		s.must(s.exporter.Kill())
		s.must(s.exporter.Launch(t.Context()))
	}
	s.must(load.Wait())
	s.awaitRouted()

	// Nothing but what is dropped: the cursors get to the end with nothing to acknowledge, and stay there.
	s.must(s.exporter.Stop())
	s.must(s.exporter.Start(t.Context()))
	dropped := workload.Plan{Objects: 40, Updates: 3}
	s.must(s.run(dropped, []workload.Kind{workload.Services}).Wait())
	s.awaitDropped("services", dropped.Operations())
	for _, sink := range []string{"kafka", "nats"} {
		s.awaitMetric(fmt.Sprintf("kubecdc_sink_backlog_changes{sink=%q}", sink), "0")
	}
	s.must(s.exporter.Kill())
	s.must(s.exporter.Start(t.Context()))
	for _, sink := range []string{"kafka", "nats"} {
		s.awaitMetric(fmt.Sprintf("kubecdc_sink_backlog_changes{sink=%q}", sink), "0")
	}
	s.must(s.load(30, kinds).Wait()) // what comes behind the dropped is not skipped
	s.awaitRouted()
	s.must(s.exporter.Stop())
	s.receiveAll()
	for _, b := range s.buses {
		s.judgeRouted(b)
	}
	s.buses[0].checkNothingIsThereTwice(t) // the next process reads Kafka's content, on routed topics too
}

// awaitDropped waits until the first route has kept every change of a resource from both sinks, there were so many, and the
// status page has their number. They may be more: those of an earlier load that the test did not wait for.
func (s *fixture) awaitDropped(resource string, least int) {
	s.t.Helper()
	s.await(s.buses[0], func([]bus.Record) string {
		_, text, err := s.exporter.Get(s.t.Context(), "/metrics")
		s.must(err)
		_, page, err := s.exporter.Get(s.t.Context(), "/")
		s.must(err)
		n := 0
		for _, ofOneType := range series(text, fmt.Sprintf("kubecdc_resource_changes_total{resource=%q,", resource)) {
			n += ofOneType
		}
		dropped := series(text, `kubecdc_route_dropped_total{route="routes[0]",`)
		for _, got := range dropped {
			if got != n || n < least {
				return fmt.Sprintf("all of %d changes of %s to be dropped, at least %d: %v", n, resource, least, dropped)
			}
		}
		if len(dropped) != 2 {
			return fmt.Sprintf("two sinks to drop something: %v", dropped)
		}
		if said := fmt.Sprintf("%d kept from kafka", n); !strings.Contains(page, said) {
			return said
		}
		return ""
	})
}

// awaitRouted waits until both buses hold everything that is routed to them.
func (s *fixture) awaitRouted() {
	s.t.Helper()
	all := s.history()
	for _, b := range s.buses {
		h := all.Only(selectedFor(b))
		s.await(b, func(records []bus.Record) string {
			missing := h.Missing(records)
			if len(missing) == 0 {
				return ""
			}
			return fmt.Sprintf("%d of %d revisions, the first ones:\n%s", len(missing), len(h.Revisions), first(missing))
		})
	}
}

// judgeRouted compares a bus with the expected records, and every record's place with the expected place.
func (s *fixture) judgeRouted(b *received) {
	s.t.Helper()
	wrong := s.history().Only(selectedFor(b)).Judge(b.records, oracle.Rules{Repetitions: true})
	places := map[string]bool{}
	for _, r := range b.records {
		if want := s.destinationOf(b, r); !strings.HasPrefix(r.Place, want+"/") && !strings.HasPrefix(r.Place, want+".") || r.Resource == "services" {
			wrong = append(wrong, fmt.Sprintf("%v: record %s is at %s, and belongs at %s", r.Object, r.ID, r.Place, want))
		}
		places[s.destinationOf(b, r)] = true
	}
	if len(wrong) > 0 {
		s.t.Errorf("%s: %d points, the first ones:\n%s", b.Name(), len(wrong), first(wrong))
	}
	if len(places) < 3 {
		s.t.Errorf("%s: records at %v only", b.Name(), places)
	}
}
