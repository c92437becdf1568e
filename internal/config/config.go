package config

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/audit"
	"github.com/kubecdc/kubecdc/internal/audit/topic"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
	"github.com/kubecdc/kubecdc/pkg/sinks/stdout"
	"github.com/kubecdc/kubecdc/pkg/sinks/webhook"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Config is a whole configuration: complete, defaults filled in, checked. It is not changed after [Load].
type Config struct {
	// The cluster that is watched.
	Cluster Cluster `mapstructure:"cluster"`
	// What is watched: at least one rule. Where several select a resource, the first has it alone.
	Resources []Resource `mapstructure:"resources"`
	// What secret values are hashed with.
	Redaction Redaction `mapstructure:"redaction"`
	// Where changes go: at least one sink. Every sink gets every change, unless routes say otherwise, and is delivered on
	// its own: one that is down does not hold up another.
	Sinks []Sink `mapstructure:"sinks"`
	// Which changes go to which sinks and topics. Of several routes the first that matches a change decides alone; what none
	// matches goes to every sink, to its own topic. See docs/shaping.md.
	Routes []Route `mapstructure:"routes"`
	// The local store of changes not yet delivered and of positions. It must survive restarts.
	Journal Journal `mapstructure:"journal"`
	// How changes are moved to the sinks. It holds for each sink separately.
	Delivery Delivery `mapstructure:"delivery"`
	// Who made a change: the audit events of the API servers, from which records of type attributed name the authenticated
	// user. Off unless a source of events is given. See docs/audit-trail.md.
	Audit Audit `mapstructure:"audit"`
	// A copy of what must not be lost in the bus of one sink, so that the exporter survives its volume and its machine. Off
	// unless a sink is named. See docs/high-availability.md.
	State State `mapstructure:"state"`
	// Several exporters of which one works and the others stand by. Off unless a Lease is named; it needs state.
	Election Election `mapstructure:"election"`
	// The HTTP server for metrics, health and the status page.
	Admin Admin `mapstructure:"admin"`
	// What the exporter writes to standard error.
	Log Log `mapstructure:"log"`

	// File is where the configuration was read, and Hash the first 12 hexadecimal digits of the SHA-256 of what stood there.
	File, Hash string

	// Warnings are what was found suspicious: it may be meant, and more likely is not. Nothing is wrong with it.
	Warnings []Problem

	secrets []string
}

// String tells the size of the configuration and none of its values: passwords are among them.
func (c Config) String() string {
	return fmt.Sprintf("configuration with %d rules and %d sinks", len(c.Resources), len(c.Sinks))
}

// LogValue keeps the values out of logs, as String does.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// Cluster says which API server is watched and how.
type Cluster struct {
	// Name of the cluster in every change and its ID. Empty: the UID of the kube-system namespace. It must never change
	// for a journal that is in use, and holds no "/".
	Name string `mapstructure:"name"`
	// Path of a kubeconfig file. Empty: $KUBECONFIG, else ~/.kube/config, else, inside a Pod, its service account.
	Kubeconfig string `mapstructure:"kubeconfig"`
	// Context within the kubeconfig. Empty: its current context.
	Context string `mapstructure:"context"`
	// What happens at start when the API server belongs to another cluster than the one that the journal was filled from,
	// by the UID of the kube-system namespace: fail ends the exporter; fresh forgets what was known and begins anew, with
	// a gap for every resource.
	OnReplaced string `mapstructure:"onReplaced"`
}

// The values of Cluster.OnReplaced.
const (
	Fail  = "fail"
	Fresh = "fresh"
)

// Resource is one rule that selects resources and the objects of them.
type Resource struct {
	// Which resources, and which objects of them.
	selection.Rule `mapstructure:",squash"`
	// What is emitted of them.
	shape.Policy `mapstructure:",squash"`
}

// Redaction configures what holds for all rules that redact.
type Redaction struct {
	// Key of the hashes that redact: hmac writes, at least 16 bytes, best from a file or a variable. Whoever has it can
	// try guesses; with another key all hashes change.
	Key string `mapstructure:"key"`
}

