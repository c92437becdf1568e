package condition

import (
	"log/slog"
	"slices"
)

// Code names what is wrong. The set is closed: it is the label of a metric, and docs/conditions.md explains each.
type Code string

// Kind is what is known of a code.
type Kind struct {
	Code     Code
	Severity Severity   // OK for an event, which is only logged
	Level    slog.Level // of the line that logs the beginning; debug for an ordinary part of a start
	Message  string     // what is wrong
	Ended    string     // the log line of the end; "": the end is not logged
	Effect   string     // what does not work meanwhile
	Remedy   string     // what the operator can do
}

// Kind returns what is known of a code; a zero Kind for "".
func (c Code) Kind() Kind { return kinds[c] }

// DocsURL is where the pages of docs/ can be read. Alerts link to them.
const DocsURL = "https://github.com/kubecdc/kubecdc/blob/main/docs/"

// Kinds returns all kinds in the order of their documentation.
func Kinds() []Kind { return slices.Clone(table) }

var (
	table []Kind // in the order of their documentation
	kinds = map[Code]Kind{}
)

// define adds a code to the table.
func define(code Code, severity Severity, level slog.Level, message, ended, effect, remedy string) Code {
	kinds[code] = Kind{code, severity, level, message, ended, effect, remedy}
	table = append(table, kinds[code])
	return code
}

// Texts that several kinds share.
const (
	watchStarts  = "watching"
	sinkDelivers = "delivers"
	noneLate     = "changes wait in the journal, and other sinks continue"
	notRead      = "nothing is read from the API server"
	checkServer  = "check the API server, the network, the certificate and the token"
	readAgain    = "files are read again within seconds, without a restart"
	mendServer   = "mend what answers for it: the APIService of its group, the conversion webhook of its definition, or a proxy before the API server"
	printRights  = "apply the output of exporter rbac, which has the right"
)

