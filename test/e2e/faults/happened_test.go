package faults

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/proxy"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/ports"
)

// happening is something that is over when it is noticed, or that slows down and stops nothing: no line of /readyz names it,
// an alert does.
type happening struct {
	name  string
	stage func(c *fixture)
	// alerts are as in fault.
	alerts []string
}

var happenings = []happening{
	{"the API server has forgotten the history", (*fixture).historyForgotten, one("HistoryLost configmaps")},
	{"a filter fails", (*fixture).filterFails, one("FilterErrors")},
	{"the exporter is killed again and again", (*fixture).killedOften, one("Restarting")},
	{"the stream is deleted with all that it had", (*fixture).streamDeleted, one("DestinationLostChanges nats")},
	{"an API server sends what is no audit event", (*fixture).auditMalformed, one("AuditEventsLost")},
	{"exporters take over from each other", (*fixture).takesTurns, one("RepeatedFailovers")},
	{"an object cannot be redacted", (*fixture).cannotRedact, []string{"ChangesWithheld", "DeadLetters file"}},
	{"a webhook is slow", (*fixture).webhookSlow, one("SinkLagging webhook")},
	{"the journal fills", (*fixture).journalFills, []string{"JournalFilling", "SinkDown webhook"}},
}

// historyForgotten answers watches that go on as every API server does after an absence that was too long, until the
// exporter lists.
func (c *fixture) historyForgotten() {
	g := c.behind()
	c.start()
	var listed atomic.Bool
	checkContinues := func(r proxy.Request) bool {
		if r.Resource != "configmaps" {
			return false
		}
		if !r.Watch() && r.Query.Get("limit") != "1" { // of one object only the version is asked for
			listed.Store(true)
		}
		return !listed.Load()
	}
	g.Fault(checkContinues, func(w http.ResponseWriter, _ *http.Request) {
		proxy.Status(w, http.StatusGone, "Expired", "too old resource version")
	})
	g.Cut()
}

// filterFails asks for what objects lack.
func (c *fixture) filterFails() {
	c.settings.Resources[0]["filter"] = `object.data.colour == "blue"`
	c.start()
	c.create(workload.ConfigMaps, "without-a-colour")
}

func (c *fixture) killedOften() {
	c.start()
	c.untilAlert("Restarting", func(int) {
		c.must(c.exporter.Kill())
		c.must(c.exporter.Start(c.t.Context()))
		c.await("Prometheus", func() string {
			began := valueOf(c.page("/metrics"), "process_start_time_seconds")
			if began == "" || len(c.prometheus.ask(c.t, `process_start_time_seconds{instance="`+c.exporter.Address()+`"} == `+began)) == 0 {
				return "no sample of the new process"
			}
			return ""
		})
	})
}

// cannotRedact shows the exporter an object that is nested more deeply than anything is read to find secrets in it, which no
// API server accepts.
func (c *fixture) cannotRedact() {
	const levels = 10_001
	placeholder, deep := []byte(`"deeper than an API server accepts"`), strings.Repeat("[", levels)+strings.Repeat("]", levels)
	object := workload.ConfigMaps
	object.Object = func() *unstructured.Unstructured {
		o := workload.ConfigMaps.Object()
		o.Object["data"] = mapping{"deep": string(placeholder[1 : len(placeholder)-1])}
		return o
	}
	g := c.behind()
	g.Fault(func(r proxy.Request) bool { return r.Resource == "configmaps" }, func(w http.ResponseWriter, r *http.Request) {
		g.Pass(&replacingResponse{w, placeholder, []byte(deep)}, r)
	})
	c.settings.Resources[0]["redact"], c.settings.Resources[0]["redactPaths"] = "mask", []string{"data.password"}
	c.start()
	c.create(object, "deep")
}

// replacingResponse is a response in which one text is replaced by another.
type replacingResponse struct {
	http.ResponseWriter
	from, to []byte
}

func (r *replacingResponse) WriteHeader(code int) {
	r.Header().Del("Content-Length")
	r.ResponseWriter.WriteHeader(code)
}

func (r *replacingResponse) Write(p []byte) (int, error) {
	_, err := r.ResponseWriter.Write(bytes.ReplaceAll(p, r.from, r.to))
	return len(p), err
}

// Unwrap lets a response controller flush.
func (r *replacingResponse) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// webhookSlow has a receiver that takes a second for each change, one after the other, and gets more than the test
// waits for.
func (c *fixture) webhookSlow() {
	const takes, changes = time.Second, 1000
	server := c.receiver(func(string) int {
		time.Sleep(takes)
		return http.StatusNoContent
	})
	server.Start()
	c.sink("webhook", mapping{"url": server.URL, "timeout": "1m", "lanes": 1}, cloudEvents)
	c.start()
	for i := range changes {
		c.create(workload.ConfigMaps, fmt.Sprintf("slow-%d", i))
	}
}

// valueOf is the value of a series without labels.
func valueOf(text, series string) string {
	_, rest, _ := strings.Cut(text, "\n"+series+" ")
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

func (c *fixture) streamDeleted() {
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

// auditMalformed has an API server, as the webhook knows it, that sends something else than audit events.
func (c *fixture) auditMalformed() {
	free, err := ports.Free(1)
	c.must(err)
	address := ports.Address(free[0])
	c.authority.IssueTo(c.t, c.settings.Dir)
	file := func(name string) string { return filepath.Join(c.settings.Dir, name) }
	c.settings.Audit = mapping{"settle": "1s", "window": "2s", "webhook": mapping{
		"listen": address, "cert": file("cert.pem"), "key": file("key.pem"), "clientCA": file("ca.pem"), "clients": []string{"api-server"},
	}}
	c.start()
	cert, key := c.authority.IssueFor(c.t, "api-server")
	pair, err := tls.X509KeyPair(cert, key)
	c.must(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.authority.PEM)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}}
	defer client.CloseIdleConnections()
	response, err := client.Post("https://"+address+"/", "application/json", strings.NewReader(`{"kind":"Event"}`))
	c.must(err)
	c.must(response.Body.Close())
	if response.StatusCode != http.StatusBadRequest {
		c.t.Fatalf("the webhook answers %s", response.Status)
	}
}

// journalFills has a sink that takes nothing, and a journal that has more than half of its bound to hold.
func (c *fixture) journalFills() {
	server := c.receiver(func(string) int { return http.StatusServiceUnavailable })
	server.Start()
	c.settings.Journal = mapping{"maxBytes": "16Mi"}
	c.sink("webhook", mapping{"url": server.URL}, cloudEvents)
	c.launch()
	for _, name := range strings.Fields("a b c d e f g h i j k l m n o p") {
		c.create(noise(500_000), "large-"+name)
	}
}