// Sink is one destination. Exactly one of Kafka, NATS, Webhook and Stdout is set.
type Sink struct {
	// Name of the sink in metrics, logs and the journal: lower-case letters, digits and "-". A sink that is renamed is a
	// new sink and starts with what the journal still holds.
	Name string `mapstructure:"name"`
	// Form in which changes are written: json, cloudevents (binary mode: attributes in headers), cloudevents-structured,
	// debezium (keeps the state before every update, for every sink) or upsert (the object itself, or nothing once it is
	// deleted: for compacted topics and key-value buckets). On stdout json or cloudevents-structured, to a webhook
	// one of the cloudevents.
	Format string `mapstructure:"format"`
	// What becomes of a change that is too large for the destination: reduce leaves parts of it out, step by step, and says
	// which; deadLetter keeps the whole change as a dead letter.
	OnOversize string `mapstructure:"onOversize"`
	// Apache Kafka and what speaks its protocol.
	Kafka *kafka.Config `mapstructure:"kafka"`
	// NATS JetStream.
	NATS *nats.Config `mapstructure:"nats"`
	// CloudEvents over HTTP to one URL.
	Webhook *webhook.Config `mapstructure:"webhook"`
	// JSON lines on standard output or in a file.
	Stdout *stdout.Config `mapstructure:"stdout"`
	// Where changes go that this sink can never deliver, besides the journal. They carry the reason as deadLetter.
	DeadLetters DeadLetters `mapstructure:"deadLetters"`
}

// The values of Sink.OnOversize.
const (
	Reduce     = "reduce"
	DeadLetter = "deadLetter"
)

// DeadLetters names a topic for what could not be delivered.
type DeadLetters struct {
	// Name of a sink of kafka or nats, which may be this one. Its connection, format and limits apply. Empty: the journal
	// alone.
	Sink string `mapstructure:"sink"`
	// Template in place of kafka.topic or nats.subject of that sink.
	Topic string `mapstructure:"topic"`
}

// String names the sink and shows nothing else: passwords are among it.
func (s Sink) String() string { return "sink " + s.Name }

// LogValue keeps the values out of logs, as String does.
func (s Sink) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Journal configures the local store.
type Journal struct {
	// Directory of the journal, created if absent. One process at a time uses it.
	Dir string `mapstructure:"dir"`
	// Bound of what is kept on disk: changes for sinks that are behind, what is known of objects, their last states where a
	// rule asks what was there before, and dead letters. At the bound the exporter stops reading the API server and is not
	// ready until a sink catches up.
	MaxBytes Bytes `mapstructure:"maxBytes"`
	// Bound of the dead letters, at most half of maxBytes. At the bound a change that its sink refuses for ever holds up
	// its lane, and the exporter is not ready, until dead letters are discarded.
	MaxDeadLetters Bytes `mapstructure:"maxDeadLetters"`
	// How much of the disk stays free, at most a quarter of it, or of a small one 40 MiB: below it the exporter stops
	// reading the API server until a sink catches up, so that what sinks acknowledge can still be written down. 0: nothing.
	Reserve Bytes `mapstructure:"reserve"`
	// For how long changes are kept that every sink has delivered, to send them again when a destination lost what it had
	// acknowledged (NATS, after a power loss). They give way when half of maxBytes is taken, or no more than
	// reserve is left of the disk. 0s: not at all.
	Keep time.Duration `mapstructure:"keep"`
	// When writes reach the disk: always (before anything is sent) or interval (every few milliseconds; after a power
	// loss the last ones are watched again).
	Sync string `mapstructure:"sync"`
}

// Delivery configures how changes are moved, per sink.
type Delivery struct {
	// Waiting between attempts. Attempts never end.
	Retry Retry `mapstructure:"retry"`
	// Bound of the memory that changes on their way to one sink take. More helps where lanes are thousands.
	Window Bytes `mapstructure:"window"`
	// How long a stop waits for what is in flight. What is left stays in the journal.
	DrainTimeout time.Duration `mapstructure:"drainTimeout"`
	// Bound of the changes sent per second.
	Rate Rate `mapstructure:"rate"`
}

// Retry bounds the exponential back-off.
type Retry struct {
	// Wait after the first failure.
	Min time.Duration `mapstructure:"min"`
	// Longest wait.
	Max time.Duration `mapstructure:"max"`
}

// Rate is a token bucket.
type Rate struct {
	// Changes per second, for each sink. 0: no bound.
	PerSecond float64 `mapstructure:"perSecond"`
	// Changes that may be sent at once after a quiet time. 0: as many as a second allows.
	Burst int `mapstructure:"burst"`
}

