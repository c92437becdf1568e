package faults

import (
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/require"
)

// fault is one row: how it is staged, the line of /readyz that names it, and the alerts that fire.
type fault struct {
	name string
	// stage lets an exporter meet the fault. heal cures it; nil where that takes another start, or nothing is to be cured.
	stage func(c *fixture) (heal func())
	// codes are of all conditions that every surface has; "" if the exporter ends.
	codes string
	// line is how the line begins, "[-]sink/kafka", and has this text. An exporter that ends logs it: line
	// is "".
	line, says string
	// alerts are without the prefix of all names, with the sink or resource that they name. Several are several things to
	// know: what only follows from another is left out.
	alerts []string
}

var faults = []fault{
	// The destination.
	{"Kafka is down", (*fixture).kafkaDown, "SinkUnreachable", "[-]sink/kafka", "no broker of ", one("SinkDown kafka")},
	{"Kafka refuses the password", (*fixture).wrongPassword, "SinkUnauthorized", "[-]sink/kafka", "refuses the credentials", one("SinkDown kafka")},
	{"no topic is there", (*fixture).noTopic, "SinkTargetMissing", "[-]sink/kafka", "does not exist", one("SinkDown kafka")},
	{"one topic of two is missing", (*fixture).topicMissing, "SinkTargetMissing", "[!]sink/kafka/", "does not exist", one("LanesFailing kafka")},
	{"the right to write one topic is removed", (*fixture).topicForbidden, "SinkUnauthorized", "[!]sink/kafka/", "no right to write", one("LanesFailing kafka")},
	{"a change is larger than the topic allows", (*fixture).oversize, "DeadLettersKept", "[!]sink/kafka", "permanently rejected", one("DeadLetters kafka")},
	{"NATS is down", (*fixture).natsDown, "SinkUnreachable", "[-]sink/nats", "not connected to NATS at 127.0.0.1:", one("SinkDown nats")},
	{"the stream is missing", (*fixture).streamMissing, "SinkTargetMissing", "[-]sink/nats", "does not exist", one("SinkDown nats")},
	{"the stream is full", (*fixture).streamFull, "SinkFull", "[-]sink/nats", "cannot store more", one("SinkDown nats")},
	{"the stream forgets what nobody has read", (*fixture).streamForgets, "SinkMayLose", "[!]sink/nats", "oldest", one("SinkMayLose nats")},
	{"the certificate of NATS has expired", (*fixture).expired, "SinkCertificate", "[-]sink/nats", "the server's certificate has expired", one("SinkDown nats")},
	{"the clock is behind that of whoever signs", (*fixture).notYetValid, "SinkCertificate", "[-]sink/webhook", "not yet valid", one("SinkDown webhook")},
	{"NATS refuses the client certificate", (*fixture).clientRefused, "SinkCertificate", "[-]sink/nats", "the server refuses the client certificate", one("SinkDown nats")},
	{"the certificate of Kafka has another name", (*fixture).otherName, "SinkCertificate", "[-]sink/kafka", "the server's certificate has another name", one("SinkDown kafka")},
	{"a webhook is not trusted", (*fixture).unknownAuthority, "SinkCertificate", "[-]sink/webhook", "the server's certificate is not trusted", one("SinkDown webhook")},
	{"a webhook rejects everything", (*fixture).rejectsAll, "DeadLettersKept SinkRejectsAll", "[-]sink/webhook", "rejected", one("SinkDown webhook")},
	{"a webhook is closed", (*fixture).webhookClosed, "SinkUnreachable", "[-]sink/webhook", "connection refused", one("SinkDown webhook")},
	{"a webhook hangs", (*fixture).webhookHangs, "SinkTimeout", "[-]sink/webhook", "no ", one("SinkDown webhook")},
	{"a webhook has too much to do", (*fixture).webhookBusy, "SinkBusy", "[-]sink/webhook", "503", one("SinkDown webhook")},
	{"JetStream is silent", (*fixture).jetStreamSilent, "SinkTimeout", "[-]sink/nats", "", one("SinkDown nats")},
	{"dead letters are at their bound", (*fixture).lettersFull, "DeadLettersFull DeadLettersKept", "[-]journal", "journal.maxDeadLetters", one("DeadLettersFull")},
	{"dead letters cannot reach their topic", (*fixture).lettersHeld, "SinkUnreachable", "[-]sink/kafka", "sink/nats: a rejected change blocks its lane", []string{"DeadLettersHeld nats", "SinkDown kafka"}},
	{"Kafka expects TLS", (*fixture).plainToTLS, "SinkUnreachable", "[-]sink/kafka", "set kafka.tls.enabled: true", one("SinkDown kafka")},
	{"Kafka has no TLS", (*fixture).tlsToPlain, "SinkUnreachable", "[-]sink/kafka", "set kafka.tls.enabled: false", one("SinkDown kafka")},
	{"nobody knows the name of Kafka", (*fixture).unknownName, "SinkUnreachable", "[-]sink/kafka", "is not found", one("SinkDown kafka")},
	{"a broker advertises a wrong address", (*fixture).wrongAdvertised, "SinkUnreachable", "[-]sink/kafka", "advertised.listeners", one("SinkDown kafka")},
	{"the right to publish objects of one type is missing", (*fixture).oneRightMissing, "SinkUnauthorized", "[-]sink/nats", ".*.*.*\" on the server", one("SinkDown nats")},
	{"the right to publish is missing", (*fixture).noRight, "SinkUnauthorized", "[-]sink/nats", ".*.*.*\" on the server", one("SinkDown nats")},
	{"the account has no JetStream", (*fixture).jetStreamOff, "SinkMisconfigured", "[-]sink/nats", "not enabled for this account", one("SinkDown nats")},
	{"NATS is taken out of service", (*fixture).lameDuck, "SinkUnreachable", "[-]sink/nats", "not connected to NATS", one("SinkDown nats")},
	{"a webhook refuses the token", (*fixture).webhookUnauthorized, "SinkUnauthorized", "[-]sink/webhook", "webhook.bearerToken", one("SinkDown webhook")},
	{"a webhook is at another address", (*fixture).webhookNotFound, "SinkMisconfigured", "[-]sink/webhook", "check webhook.url", one("SinkDown webhook")},
	{"a webhook asks for ten minutes", (*fixture).webhookLater, "SinkBusy", "[-]sink/webhook", "not before", one("SinkDown webhook")},
	{"a webhook never answered", (*fixture).webhookNeverAnswers, "SinkTimeout", "[-]sink/webhook", "no response within 2s", one("SinkDown webhook")},
	{"a sink is paused", (*fixture).sinkPaused, "SinkPaused", "[!]sink/file", "exporter signal resume --sink file", one("SinkPaused file")},

	// The API server.
	{"the API server is away", (*fixture).apiAway, "APIServerUnreachable", "[-]resource/configmaps", "look at the API server at https://", one("APIServerUnreachable")},
	{"the API server is away from the start", (*fixture).apiNeverThere, "APIServerUnreachable", "[-]discovery", "look at the API server", one("APIServerUnreachable")},
	{"the API server hangs", (*fixture).apiHangs, "APIServerUnreachable", "[-]resource/configmaps", "look at the API server at https://", one("APIServerUnreachable")},
	{"the token is refused", (*fixture).tokenRefused, "CredentialsRefused", "[-]discovery", "Unauthorized", one("APIServerUnreachable")},
	{"the certificate of the API server is not trusted", (*fixture).otherAuthority, "CertificateRefused", "[-]discovery", "not trusted", one("APIServerUnreachable")},
	{"the token is refused from one moment on", (*fixture).tokenRevoked, "CredentialsRefused", "[-]resource/configmaps", "401", one("APIServerUnreachable")},
	{"the API server has too much to do", (*fixture).apiBusy, "APIServerBusy", "[-]resource/configmaps", "flow schemas", one("APIServerUnreachable")},
	{"the API server fails", (*fixture).apiFails, "ResourceFailing", "[-]resource/configmaps", "status 500", one("APIServerUnreachable")},
	{"one type cannot be read", (*fixture).typeSick, "APIServerBusy", "[-]resource/secrets", "status 503", one("ResourceNotWatched secrets")},
	{"the right to read one type is removed", (*fixture).typeForbidden, "ResourceForbidden", "[!]resource/secrets", "forbidden", one("ResourceForbidden secrets")},
	{"a type is not served", (*fixture).typeNotServed, "ResourceNotServed", "[!]resource/gadgets.example.com", "the API server does not serve this", one("ResourceNotServed gadgets.example.com")},
	{"a wildcard matches nothing", (*fixture).wildcardUnmatched, "WildcardUnmatched", "[!]resource/*.nobody.example.com", "install the definitions", one("ResourceNotServed *.nobody.example.com")},
	{"a namespace does not exist", (*fixture).namespaceMissing, "NamespaceMissing", "[!]namespace/", "does not exist", one("NamespaceMissing")},
	{"the cluster cannot be told from another", (*fixture).unchecked, "ClusterUnchecked", "[!]cluster", "kube-system", one("ClusterUnchecked")},
	{"another cluster is at the same address", (*fixture).anotherCluster, "", "", "another cluster", one("Absent")},
	{"the clock is an hour off", (*fixture).clockOff, "ClockSkew", "[!]clock", "1h0m", one("ClockSkew")},

	// The exporter's own.
	{"a redaction path matches nothing", (*fixture).redactionUnmatched, "RedactionUnmatched", "[!]redaction/resources[0]", "spec.secret", one("RedactionUnmatched")},
	{"a redaction path matches nothing and redaction is strict", (*fixture).redactionHeld, "RedactionHeld RedactionUnmatched", "[-]resource/configmaps", "spec.secret", one("RedactionUnmatched")},
	{"the edited configuration is wrong", (*fixture).badReload, "ConfigRefused", "[!]configuration", "sinks", one("ConfigRefused")},
	{"the disk is full", (*fixture).diskFull, "JournalDiskLow", "[-]journal", "something else than the changes in the journal", one("JournalBlocked")},
	{"the journal cannot be written", (*fixture).readOnly, "", "", "read-only file system", one("Absent")},
	{"the journal is at its bound", (*fixture).journalFull, "JournalFull SinkBusy", "[-]journal", "journal.maxBytes", []string{"JournalBlocked", "SinkDown webhook"}},
	{"the journal is broken", (*fixture).journalBroken, "JournalRecovered", "[!]journal", "was broken", one("JournalRecovered")},
	{"the bus of the state is away", (*fixture).stateAway, "FailoverFailing", "[-]replica", "not connected to NATS at 127.0.0.1:", one("NoneActive")},
	{"no exporter may read the Lease", (*fixture).leaseForbidden, "LeaseUnknown", "[-]replica", "knows of no other one that is", []string{"Degraded", "NoneActive"}},
	{"two deployments use one state", (*fixture).stateShared, "StateRefused", "[-]replica", "belongs to the exporters of the Lease", one("NotReady")},
	{"an election with a stream that takes no batches", (*fixture).streamTakesNoBatches, "SinkMisconfigured", "[-]sink/nats", "serves no election", one("SinkDown nats")},
	{"audit events do not come", (*fixture).auditSilent, "AuditSilent", "[!]audit", "no audit event came", one("AuditSilent")},
}

func one(alert string) []string { return []string{alert} }

// TestEachFaultIsNamedByReadinessPageAndAlert stages all faults, and what is over when it is noticed, several at a time. Two
// alerts nothing here stages: KubecdcDefect takes a sink that is wrong, and KubecdcStateLags five minutes. These have their
// series in deploy/monitoring.
func TestEachFaultIsNamedByReadinessPageAndAlert(t *testing.T) {
	require.Long(t)
	s := surround(t)
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			c := s.fixture(t)
			heal := f.stage(c)
			if f.line == "" {
				c.awaitEnd(f.says)
				c.awaitAlerts(f.alerts)
				return
			}
			c.awaitNamed(f.line, f.says)
			c.awaitConditions(strings.Fields(f.codes))
			if strings.HasPrefix(f.codes, "Journal") && heal != nil {
				c.awaitDeadline()
			}
			c.awaitAlerts(f.alerts)
			c.checkSteady()
			if heal == nil {
				c.awaitStored(strings.Fields(f.codes))
				return
			}
			heal()
			c.awaitWell()
			c.awaitAlerts(nil)
		})
	}
	for _, h := range happenings {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			c := s.fixture(t)
			h.stage(c)
			c.awaitAlerts(h.alerts)
		})
	}
}
