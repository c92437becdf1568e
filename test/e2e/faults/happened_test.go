package faults

import (
	"net/http"
	"os"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/proxy"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// happening is something that is over when it is noticed, or that slows down and stops nothing: no line of /readyz names it,
// an alert does.
type happening struct {
	name  string
	stage func(c *scene)
	// alerts are as in fault.
	alerts []string
}

var happenings = []happening{
	{"the API server has forgotten the history", (*scene).historyForgotten, one("HistoryLost configmaps")},
	{"a filter fails", (*scene).filterFails, one("FilterErrors")},
	{"the exporter is killed again and again", (*scene).killedOften, one("Restarting")},
	{"the stream is deleted with all that it had", (*scene).streamDeleted, one("DestinationLostChanges nats")},
	{"an audit log is cut short", (*scene).auditCutShort, one("AuditEventsLost")},
	{"exporters take over from each other", (*scene).takesTurns, one("RepeatedFailovers")},
	{"an object cannot be redacted", (*scene).cannotRedact, []string{"ChangesWithheld", "DeadLetters file"}},
	{"a call hangs", (*scene).callHangs, one("SinkLagging webhook")},
	{"the journal fills", (*scene).journalFills, []string{"JournalFilling", "SinkDown webhook"}},
}

// historyForgotten answers watches that go on as every API server does after an absence that was too long, until the
// exporter lists.
func (c *scene) historyForgotten() {
	g := c.behind()
	c.start()
	var listed atomic.Bool
	goesOn := func(r proxy.Request) bool {
		if r.Resource != "configmaps" {
			return false
		}
		if !r.Watch() || r.Initial() && r.Query.Get("fieldSelector") == "" {
			listed.Store(true)
		}
		return !listed.Load()
	}
	g.Fault(goesOn, func(w http.ResponseWriter, _ *http.Request) {
		proxy.Status(w, http.StatusGone, "Expired", "too old resource version")
	})
	g.Cut()
}

// filterFails asks for what objects lack.
func (c *scene) filterFails() {
	c.settings.Resources[0]["filter"] = `object.data.colour == "blue"`
	c.start()
	c.create(workload.ConfigMaps, "without-a-colour")
}

func (c *scene) killedOften() {
	c.start()
	c.untilAlert("Restarting", func(int) {
		c.must(c.exporter.Kill())
		c.must(c.exporter.Start(c.t.Context()))
		c.await("Prometheus", func() string {
			began := valueOf(c.page("/metrics"), "process_start_time_seconds")
			if began == "" || len(c.prometheus.ask(c.t.Context(), `process_start_time_seconds{instance="`+c.exporter.Address()+`"} == `+began)) == 0 {
				return "no sample of the new process"
			}
			return ""
		})
	})
}

// cannotRedact creates an object that is nested more deeply than anything is read to find secrets in it.
func (c *scene) cannotRedact() {
	deep := workload.Kind{
		Resource: schema.GroupVersionResource{Group: "deep.example.com", Version: "v1", Resource: "trees"},
		Object: func() *unstructured.Unstructured {
			spec := mapping{}
			for range 1000 {
				spec = mapping{"in": spec}
			}
			return &unstructured.Unstructured{Object: mapping{"apiVersion": "deep.example.com/v1", "kind": "Tree", "spec": spec}}
		},
	}
	c.must(c.cluster.Define(c.t.Context(), deep.Resource.Group, deep.Resource.Resource, "Tree"))
	c.watch("trees.deep.example.com")
	c.settings.Resources[0]["redact"], c.settings.Resources[0]["redactPaths"] = "mask", []string{"spec.password"}
	c.start()
	c.create(deep, "a-thousand-high")
}

// callHangs has a receiver that takes what it is sent and does not answer for minutes.
func (c *scene) callHangs() {
	answers := make(chan struct{})
	server := c.receiver(func(string) int {
		<-answers
		return http.StatusNoContent
	})
	c.t.Cleanup(func() { close(answers) })
	server.Start()
	c.sink("webhook", mapping{"url": server.URL, "timeout": "10m"}, cloudEvents)
	c.start()
	c.create(workload.ConfigMaps, "waits")
}

// valueOf is the value of a series without labels.
func valueOf(text, series string) string {
	_, rest, _ := strings.Cut(text, "\n"+series+" ")
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

func (c *scene) streamDeleted() {
	c.sink("nats", c.toNATS(c.nats.URL(), createStream))
	c.start()
	c.create(workload.ConfigMaps, "accepted")
	c.await("delivery", func() string {
		if text := c.page("/metrics"); !strings.Contains(text, `kubecdc_sink_backlog_changes{sink="nats"} 0`) {
			return text
		}
		return ""
	})
	js, hangUp, err := bus.Operate(c.nats.URL())
	c.must(err)
	defer hangUp()
	c.must(js.DeleteStream(c.t.Context(), c.name))
	c.create(workload.ConfigMaps, "next")
}

func (c *scene) auditCutShort() {
	const line = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"a","stage":"ResponseComplete","verb":"get"}` + "\n"
	log := c.write("audit.log", line)
	c.settings.Audit = mapping{"files": []string{log}, "settle": "1s", "window": "2s"}
	c.start()
	f, err := os.OpenFile(log, os.O_APPEND|os.O_WRONLY, 0)
	c.must(err)
	defer f.Close()
	c.await("the audit log is read", func() string { // from where it ended when that began
		_, err := f.WriteString(line)
		c.must(err)
		if n := valueOf(c.page("/metrics"), "kubecdc_audit_events_total"); n == "" || n == "0" {
			return n
		}
		return ""
	})
	c.must(f.Truncate(0))
}

// journalFills has a sink that takes nothing, and a journal that has more than half of its bound to hold.
func (c *scene) journalFills() {
	server := c.receiver(func(string) int { return http.StatusServiceUnavailable })
	server.Start()
	c.settings.Journal = mapping{"maxBytes": "16Mi"}
	c.sink("webhook", mapping{"url": server.URL}, cloudEvents)
	c.launch()
	for _, name := range strings.Fields("a b c d e f g h i j k l m n o p") {
		c.create(noise(500_000), "large-"+name)
	}
}
