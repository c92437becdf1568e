package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/build"
)

// board is what the test reads of the dashboard.
type board struct {
	Templating struct {
		List []struct{ Name, Type, Query string }
	}
	Panels []struct {
		Title   string
		Targets []struct{ Expr string }
	}
}

func readBoard(t *testing.T) board {
	t.Helper()
	root, err := build.Root()
	must(t, err)
	text, err := os.ReadFile(filepath.Join(root, "deploy", "monitoring", "dashboard.json"))
	must(t, err)
	var b board
	must(t, json.Unmarshal(text, &b))
	return b
}

// TestEveryPanelOfTheDashboardHasData asks a real Prometheus, which scrapes an exporter under load, for what every panel
// shows, as Grafana does. So that there is something in each, a topic is missing, a type is not served, a filter fails and a
// route drops.
func TestEveryPanelOfTheDashboardHasData(t *testing.T) {
	c := surround(t).fixture(t)
	c.alone() // else panels show other exporters
	here := mapping{"include": []string{c.name}}
	c.settings.Resources = []mapping{
		{"select": []string{"configmaps"}, "namespaces": here, "filter": `object.data["step"] != ""`},
		{"select": []string{"secrets", "services"}, "namespaces": here, "before": "full"},
		{"select": []string{"gizmos.example.com"}},
	}
	c.settings.Routes = []mapping{{"select": []string{"services"}, "drop": true}, {"select": []string{"*"}, "to": []mapping{{"sink": "kafka"}, {"sink": "nats"}}}}
	c.topic("configmaps")
	c.sink("kafka", c.plainKafka(c.kafka, nil))
	c.sink("nats", c.toNATS(c.nats.URL(), createStream))
	c.audit()
	c.start()
	c.create(secrets, "waits")
	c.create(noStep, "fails")
	load := c.cluster.Start(t.Context(), workload.Plan{
		Namespace: c.name, Prefix: "load", Kinds: []workload.Kind{workload.ConfigMaps, workload.Services}, Clients: 4, Objects: 100_000, Updates: 3,
	})
	t.Cleanup(load.Stop)

	b := readBoard(t)
	for _, v := range b.Templating.List {
		if metric, is := strings.CutPrefix(v.Query, "label_values("); is {
			expr, label, _ := strings.Cut(strings.TrimSuffix(metric, ")"), ", ")
			c.awaitData(v.Name, fmt.Sprintf("count by (%s) (%s)", label, chosen.Replace(expr)))
		}
	}
	for _, p := range b.Panels {
		for _, q := range p.Targets {
			c.awaitData(p.Title, chosen.Replace(q.Expr))
		}
	}
}

// noStep is a kind of ConfigMaps that lack what a filter asks for.
var noStep = workload.Kind{Resource: workload.ConfigMaps.Resource, Object: noise(10).Object}

// chosen are the values of the dashboard's variables.
var chosen = strings.NewReplacer("$__rate_interval", "30s", "$__range", "1m", "$job", "kubecdc", "$instance", ".+")

// awaitData waits until an expression has a value, and one that is a number in every series.
func (c *fixture) awaitData(what, expr string) {
	c.t.Helper()
	c.await(what+": "+expr, func() string {
		series := c.prometheus.ask(c.t, expr)
		for _, s := range series {
			if strings.Contains(string(s), `"NaN"`) {
				return string(s)
			}
		}
		if len(series) == 0 {
			return "no data"
		}
		return ""
	})
}
