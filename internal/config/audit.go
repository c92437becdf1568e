package config

import (
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/internal/attribution/audit/topic"
	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Audit configures the attribution of changes to users.
type Audit struct {
	// A listener for the audit webhooks of the API servers.
	Webhook audit.WebhookConfig `mapstructure:"webhook"`
	// Kafka topics of audit events.
	Kafka topic.Config `mapstructure:"kafka"`
	// Stamps of an admission policy, as a source of authors.
	Stamps Stamps `mapstructure:"stamps"`
	// How long to wait for the audit events of all API servers: longer than they buffer events, 30 s by default.
	Settle time.Duration `mapstructure:"settle"`
	// How long a change is kept to wait for its audit event, and an event for its change.
	Window time.Duration `mapstructure:"window"`
	// How often the API servers' counters of lost audit events are read, if that is allowed. 0: never.
	CountersEvery time.Duration `mapstructure:"countersEvery"`
	// Tolerance for a clock of an API server that is ahead of the exporter's. 0s: none.
	ClockSkew time.Duration `mapstructure:"clockSkew"`
	// Bound of the memory for waiting changes and events; at the bound the oldest are dropped, which is counted.
	MaxPending Bytes `mapstructure:"maxPending"`
}

// Stamps configures the authors that the admission policy of "exporter audit-policy --stamp" writes into objects.
type Stamps struct {
	// Name authors by stamps. Policy and binding have to be applied.
	Enabled bool `mapstructure:"enabled"`
	// How long policy and binding have to be unchanged before stamps count: more than the --request-timeout of the API
	// servers, 60 s.
	Grace time.Duration `mapstructure:"grace"`
}

// Enabled reports whether authors are named by any source.
func (a Audit) Enabled() bool { return a.HasEvents() || a.Stamps.Enabled }

// HasEvents reports whether a source of audit events is configured.
func (a Audit) HasEvents() bool {
	return a.Webhook.Listen != "" || a.Kafka.Enabled()
}

// minGrace is enough for API servers with a short --request-timeout only.
const minGrace = 5 * time.Second

// minPendingBytes is far below the need of a busy cluster.
const minPendingBytes Bytes = 1 << 20

func validateAudit(rep *reporter, a Audit) {
	validateAuditWebhook(rep, a)
	rep.addJoined("audit", "audit.kafka", a.Kafka.Validate())
	for i, broker := range a.Kafka.Brokers {
		if host, _, err := net.SplitHostPort(broker); err == nil && sinks.CheckHost(host) != nil {
			rep.addProblem(fmt.Sprintf("audit.kafka.brokers[%d]", i), Problem{Message: sinks.CheckHost(host).Error(), Expected: "host:port"})
		}
	}
	rep.refuseIf(a.Settle < 0, "audit.settle",
		Problem{Message: "must not be negative", Found: a.Settle.String(), Expected: expectDuration})
	rep.refuseIf(a.Stamps.Grace < minGrace, "audit.stamps.grace",
		Problem{Message: "too short: a write that was admitted without the policy may still be on its way",
			Found: a.Stamps.Grace.String(), Expected: "at least " + minGrace.String() + ", and more than the --request-timeout of the API servers"})
	if a.Stamps.Enabled && !a.HasEvents() {
		if a.Window < time.Second { // settle has no effect
			rep.addProblem("audit.window", Problem{Message: "too short", Found: a.Window.String(), Expected: "at least 1s"})
		}
	} else if a.Window <= a.Settle {
		rep.addProblem("audit.window", Problem{Message: "must be more than audit.settle", Found: a.Window.String(), Expected: "more than " + a.Settle.String()})
	}
	rep.refuseIf(a.CountersEvery != 0 && a.CountersEvery < time.Second, "audit.countersEvery",
		Problem{Message: "too often", Found: a.CountersEvery.String(), Expected: "0, or at least 1s"})
	rep.refuseIf(a.ClockSkew < 0, "audit.clockSkew",
		Problem{Message: "must not be negative", Found: a.ClockSkew.String(), Expected: expectDuration})
	rep.refuseIf(a.MaxPending < minPendingBytes, "audit.maxPending",
		Problem{Message: "too small", Found: a.MaxPending.String(), Expected: "at least " + minPendingBytes.String()})
}

func validateAuditWebhook(rep *reporter, a Audit) {
	w := a.Webhook
	given := w.Cert != "" || w.Key != "" || w.ClientCA != "" || len(w.Clients) > 0
	if w.Listen == "" {
		rep.refuseIf(given, "audit.webhook.listen",
			Problem{Message: "is empty, and without it the rest of audit.webhook has no effect",
				Expected: `host:port, such as ":9443"`})
		return
	}
	validateListen(rep, "audit.webhook.listen", w.Listen)
	for _, f := range a.credentialFiles() {
		rep.refuseIf(f.Path == "", f.Key,
			Problem{Message: "is empty: audit events are accepted over TLS and from known clients only", Expected: "the path of a PEM file"})
	}
	rep.refuseIf(len(w.Clients) == 0, "audit.webhook.clients", Problem{Message: "no client is allowed to send audit events",
		Expected: `the common names, or DNS names, in the API servers' client certificates, such as ["kube-apiserver"]`})
	for i, name := range w.Clients {
		rep.refuseIf(strings.TrimSpace(name) == "", fmt.Sprintf("audit.webhook.clients[%d]", i),
			Problem{Message: "is empty", Expected: "a name in a client certificate"})
	}
}

// credentialFiles returns the files that the intakes read certificates from.
func (a Audit) credentialFiles() []credentials.File {
	files := a.Kafka.TLS.Files("audit.kafka.tls")
	if w := a.Webhook; w.Listen != "" {
		files = append(files, credentials.File{Key: "audit.webhook.cert", Path: w.Cert}, credentials.File{Key: "audit.webhook.key", Path: w.Key},
			credentials.File{Key: "audit.webhook.clientCA", Path: w.ClientCA})
	}
	return files
}
