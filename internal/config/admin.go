package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/internal/attribution/audit/topic"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// validateAdmin checks the address of the admin server, and that no token crosses a network in cleartext by accident.
func validateAdmin(rep *reporter, a Admin) {
	validateListen(rep, "admin.listen", a.Listen)
	const at = "admin.signals.tokenFile"
	switch {
	case a.Signals.TokenFile == "":
	case a.Listen == "":
		rep.addProblem(at, Problem{Message: "has no effect without admin.listen", Found: strconv.Quote(a.Signals.TokenFile),
			Expected: "admin.listen, or no token"})
	case !a.Signals.AllowCleartextCredentials && !isLoopbackAddress(a.Listen):
		rep.addProblem(at, Problem{Message: "lets tokens cross the network in cleartext: the admin server has no TLS",
			Found: "admin.listen " + strconv.Quote(a.Listen), Expected: "an address of loopback, or " +
				"admin.signals.allowCleartextCredentials: true if the network is trusted, or clients come by kubectl port-forward or a proxy with TLS"})
	}
}

// isLoopbackAddress reports whether host:port is reached from this machine only.
func isLoopbackAddress(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "localhost" {
		return err == nil
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// validateTokenFile checks the file with the token of signals.
func validateTokenFile(rep *reporter, path string) {
	if path == "" {
		return
	}
	const at = "admin.signals.tokenFile"
	before := len(rep.problems)
	validateCredentialFile(rep, at, sinks.File{Path: path})
	if _, err := signals.ReadToken(path); err != nil && len(rep.problems) == before {
		rep.addProblem(at, Problem{Message: err.Error()})
	}
}

// minWatermarks bounds how often watermarks are written.
const minWatermarks = time.Second

// validateWatermarks checks how often a sink gets watermarks, and that its lanes are shared by all objects of a resource.
func validateWatermarks(rep *reporter, at string, s Sink, routes []Route) {
	switch {
	case s.Watermarks == 0:
		return
	case s.Watermarks < minWatermarks:
		rep.addProblem(at, Problem{Message: "too short, or negative", Found: s.Watermarks.String(), Expected: "at least 1s, or 0s for none"})
	case s.Kafka != nil:
		for _, topic := range append([]string{s.Kafka.Topic}, routedTopicTexts(s.Name, routes)...) {
			if name := objectPlaceholder(topic); name != "" {
				rep.addProblem(at, Problem{
					Message: fmt.Sprintf("a watermark is about a whole resource, and the topic %s depends on the object", strconv.Quote(topic)),
					Found:   s.Watermarks.String(), Expected: fmt.Sprintf("0s, or a topic without {%s}", name)})
				return
			}
		}
	}
}

func routedTopicTexts(sink string, routes []Route) (topics []string) {
	for _, r := range routes {
		for _, to := range r.To {
			if to.Sink == sink && to.Topic != "" {
				topics = append(topics, to.Topic)
			}
		}
	}
	return topics
}

// objectPlaceholder returns a placeholder of a topic that makes it depend on the object or the change; "" if there is none.
func objectPlaceholder(topic string) string {
	t, err := sinks.ParseTemplate(topic)
	if err != nil { // reported elsewhere
		return ""
	}
	for name := range strings.FieldsSeq("namespace name type") {
		if t.UsesPlaceholder(name) {
			return name
		}
	}
	return ""
}

const (
	minJournalBytes    Bytes = 16 << 20 // below it the files of the store itself take most of the space
	minDeadLetterBytes Bytes = 1 << 20
	minRetry                 = time.Millisecond
	maxRetry                 = 24 * time.Hour
	minSuspect               = time.Second
	minRate                  = 0.001   // changes per second: below it a change waits for more than a quarter of an hour
	maxRate                  = 1e9     // changes per second: each takes more than a nanosecond
	minWindowBytes     Bytes = 1 << 20 // the largest object that etcd stores is 1.5 MiB; a smaller window holds one at a time
)

func validateJournal(rep *reporter, j Journal) {
	if j.Dir == "" {
		rep.addProblem("journal.dir", Problem{Message: "is empty", Expected: "a directory"})
	}
	dir := resolvePath(j.Dir)
	if dir == "/" || isWithin(dir, "/proc") || isWithin(dir, "/sys") {
		rep.addProblem("journal.dir", Problem{Message: "no place for a journal, which needs a directory of its own", Found: strconv.Quote(j.Dir),
			Expected: `a directory such as "/var/lib/kubecdc"`})
	}
	checkMinBytes(rep, "journal.maxBytes", j.MaxBytes, minJournalBytes)
	checkMinBytes(rep, "journal.maxDeadLetters", j.MaxDeadLetters, minDeadLetterBytes)
	rep.checkOneOf("journal.sync", j.Sync, "always", "interval")
}

// warnJournalBounds warns of a bound that is never reached, because another one is lower.
func warnJournalBounds(rep *reporter, j Journal) {
	if rep.isSet("journal.maxDeadLetters") && j.MaxDeadLetters > j.MaxBytes/2 {
		rep.addWarning("journal.maxDeadLetters", Problem{Message: "more than half of journal.maxBytes, so half of it is the bound",
			Found: j.MaxDeadLetters.String(), Expected: "at most " + (j.MaxBytes / 2).String()})
	}
}

func validateDelivery(rep *reporter, c Delivery) {
	if c.Retry.Min < minRetry {
		rep.addProblem("delivery.retry.min", Problem{Message: "too short", Found: c.Retry.Min.String(), Expected: "at least " + minRetry.String()})
	}
	if c.Retry.Max > maxRetry {
		rep.addProblem("delivery.retry.max", Problem{Message: "too long: a destination that works again gets nothing meanwhile",
			Found: c.Retry.Max.String(), Expected: "at most " + maxRetry.String()})
	}
	if c.Retry.Max < c.Retry.Min {
		rep.addProblem("delivery.retry.max", Problem{Message: "less than delivery.retry.min", Found: c.Retry.Max.String(),
			Expected: "at least " + c.Retry.Min.String()})
	}
	if s := c.Rejections.Suspect; s != 0 && s < minSuspect {
		rep.addProblem("delivery.rejections.suspect", Problem{Message: "too short: a pause between two changes looks like an outage",
			Found: s.String(), Expected: "at least " + minSuspect.String() + ", or 0s for never"})
	}
	if c.Window != 0 && c.Window < minWindowBytes {
		rep.addProblem("delivery.window", Problem{Message: "too small", Found: c.Window.String(),
			Expected: "at least " + minWindowBytes.String() + ", or 0 for one by the number of lanes"})
	}
	if c.Rate.PerSecond < 0 {
		rep.addProblem("delivery.rate.perSecond", Problem{Message: "must not be negative", Found: fmt.Sprint(c.Rate.PerSecond),
			Expected: "changes per second; 0 for no bound"})
	}
	if c.Rate.PerSecond > 0 && c.Rate.PerSecond < minRate {
		rep.addProblem("delivery.rate.perSecond", Problem{Message: "nearly nothing is sent", Found: fmt.Sprint(c.Rate.PerSecond),
			Expected: fmt.Sprintf("at least %v changes per second; 0 for no bound", minRate)})
	}
	if c.Rate.PerSecond > maxRate {
		rep.addProblem("delivery.rate.perSecond", Problem{Message: "more than any exporter sends", Found: fmt.Sprint(c.Rate.PerSecond),
			Expected: fmt.Sprintf("at most %v changes per second; 0 for no bound", int(maxRate))})
	}
	if c.Rate.Burst < 0 {
		rep.addProblem("delivery.rate.burst", Problem{Message: "must not be negative", Found: strconv.Itoa(c.Rate.Burst),
			Expected: "a number of changes"})
	}
	if c.Rate.Burst > 0 && c.Rate.PerSecond == 0 {
		rep.addProblem("delivery.rate.burst", Problem{Message: "has no effect without delivery.rate.perSecond", Found: strconv.Itoa(c.Rate.Burst)})
	}
}

// warnRate warns of a rate of zero that is written out: it is no bound, and may be meant as a stop. A file that writes out
// the burst as well has every key with its default, as configs/reference.yaml has.
func warnRate(rep *reporter, r Rate) {
	if r.PerSecond == 0 && rep.isSet("delivery.rate.perSecond") && !rep.isSet("delivery.rate.burst") {
		rep.addWarning("delivery.rate.perSecond", Problem{Message: "0 is no bound: it stops nothing", Found: "0",
			Expected: "changes per second, or no delivery.rate at all"})
	}
}

func checkMinBytes(rep *reporter, path string, value, minimum Bytes) {
	if value < minimum {
		rep.addProblem(path, Problem{Message: "too small", Found: value.String(), Expected: "at least " + minimum.String()})
	}
}

// Audit configures the attribution of changes to users.
type Audit struct {
	// A listener for the audit webhooks of the API servers.
	Webhook audit.WebhookConfig `mapstructure:"webhook"`
	// Paths of audit log files, each of one API server. Rotation is followed.
	Files []string `mapstructure:"files"`
	// Envelope of the events in these files, as audit.kafka.envelope has it: auto, none, azure or cloudwatch.
	FileEnvelope audit.Envelope `mapstructure:"fileEnvelope"`
	// Kafka topics of audit events, as written by managed clouds and log shippers.
	Kafka topic.Config `mapstructure:"kafka"`
	// Stamps of an admission policy in the objects, as a source of authors besides audit events or without them.
	Stamps Stamps `mapstructure:"stamps"`
	// How long after a change to wait for the audit events of all API servers, before the only remaining candidate request
	// is accepted as the author. Longer than the API servers buffer events: 30 s by default.
	Settle time.Duration `mapstructure:"settle"`
	// How long a change is kept to wait for its audit event, and an event for its change.
	Window time.Duration `mapstructure:"window"`
	// How often the API servers' own counters of lost audit events are read from their /metrics, if the account is allowed
	// to: "exporter rbac" prints the rule. 0: never.
	CountersEvery time.Duration `mapstructure:"countersEvery"`
	// How long sinks hold a change back until its author is known, so that the attributed record follows at once. 0: not at
	// all. Later changes in the journal wait behind it; writing to the journal is not delayed.
	Wait time.Duration `mapstructure:"wait"`
	// Emit guesses where the author is not certain: the only identity that accessed the object when it changed, according to
	// the audit log, in a separate member, "likely". A guess can be wrong.
	Likely bool `mapstructure:"likely"`
	// Tolerance for a clock of an API server that is ahead of the exporter's. 0s: none.
	ClockSkew time.Duration `mapstructure:"clockSkew"`
	// Bound of the memory for waiting changes and events; at the bound the oldest are dropped, which is counted.
	MaxPending Bytes `mapstructure:"maxPending"`
}

// Stamps configures the authors that the admission policy of "exporter audit-policy --stamp" writes into objects.
type Stamps struct {
	// Name authors by stamps. The policy and its binding have to be applied: without them no author is named.
	Enabled bool `mapstructure:"enabled"`
	// How long the policy and its binding have to stay as they are before stamps count. More than the --request-timeout of
	// the API servers (60 s by default) and the time until all of them have noticed a new policy.
	Grace time.Duration `mapstructure:"grace"`
}

// Enabled reports whether authors are named by any source.
func (a Audit) Enabled() bool { return a.HasEvents() || a.Stamps.Enabled }

// HasEvents reports whether a source of audit events is configured.
func (a Audit) HasEvents() bool {
	return a.Webhook.Listen != "" || len(a.Files) > 0 || a.Kafka.Enabled()
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
	for i, path := range a.Files {
		at := fmt.Sprintf("audit.files[%d]", i)
		switch {
		case strings.TrimSpace(path) == "":
			rep.addProblem(at, Problem{Message: "is empty", Expected: "the path of an audit log file"})
		case slices.Contains(a.Files[:i], path):
			rep.addProblem(at, Problem{Message: "is listed already", Found: strconv.Quote(path), Expected: "every file once"})
		}
	}
	if err := a.FileEnvelope.Validate(); err != nil {
		rep.addProblem("audit.fileEnvelope", Problem{Message: "is unknown", Found: strconv.Quote(string(a.FileEnvelope)),
			Expected: "auto, none, azure or cloudwatch"})
	}
	if a.Settle < 0 {
		rep.addProblem("audit.settle", Problem{Message: "must not be negative", Found: a.Settle.String(), Expected: expectDuration})
	}
	if a.Stamps.Grace < minGrace {
		rep.addProblem("audit.stamps.grace", Problem{Message: "too short: a write that was admitted without the policy may still be on its way",
			Found: a.Stamps.Grace.String(), Expected: "at least " + minGrace.String() + ", and more than the --request-timeout of the API servers"})
	}
	if a.Stamps.Enabled && !a.HasEvents() {
		if a.Window < time.Second { // settle has no effect
			rep.addProblem("audit.window", Problem{Message: "too short", Found: a.Window.String(), Expected: "at least 1s"})
		}
	} else if a.Window <= a.Settle {
		rep.addProblem("audit.window", Problem{Message: "must be more than audit.settle", Found: a.Window.String(), Expected: "more than " + a.Settle.String()})
	}
	if a.CountersEvery != 0 && a.CountersEvery < time.Second {
		rep.addProblem("audit.countersEvery", Problem{Message: "too often", Found: a.CountersEvery.String(), Expected: "0, or at least 1s"})
	}
	if a.Wait < 0 || a.Wait > a.Window {
		rep.addProblem("audit.wait", Problem{Message: "not between 0 and audit.window", Found: a.Wait.String(),
			Expected: "0, or at most " + a.Window.String()})
	}
	if a.ClockSkew < 0 {
		rep.addProblem("audit.clockSkew", Problem{Message: "must not be negative", Found: a.ClockSkew.String(), Expected: expectDuration})
	}
	if a.MaxPending < minPendingBytes {
		rep.addProblem("audit.maxPending", Problem{Message: "too small", Found: a.MaxPending.String(), Expected: "at least " + minPendingBytes.String()})
	}
}

func validateAuditWebhook(rep *reporter, a Audit) {
	w := a.Webhook
	given := w.Certificate != "" || w.Key != "" || w.ClientCA != "" || len(w.Clients) > 0
	if w.Listen == "" {
		if given {
			rep.addProblem("audit.webhook.listen", Problem{Message: "is empty, and without it the rest of audit.webhook has no effect",
				Expected: `host:port, such as ":9443"`})
		}
		return
	}
	validateListen(rep, "audit.webhook.listen", w.Listen)
	for _, f := range a.credentialFiles() {
		if f.Path == "" {
			rep.addProblem(f.Key, Problem{Message: "is empty: audit events are accepted over TLS and from known clients only", Expected: "the path of a PEM file"})
		}
	}
	if len(w.Clients) == 0 {
		rep.addProblem("audit.webhook.clients", Problem{Message: "no client is allowed to send audit events",
			Expected: `the common names, or DNS names, in the API servers' client certificates, such as ["kube-apiserver"]`})
	}
	for i, name := range w.Clients {
		if strings.TrimSpace(name) == "" {
			rep.addProblem(fmt.Sprintf("audit.webhook.clients[%d]", i), Problem{Message: "is empty", Expected: "a name in a client certificate"})
		}
	}
}

// credentialFiles returns the files that the intakes read certificates and credentials from.
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