// Audit configures who is named, and from what.
type Audit struct {
	// The API servers send their events here.
	Webhook audit.WebhookConfig `mapstructure:"webhook"`
	// Paths of audit log files, each of one API server. They are followed through rotation.
	Files []string `mapstructure:"files"`
	// Kafka topics of audit events, as managed clouds and log shippers fill them.
	Kafka topic.Config `mapstructure:"kafka"`
	// How long after a change the audit events of all API servers are waited for, before the one request left that may have
	// made it is believed to have. Longer than the API servers hold events back: 30 s by default.
	Settle time.Duration `mapstructure:"settle"`
	// How long a change waits for its audit event, and an event for its change.
	Window time.Duration `mapstructure:"window"`
	// How often the API servers' own counters of lost audit events are read from their /metrics, where the account may get
	// that: "exporter rbac" has the rule. 0: never.
	CountersEvery time.Duration `mapstructure:"countersEvery"`
	// How long sinks hold a change back until it is known who made it, so that the record that says so follows at once. 0:
	// not at all. Other changes of the journal wait behind it; nothing waits in front of the journal.
	Wait time.Duration `mapstructure:"wait"`
	// Guesses are emitted where nothing is certain: the one identity that was at the object when it changed, as the audit
	// log tells, in a member of its own, "likely". A guess can be wrong.
	Likely bool `mapstructure:"likely"`
	// How far the clock of an API server may be ahead of the exporter's. 0s: not at all.
	ClockSkew time.Duration `mapstructure:"clockSkew"`
	// Bound of the memory for changes and events that wait; at the bound the oldest give way, which is counted.
	MaxPending Bytes `mapstructure:"maxPending"`
}

// Enabled says whether there is a source of audit events.
func (a Audit) Enabled() bool { return a.Webhook.Listen != "" || len(a.Files) > 0 || a.Kafka.Enabled() }

// State configures the replicated state.
type State struct {
	// Name of the sink in whose bus the state is kept: one of kafka or nats. Empty: the journal is the only memory.
	Sink string `mapstructure:"sink"`
	// Kafka topic or NATS stream of the state, for this exporter and those that stand by for it only. It is also what the
	// bus knows them by: in Kafka their transactional IDs begin with it.
	Name string `mapstructure:"name"`
}

// Enabled says whether there is a replicated state.
func (s State) Enabled() bool { return s.Sink != "" }

// Election configures who works.
type Election struct {
	// The Lease that the exporters compete for, namespace/name. Empty: this exporter works at once, whoever else may.
	Lease string `mapstructure:"lease"`
	// After so long without a sign of the one that works another one takes over: whole seconds. It asks the API server five
	// times as often.
	Duration time.Duration `mapstructure:"duration"`
	// What the others know this exporter by, different for each. Empty: $POD_NAME, else the host's name and a random word.
	Identity string `mapstructure:"identity"`
}

// Enabled says whether exporters compete.
func (e Election) Enabled() bool { return e.Lease != "" }

// NamespacedName returns the namespace and the name of the Lease.
func (e Election) NamespacedName() (namespace, name string) {
	namespace, name, _ = strings.Cut(e.Lease, "/")
	return namespace, name
}

// Admin configures the HTTP server.
type Admin struct {
	// Address, host:port, of /metrics, /livez, /readyz and the status page. It has no authentication: keep it on
	// loopback or inside the cluster. Port 0 takes a free one. Empty: no server.
	Listen string `mapstructure:"listen"`
}

// Log configures logging.
type Log struct {
	// Least level that is written: debug, info, warn or error.
	Level string `mapstructure:"level"`
	// Form of a line: text or json.
	Format string `mapstructure:"format"`
}

// SlogLevel returns the level for slog handlers.
func (l Log) SlogLevel() slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.Level)); err != nil { // not reached: Load checked it
		return slog.LevelInfo
	}
	return level
}

// Default returns the configuration of an empty file. It is not complete: resources and sinks have no default.
func Default() Config {
	return Config{
		Cluster: Cluster{OnReplaced: Fail},
		Journal: Journal{Dir: "./data", MaxBytes: 10 << 30, MaxDeadLetters: 1 << 30, Reserve: 512 << 20, Keep: 5 * time.Minute, Sync: "always"},
		Delivery: Delivery{
			Retry:        Retry{Min: 100 * time.Millisecond, Max: 30 * time.Second},
			Window:       32 << 20,
			DrainTimeout: 20 * time.Second,
		},
		Audit:    Audit{Settle: 40 * time.Second, Window: 10 * time.Minute, CountersEvery: time.Minute, MaxPending: 64 << 20},
		State:    State{Name: "kubecdc-state"},
		Election: Election{Duration: 5 * time.Second},
		Admin:    Admin{Listen: "127.0.0.1:8080"},
		Log:      Log{Level: "info", Format: "text"},
	}
}

// SetDefaults fills the struct p points to with its defaults, before the file's values are laid over them. It covers what
// occurs any number of times in a file; [Default] covers the rest.
func SetDefaults(p any) {
	switch v := p.(type) {
	case *Resource:
		*v = Resource{
			Rule:   selection.Rule{Capture: selection.CaptureFull, OnForbidden: selection.Degrade},
			Policy: shape.Policy{Redact: shape.Mask, HMAC: shape.HashOptions{Scope: "object"}, Before: "none", Changed: "none"},
		}
	case *Sink:
		*v = Sink{Format: "json", OnOversize: Reduce}
	}
}