// The codes, by component. A start is logged at debug level where it is an ordinary part of a start of the exporter.
var (
	ConfigRefused = define("ConfigRefused", Degraded, slog.LevelError, "the configuration in the file is refused; the previous one stays active",
		"the active configuration is the one in the file", "the previous configuration stays active",
		"correct the file; it is read again at once")
	ConfigPending = define("ConfigPending", Degraded, slog.LevelWarn, "the configuration in the file is accepted and not active yet",
		"the active configuration is the one in the file", "the previous configuration stays active until then",
		"wait; if it does not end, restart the exporter")

	APIServerUnreachable = define("APIServerUnreachable", NotReady, slog.LevelWarn, "not watching, will try again",
		watchStarts, notRead, checkServer)
	APIServerBusy = define("APIServerBusy", NotReady, slog.LevelWarn, "the API server has too much to do, will try again",
		watchStarts, notRead, "look at the load of the API server, and at the priority and fairness of this account's requests (flow schemas)")
	CertificateRefused = define("CertificateRefused", NotReady, slog.LevelWarn, "the API server and the exporter do not accept each other's certificates",
		watchStarts, notRead, "put the right certificate authority and client certificate into the kubeconfig or the files that it names; "+readAgain)
	CredentialsRefused = define("CredentialsRefused", NotReady, slog.LevelWarn, "the API server does not accept the credentials",
		watchStarts, notRead, "put valid credentials into the kubeconfig or the files that it names, or mend the program that it runs for them; "+readAgain)
	CredentialsUnread = define("CredentialsUnread", Degraded, slog.LevelWarn, "the files with the credentials for the API server cannot be read",
		"the credentials can be read again", "those that were read before stay in use, until the API server refuses them",
		"mend the file that the cause names; "+readAgain)
	DiscoveryPending = define("DiscoveryPending", NotReady, slog.LevelDebug, "the API server has not been asked yet what it serves",
		"", "nothing is watched yet", "wait; "+checkServer)
	NothingWatched = define("NothingWatched", NotReady, slog.LevelWarn, "none of the selected resources can be watched",
		"", "the stream is empty", "grant the rights (exporter rbac prints them), or correct the names in resources")
	ClusterUnchecked = define("ClusterUnchecked", Degraded, slog.LevelWarn, "it cannot be checked whether this is the cluster that the journal was filled from",
		"the identity of the cluster can be checked again", "another cluster at the same address would not be noticed",
		"allow get on the namespace kube-system; exporter rbac prints the right")
	ClockSkew = define("ClockSkew", Degraded, slog.LevelWarn, "the clocks of this machine and of the API server are apart",
		"the clocks agree again", "times in changes are wrong, and certificates and tokens may be refused",
		"repair the time service of the machine that is wrong")
	ResourceSyncing = define("ResourceSyncing", NotReady, slog.LevelDebug, "the first list is not complete",
		watchStarts, "objects that the list has not reached are not delivered yet", "wait; eight resources are listed at a time")
	ResourceListing = define("ResourceListing", Degraded, slog.LevelDebug, "all objects are listed again",
		watchStarts, "changes arrive when the list has reached them", "wait; eight resources are listed at a time")
	ResourceFailing = define("ResourceFailing", NotReady, slog.LevelWarn, "the API server fails to list or watch, will try again",
		watchStarts, "the resource is not read from the API server", mendServer)
	ResourceNeverWatched = define("ResourceNeverWatched", Degraded, slog.LevelWarn, "selected by a wildcard alone, and not watched once since the start; will try again",
		watchStarts, "the resource is left out of the stream", "exclude it in its rule, or "+mendServer)
	ListAmbiguous = define("ListAmbiguous", Degraded, slog.LevelWarn, "a list has several objects of one name",
		"each name has one object", "of such objects one appears, and as deleted and added with each change of another",
		"exclude the resource, or select it at one of the servers that the API server puts together")
	ListIncomplete = define("ListIncomplete", Degraded, slog.LevelWarn, "a list leaves out members of its objects",
		"lists have the whole objects", "the first change of an object shows the members that the list left out as added",
		"mend the server of the resource, or select it with capture: metadata")
	ResourceUnwatchable = define("ResourceUnwatchable", Degraded, slog.LevelWarn, "selected and served, but it cannot be watched",
		watchStarts, "nothing comes from it", "remove the name from the rule: its server offers no list, or no watch")
	WildcardUnmatched = define("WildcardUnmatched", Degraded, slog.LevelWarn, "a wildcard matches nothing that is served",
		"the wildcard matches something", "nothing comes from it; what appears is watched", "install the definitions of the group, or correct its name in the rule")
	GroupUnanswered = define("GroupUnanswered", Degraded, slog.LevelWarn, "a group that rules may select does not answer discovery",
		"the group answers", "which resources it has is not known; those that were known before are still watched",
		"mend the server of the group: kubectl get apiservices names it and its condition")
	ResourceSilent = define("ResourceSilent", NotReady, slog.LevelWarn, "the watch fell silent, opening it again",
		watchStarts, "changes of the resource may be late", "look at proxies and load balancers before the API server")
	ResourceForbidden = define("ResourceForbidden", Degraded, slog.LevelWarn, "not allowed to list and watch, will try again",
		watchStarts, "the resource is left out of the stream", printRights)
	ResourceUnread = define("ResourceUnread", Degraded, slog.LevelWarn, "objects cannot be read beside the watch, for a resync or for missing states; trying again",
		"objects can be read beside the watch again", "the watch continues; the resync or the missing states are late",
		"grant the right or repair the server that the cause names")
	ObjectsOutdated = define("ObjectsOutdated", Degraded, slog.LevelInfo, "destinations have objects as their rule was before it was edited",
		"destinations have all objects as the rules are", "each follows the edited rule with its next change",
		"wait, or emit all of them: exporter signal snapshot, or resync in the rule")
	SnapshotPending = define("SnapshotPending", Degraded, slog.LevelInfo, "a snapshot of the resource for one sink is not complete yet",
		"the snapshot for the sink is complete", "changes flow; a sink that was added lacks what has not changed since",
		"wait; if it lasts, look at the conditions of the resource and of the sink")
	ResourceNotServed = define("ResourceNotServed", Degraded, slog.LevelWarn, "selected but not served, waiting for it",
		watchStarts, "it is watched as soon as it is served", "install its definition, or correct the name in the rule")
	ResourceGone = define("ResourceGone", Degraded, slog.LevelDebug, "no longer served, its objects are being emitted as deleted",
		watchStarts, "the resource is not watched", "none is needed if its definition was removed on purpose")
	NamespaceMissing = define("NamespaceMissing", Degraded, slog.LevelWarn, "a selected namespace does not exist; it is watched as soon as it is created",
		"the namespace exists now", "nothing comes from it", "create it (it is watched from then on), or correct namespaces.include")
	NamespaceUnknown = define("NamespaceUnknown", Degraded, slog.LevelWarn, "the right to check whether a selected namespace exists is missing",
		"the namespace exists now", "a misspelled name would not be noticed", "allow get on this namespace alone; exporter rbac prints the right")
	RedactionUnmatched = define("RedactionUnmatched", Degraded, slog.LevelWarn, "a redaction path matches nothing in the types of its rule, or leaves out places of the same type",
		"redaction paths match", "values that were meant to be redacted are emitted",
		"correct redactPaths; exporter explain shows each path; if the type is not installed yet, install it")
	RedactionHeld = define("RedactionHeld", NotReady, slog.LevelWarn, "changes wait until each redaction path of their rule is known to match",
		watchStarts, "nothing of the resource is read or emitted",
		"correct redactPaths, or mend the definition of the type; or, to emit nevertheless, redaction.strict: false")
	RulePaused = define("RulePaused", Degraded, slog.LevelWarn, "the rule is paused by a signal",
		watchStarts, "nothing of its resources is read; other rules continue; it goes on where it was, or with a gap where the API "+
			"server no longer has the history", "exporter signal resume")

	JournalFull = define("JournalFull", NotReady, slog.LevelWarn, "journal writes are blocked: it has reached journal.maxBytes",
		"journal continues", notRead, "bring the sink back, remove it from the configuration, or raise journal.maxBytes")
	JournalDiskLow = define("JournalDiskLow", NotReady, slog.LevelWarn, "journal writes are blocked: its disk has no more left than journal.reserve",
		"journal continues", notRead, "free space or enlarge the volume, or bring the sink back")
	JournalDiskFull = define("JournalDiskFull", NotReady, slog.LevelError, "journal writes are blocked: its disk is full",
		"journal continues", notRead+", and no progress is stored", "free space or enlarge the volume")
	JournalBroken = define("JournalBroken", NotReady, slog.LevelError, "the journal cannot be used any more",
		"", "the exporter ends", "look at the disk; the next start sets a broken store aside")
	JournalRecovered = define("JournalRecovered", Degraded, slog.LevelWarn, "the stored journal was broken and was set aside at the start",
		"", "what stands before the damage is delivered, then a gap; the rest of what was not delivered is in the old store only",
		"look at the disk, and at store.broken-… in the journal's directory; the next restart ends this")
	DeadLettersFull = define("DeadLettersFull", NotReady, slog.LevelWarn, "journal accepts no more dead letters",
		"journal accepts dead letters again", "a rejected change blocks its lane; other lanes continue",
		"exporter deadletters retry or discard, or raise journal.maxDeadLetters")

	SinkConnecting = define("SinkConnecting", NotReady, slog.LevelDebug, "the destination has not been reached yet",
		"connected", noneLate, "wait for the first answer")
	SinkUnreachable = define("SinkUnreachable", NotReady, slog.LevelWarn, "the destination cannot be reached",
		sinkDelivers, noneLate, "start the destination, or correct its address in the sink's configuration; check the network and TLS")
	SinkTimeout = define("SinkTimeout", NotReady, slog.LevelWarn, "the destination does not answer in time",
		sinkDelivers, noneLate, "it accepts connections, but sends no answer: check its load, a proxy before it, and that the port is the right one; raise the sink's timeout if it is only slow")
	SinkUnauthorized = define("SinkUnauthorized", NotReady, slog.LevelWarn, "the destination refuses the credentials or lacks a right",
		sinkDelivers, noneLate, "correct the credentials in the sink's configuration, or grant the right that the cause names")
	SinkCertificate = define("SinkCertificate", NotReady, slog.LevelWarn, "a certificate is not accepted, so there is no TLS connection",
		sinkDelivers, noneLate, "renew or correct the certificate that the cause names, or the authorities in the sink's configuration")
	SinkBusy = define("SinkBusy", NotReady, slog.LevelWarn, "the destination asked to retry later",
		sinkDelivers, noneLate, "look at the destination's load and limits; it is tried again when the time is over")
	SinkFull = define("SinkFull", NotReady, slog.LevelWarn, "the destination has no space",
		sinkDelivers, noneLate, "raise the limits of the destination, or delete old messages there")
	SinkTargetMissing = define("SinkTargetMissing", NotReady, slog.LevelWarn, "the topic or stream does not exist",
		sinkDelivers, noneLate, "create it, or let the exporter create it: kafka.createTopics.enabled, nats.create.enabled")
	SinkMisconfigured = define("SinkMisconfigured", NotReady, slog.LevelWarn, "the destination does not fit the sink's configuration",
		sinkDelivers, noneLate, "correct the setting that the cause names, here or at the destination")
	SinkRejectsAll = define("SinkRejectsAll", NotReady, slog.LevelWarn, "the destination rejects every change",
		sinkDelivers, noneLate, "check that this is the right destination, then exporter deadletters retry; if it means it: delivery.rejections.suspect: 0s")
	SinkFailing = define("SinkFailing", NotReady, slog.LevelWarn, "the destination fails",
		sinkDelivers, noneLate, "if the cause names a setting, a limit or a right, correct that; anything else is tried again with back-off")
	SinkDefect = define("SinkDefect", NotReady, slog.LevelError, "the sink violates its contract",
		sinkDelivers, noneLate, "report this defect, with the log")
	SinkPaused = define("SinkPaused", Degraded, slog.LevelWarn, "the sink is paused by a signal",
		"", "nothing is delivered to it; changes wait in the journal, and other sinks continue; at journal.maxBytes nothing is read "+
			"from the API server, and a replicated state waits from the start of the pause",
		"exporter signal resume")
	SinkThrottled = define("SinkThrottled", Degraded, slog.LevelWarn, "kafka throttles requests; delivery is limited to the quota",
		"kafka no longer throttles requests", "changes are late", "raise the quota, if delivery is too slow")
	SinkNoKeepAlive = define("SinkNoKeepAlive", Degraded, slog.LevelWarn, "the webhook does not end the bodies of its responses",
		"the responses of the webhook end", "each request needs a new connection",
		"let the receiver answer with a short body, or none")
	SinkMayLose = define("SinkMayLose", Degraded, slog.LevelWarn, "the destination may lose or repeat what it accepts",
		"", "delivery continues with a weaker guarantee", "change the setting that the cause names, or accept it")
	SinkLost = define("SinkLost", Degraded, slog.LevelError, "the destination has lost changes that the journal no longer keeps",
		"", "they are missing at the destination; what the journal kept was sent again",
		"exporter verify --repair, or exporter signal snapshot for the sink; a larger journal.keep would have kept them; the next restart ends this")
	SinkClockRefused = define("SinkClockRefused", Degraded, slog.LevelWarn, "brokers reject the timestamps of records; records are sent without one",
		"brokers accept the timestamps of records", "records have the brokers' time", "synchronize the clocks of the exporter and the brokers")
	SinkCompressionRefused = define("SinkCompressionRefused", Degraded, slog.LevelWarn, "brokers refuse the compression that is used by default; another one is used",
		"", "batches are larger, or cost more to compress", "set kafka.compression to the one that the cause names")
	ProgressUnstored = define("ProgressUnstored", NotReady, slog.LevelError, "progress cannot be stored",
		sinkDelivers, "delivery continues and is repeated from the stored position after a restart", "look at the disk of the journal")
	DeadLettersKept = define("DeadLettersKept", Degraded, slog.LevelWarn, "changes were permanently rejected and are kept as dead letters",
		"", "they are missing at the destination", "exporter deadletters list has the reasons; then retry or discard")
	DeadLettersHeld = define("DeadLettersHeld", Degraded, slog.LevelWarn, "a dead letter cannot be published; its lane waits until it is",
		"dead letters are published again", "a rejected change blocks its lane; other lanes continue",
		"bring the sink of the dead letters back, or remove deadLetters from the configuration")

	StateRefused = define("StateRefused", NotReady, slog.LevelError, "the replicated state cannot be used",
		"the replicated state can be used again", "this exporter cannot become active", "exporter state show; give each deployment a state.name of its own")
	StateUnreachable = define("StateUnreachable", Degraded, slog.LevelWarn, "the replicated state cannot be read or written",
		"the replicated state is read and written again", "a failover takes longer, or is not possible",
		"bring the sink of state.sink back, or grant what the cause names")
	FailoverFailing = define("FailoverFailing", NotReady, slog.LevelWarn, "failover attempts fail and are retried",
		"the replicated state can be taken over", "this exporter cannot become active", "bring the destination that the cause names back")
	LaneUnread = define("LaneUnread", Degraded, slog.LevelWarn, "lanes could not be fenced or read back after a failover, and are tried again",
		"all lanes are fenced and read back", "the changes of these lanes wait in the journal; other lanes continue",
		"bring the broker or partition that the cause names back")
	LeaseUnknown = define("LeaseUnknown", Degraded, slog.LevelWarn, "the Lease cannot be read or written",
		"the Lease can be read and written again", "the active exporter continues, standbys wait", "check that the API server can be reached")
	LeaseYielded = define("LeaseYielded", Degraded, slog.LevelWarn, "this exporter does not reach every bus; a standby that reaches more takes over",
		"this exporter no longer yields the Lease", "changes are late until a standby takes over",
		"check the network between this exporter and the bus")
	IdentityShared = define("IdentityShared", NotReady, slog.LevelError, "another process has the identity of this one and holds the Lease",
		"no other process has the identity of this one", "this exporter does not take over",
		"give each exporter its own election.identity, such as the name of its Pod")
	NoneActive = define("NoneActive", NotReady, slog.LevelWarn, "no exporter is active: the holder of the Lease does not work",
		"the holder of the Lease is active", "changes are late, and lost once the API server no longer has the history",
		"look at the holder; if it is no exporter of this deployment, give it another Lease, then kubectl delete this one")
	StateMayLose = define("StateMayLose", Degraded, slog.LevelWarn, "the bus may delete entries of the replicated state",
		"the bus keeps all entries of the replicated state", "the next failover is refused", "correct the setting that the cause names")

	AuditSilent = define("AuditSilent", Degraded, slog.LevelWarn, "no audit events arrive",
		"audit events arrive", "changes are emitted without an author",
		"check that the API servers write audit events and reach this exporter: exporter audit-policy prints what that needs")
	AuditLagging = define("AuditLagging", Degraded, slog.LevelWarn, "audit events arrive later than audit.settle allows for",
		"audit events arrive in time", "changes whose author a later event may contradict are emitted without an author",
		"raise audit.settle, or lower --audit-webhook-batch-max-wait of the API servers")
	AuditUnreadable = define("AuditUnreadable", Degraded, slog.LevelWarn, "an audit log cannot be read",
		"audit log is read", "changes are emitted without an author", "see that the log exists and may be read")
	AuditUnserved = define("AuditUnserved", Degraded, slog.LevelWarn, "the audit webhook is not served",
		"audit webhook is served", "changes are emitted without an author", "free the port, or correct audit.webhook.listen")
	AuditCertificate = define("AuditCertificate", Degraded, slog.LevelWarn, "the certificate of the audit webhook cannot be read",
		"audit webhook is served", "the previous certificate stays in use", "correct the file")

	StampsUnproven = define("StampsUnproven", Degraded, slog.LevelWarn, "stamps prove nothing, because the admission policy is not in force as printed",
		"stamps name authors again", "changes are emitted without an author, unless the audit log names it",
		"apply the output of exporter audit-policy --stamp, and find out what changes it; a type that must not be stamped has its authors in "+
			"the audit log")
	StampsUnchecked = define("StampsUnchecked", Degraded, slog.LevelWarn, "the admission policy that stamps objects cannot be read",
		"the admission policy can be read again", "changes wait for that for up to audit.window, and are then without an author", printRights)

	SignalsUnreceived = define("SignalsUnreceived", Degraded, slog.LevelWarn, "signals cannot be received at the admin server",
		"signals are received", "the socket in the journal's directory takes signals meanwhile; changes are delivered as ever",
		"correct what the cause names, under admin.signals in the configuration")

	PortFlooded = define("PortFlooded", Degraded, slog.LevelWarn, "a port has more connections than it takes, and closes the least used of them",
		"the port has room for all connections again", "clients that it closes connect again; API servers, probes and scrapes get through, perhaps late",
		"find out what connects from the address that the cause names, and let a NetworkPolicy or firewall keep it from the port")

	TelemetryUnsent = define("TelemetryUnsent", Degraded, slog.LevelWarn, "the exporter's own metrics or traces do not reach their collector",
		"the exporter's own metrics and traces reach their collector", "they are missing there; changes are delivered as ever",
		"start the collector, or correct the variables that begin with OTEL_")

	HistoryLost = define("HistoryLost", OK, slog.LevelWarn, "history was lost, reading all objects",
		"", "states in between are missing; a gap record marks them", "keep the exporter running, and the journal large enough for outages")
	ResourceVanished = define("ResourceVanished", OK, slog.LevelWarn, "resource is no longer served, emitting its objects as deleted",
		"", "consumers receive its objects as deleted", "none is needed if its definition was removed on purpose")
)
