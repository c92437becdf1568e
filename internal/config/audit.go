package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// minPendingBytes is below what a busy moment needs.
const minPendingBytes Bytes = 1 << 20

func (d *decoder) validateAudit(a Audit) {
	d.validateAuditWebhook(a)
	d.addJoined("audit", "audit.kafka", a.Kafka.Validate())
	for i, path := range a.Files {
		at := fmt.Sprintf("audit.files[%d]", i)
		switch {
		case strings.TrimSpace(path) == "":
			d.addProblem(at, Problem{Message: "is empty", Expected: "the path of an audit log file"})
		case slices.Contains(a.Files[:i], path):
			d.addProblem(at, Problem{Message: "is named already", Found: strconv.Quote(path), Expected: "every file once"})
		}
	}
	if a.Settle < 0 {
		d.addProblem("audit.settle", Problem{Message: "must not be negative", Found: a.Settle.String(), Expected: expectDuration})
	}
	if a.Window <= a.Settle {
		d.addProblem("audit.window", Problem{Message: "not more than audit.settle", Found: a.Window.String(), Expected: "more than " + a.Settle.String()})
	}
	if a.CountersEvery != 0 && a.CountersEvery < time.Second {
		d.addProblem("audit.countersEvery", Problem{Message: "too often", Found: a.CountersEvery.String(), Expected: "0, or at least 1s"})
	}
	if a.Wait < 0 || a.Wait > a.Window {
		d.addProblem("audit.wait", Problem{Message: "not between 0 and audit.window", Found: a.Wait.String(),
			Expected: "0, or at most " + a.Window.String()})
	}
	if a.ClockSkew < 0 {
		d.addProblem("audit.clockSkew", Problem{Message: "must not be negative", Found: a.ClockSkew.String(), Expected: expectDuration})
	}
	if a.MaxPending < minPendingBytes {
		d.addProblem("audit.maxPending", Problem{Message: "too small", Found: a.MaxPending.String(), Expected: "at least " + minPendingBytes.String()})
	}
}

func (d *decoder) validateAuditWebhook(a Audit) {
	w := a.Webhook
	given := w.Certificate != "" || w.Key != "" || w.ClientCA != "" || len(w.Clients) > 0
	switch {
	case w.Listen == "" && given:
		d.addProblem("audit.webhook.listen", Problem{Message: "is empty, and without it the rest of audit.webhook means nothing", Expected: `host:port, such as ":9443"`})
		return
	case w.Listen == "":
		return
	}
	d.validateListen("audit.webhook.listen", w.Listen)
	for _, f := range a.credentialFiles() {
		if f.Path == "" {
			d.addProblem(f.Key, Problem{Message: "is empty: audit events are taken over TLS, from known clients only", Expected: "the path of a PEM file"})
		}
	}
	if len(w.Clients) == 0 {
		d.addProblem("audit.webhook.clients", Problem{Message: "nobody may send audit events",
			Expected: `the common names, or DNS names, in the API servers' client certificates, such as ["kube-apiserver"]`})
	}
	for i, name := range w.Clients {
		if strings.TrimSpace(name) == "" {
			d.addProblem(fmt.Sprintf("audit.webhook.clients[%d]", i), Problem{Message: "is empty", Expected: "a name in a client certificate"})
		}
	}
}

// credentialFiles are those that the intakes read certificates and credentials from.
func (a Audit) credentialFiles() []sinks.File {
	var all []sinks.File
	if w := a.Webhook; w.Listen != "" {
		all = []sinks.File{
			{Key: "audit.webhook.certificate", Path: w.Certificate, PEM: true}, {Key: "audit.webhook.key", Path: w.Key, PEM: true},
			{Key: "audit.webhook.clientCA", Path: w.ClientCA, PEM: true},
		}
	}
	k := a.Kafka
	return append(all, sinks.NamedFiles(
		sinks.File{Key: "audit.kafka.tls.caFile", Path: k.TLS.CAFile, PEM: true},
		sinks.File{Key: "audit.kafka.tls.certFile", Path: k.TLS.CertFile, PEM: true},
		sinks.File{Key: "audit.kafka.tls.keyFile", Path: k.TLS.KeyFile, PEM: true},
		sinks.File{Key: "audit.kafka.sasl.passwordFile", Path: k.SASL.PasswordFile},
		sinks.File{Key: "audit.kafka.sasl.tokenFile", Path: k.SASL.TokenFile},
		sinks.File{Key: "audit.kafka.sasl.oauth.clientSecretFile", Path: k.SASL.OAuth.ClientSecretFile},
	)...)
}
