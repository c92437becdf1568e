package config

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
	"github.com/kubecdc/kubecdc/pkg/sinks/stdout"
	"github.com/kubecdc/kubecdc/pkg/sinks/webhook"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Config is a complete, validated configuration with defaults filled in. It is immutable after [Load].
type Config struct {
	// The cluster that is watched.
	Cluster Cluster `mapstructure:"cluster"`
	// The rules that select resources: at least one. If several rules select a resource, only the first applies to it.
	Resources []Resource `mapstructure:"resources"`
	// The key for hashes of secret values.
	Redaction Redaction `mapstructure:"redaction"`
	// Where changes go: at least one sink. Every sink gets every change, unless routes exclude it, and is delivered
	// independently: one that is down does not block another.
	Sinks []Sink `mapstructure:"sinks"`
	// Which changes go to which sinks and topics. The first route that matches a change applies; a change without a
	// matching route goes to every sink, to the sink's own topic. See docs/shaping.md.
	Routes []Route `mapstructure:"routes"`
	// The local store of changes not yet delivered and of positions. It must survive restarts.
	Journal Journal `mapstructure:"journal"`
	// How changes are moved to the sinks. Each sink has its own window, rate and retries.
	Delivery Delivery `mapstructure:"delivery"`
	// Attribution of changes to users, from the audit events of the API servers: records of type attributed name the
	// authenticated user. Off unless a source of events is given. See docs/audit-trail.md.
	Audit Audit `mapstructure:"audit"`
	// A replica of positions and known objects in the bus of one sink, so that the exporter survives the loss of its volume
	// and its machine. Off unless a sink is named. See docs/high-availability.md.
	State State `mapstructure:"state"`
	// Several exporters of which one is active and the others are on standby. Off unless a Lease is named; it needs state.
	Election Election `mapstructure:"election"`
	// The HTTP server for metrics, health and the status page.
	Admin Admin `mapstructure:"admin"`
	// The log, on standard error.
	Log Log `mapstructure:"log"`

	// File is the path the configuration was read from, and Hash the first 12 hexadecimal digits of the SHA-256 of its
	// content.
	File, Hash string

	// Warnings are valid settings that are probably mistakes.
	Warnings []Problem

	secrets     []string           // see Secrets
	secretFiles []credentials.File // by path of the key
}

// String returns the numbers of rules and sinks and no values, because passwords are among them.
func (c Config) String() string {
	return fmt.Sprintf("configuration with %d rules and %d sinks", len(c.Resources), len(c.Sinks))
}

// Refuse returns the error of a valid configuration that contradicts what is stored.
func (c *Config) Refuse(path string, p Problem) *Error {
	return &Error{Problems: []Problem{locateProblem(c.File, path, p)}}
}

// LogValue keeps the values out of logs, like String.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// Cluster configures the connection to the API server.
type Cluster struct {
	// Name of the cluster in every change, its ID and its key. Empty: the UID of the kube-system namespace. The first start
	// binds journal and state to it, and an edited name is refused. It must not contain "/".
	Name string `mapstructure:"name"`
	// Path of a kubeconfig file. Empty: $KUBECONFIG, else ~/.kube/config, else, inside a Pod, its service account.
	Kubeconfig string `mapstructure:"kubeconfig"`
	// Context within the kubeconfig. Empty: its current context.
	Context string `mapstructure:"context"`
	// The reaction at start when the API server belongs to another cluster than the one that the journal was filled from,
	// by the UID of the kube-system namespace: fail ends the exporter; fresh discards positions and known objects and
	// starts over, with a gap for every resource.
	OnReplaced string `mapstructure:"onReplaced"`
}

// The values of Cluster.OnReplaced.
const (
	Fail  = "fail"
	Fresh = "fresh"
)

// Resource is one rule: it selects resources and objects, and configures how they are emitted.
type Resource struct {
	// Name of the rule in signals, metrics and conditions: lower-case letters, digits and "-". Only a rule with a name can
	// be paused. The pause belongs to the name, whatever is edited and wherever the rule stands.
	Name string `mapstructure:"name"`
	// Which resources, and which objects of them.
	selection.Rule `mapstructure:",squash"`
	// How their changes are shaped.
	shape.Policy `mapstructure:",squash"`
}

// Redaction configures the redaction of all rules.
type Redaction struct {
	// Key of the hashes that redact: hmac writes, at least 16 bytes, best from a file or a variable. With the key, guesses
	// can be tested; with another key all hashes change.
	Key string `mapstructure:"key"`
	// Whether the types of a rule wait, and are not emitted, while one of its redactPaths is not known to match one of them: by
	// the definition of a custom resource or an OpenAPI document, or where there is neither, by an object. It applies to later
	// edits of a definition too, see docs/shaping.md. Without it, such a path is reported only.
	Strict bool `mapstructure:"strict"`
}

// Sink is one destination. Exactly one of Kafka, NATS, Webhook and Stdout is set.
type Sink struct {
	// Name of the sink in metrics, logs and the journal: lower-case letters, digits and "-". A sink that is renamed
	// in one edit, with the same destination, continues where it was.
	Name string `mapstructure:"name"`
	// Where a sink begins that is added to a journal: snapshot (all existing objects, between the changes from then on),
	// journal (the changes that the journal still holds) or now (the changes from then on). On a first start, snapshot and
	// journal begin with the first list of each resource; now leaves out each first list.
	Start string `json:",omitempty" mapstructure:"start"`
	// Encoding of changes: json, cloudevents (binary mode: attributes in headers), cloudevents-structured,
	// debezium (requires the state before every update, for every sink) or upsert (the object itself, or no value once it
	// is deleted: for compacted topics and key-value buckets). A stdout sink supports json and cloudevents-structured, a
	// webhook the two cloudevents formats.
	Format string `mapstructure:"format"`
	// Handling of a change that is too large for the destination: reduce truncates it step by step and lists the
	// omitted parts; deadLetter keeps the whole change as a dead letter.
	OnOversize string `mapstructure:"onOversize"`
	// How often a control record of each resource marks up to which resourceVersion everything stands before it, with the
	// number of objects and a digest: docs/watermarks.md. At least 1s; 0s: never. Not for topics of Kafka with {namespace},
	// {name} or {type}.
	Watermarks time.Duration `json:",omitempty" mapstructure:"watermarks"`
	// Apache Kafka and compatible brokers.
	Kafka *kafka.Config `mapstructure:"kafka"`
	// NATS JetStream.
	NATS *nats.Config `mapstructure:"nats"`
	// CloudEvents over HTTP to one URL.
	Webhook *webhook.Config `mapstructure:"webhook"`
	// JSON lines on standard output or in a file.
	Stdout *stdout.Config `mapstructure:"stdout"`
	// Where changes that this sink can never deliver are published, in addition to the journal. They carry the reason as
	// deadLetter.
	DeadLetters DeadLetters `mapstructure:"deadLetters"`
}

// The values of Sink.Start.
const (
	StartSnapshot = "snapshot"
	StartJournal  = "journal"
	StartNow      = "now"
)

// The values of Sink.OnOversize.
const (
	Reduce     = "reduce"
	DeadLetter = "deadLetter"
)

// DeadLetters names a topic for dead letters.
type DeadLetters struct {
	// Name of a sink of kafka or nats, which may be this one. Its connection, format and limits apply. Empty: dead letters
	// are kept in the journal only.
	Sink string `mapstructure:"sink"`
	// Template in place of kafka.topic or nats.subject of that sink.
	Topic string `mapstructure:"topic"`
}

// String returns the name of the sink and no other value, because passwords are among them.
func (s Sink) String() string { return "sink " + s.Name }

// LogValue keeps the values out of logs, like String.
func (s Sink) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Journal configures the local store.
type Journal struct {
	// Directory of the journal, created if absent. One process at a time uses it.
	Dir string `mapstructure:"dir"`
	// Bound of the journal on disk: changes for sinks that are behind, known objects, their last states where a rule needs
	// the state before a change, and dead letters. At the bound the exporter stops reading the API server and is not ready
	// until a sink catches up.
	MaxBytes Bytes `mapstructure:"maxBytes"`
	// Bound of the dead letters, at most half of maxBytes. At the bound a permanently rejected change blocks its lane, and
	// the exporter is not ready, until dead letters are discarded.
	MaxDeadLetters Bytes `mapstructure:"maxDeadLetters"`
	// Disk space that stays free, at most a quarter of the disk, or of a small one 40 MiB: below it the exporter stops
	// reading the API server until a sink catches up, so that acknowledgements can still be stored. 0: no reserve.
	Reserve Bytes `mapstructure:"reserve"`
	// How long changes are kept after every sink has delivered them, to send them again when a destination lost
	// acknowledged messages (NATS, after a power loss). They are trimmed early when half of maxBytes is used, or the free
	// disk space falls to reserve. 0s: not at all.
	Keep time.Duration `mapstructure:"keep"`
	// When writes are synced to disk: always (before anything is sent) or interval (every few milliseconds; after a power
	// loss the last ones are watched again).
	Sync string `mapstructure:"sync"`
}

// Delivery configures how changes are moved, per sink.
type Delivery struct {
	// Waits between attempts. Attempts continue until they succeed.
	Retry Retry `mapstructure:"retry"`
	// Bound of the memory for changes on their way to one sink. 0: 16 MiB, and 16 KiB more for each lane, up to 64 MiB.
	Window Bytes `mapstructure:"window"`
	// How long a stop waits for pending deliveries. Undelivered changes stay in the journal.
	DrainTimeout time.Duration `mapstructure:"drainTimeout"`
	// Bound of the changes sent per second.
	Rate Rate `mapstructure:"rate"`
	// When permanently rejected changes become dead letters.
	Rejections Rejections `mapstructure:"rejections"`
}

// Rejections bounds the dead letters of a destination that rejects everything.
type Rejections struct {
	// A destination that has accepted nothing for so long, or nothing yet, makes at most 20 dead letters, and any other 100 in
	// a row; then its changes wait until it accepts one. 0: every rejected change becomes a dead letter.
	Suspect time.Duration `mapstructure:"suspect"`
}

// Retry bounds the exponential back-off.
type Retry struct {
	// Wait after the first failure.
	Min time.Duration `mapstructure:"min"`
	// Longest wait of a lane. A destination that is away as a whole is tried every 5 seconds at least.
	Max time.Duration `mapstructure:"max"`
}

// Rate is a token bucket.
type Rate struct {
	// Changes per second, for each sink. 0: no bound.
	PerSecond float64 `mapstructure:"perSecond"`
	// Changes that may be sent at once after an idle time. 0: as many as perSecond.
	Burst int `mapstructure:"burst"`
}

// Admin configures the HTTP server.
type Admin struct {
	// Address, host:port, of /metrics, /livez, /readyz and the status page. It has no authentication: keep it on
	// loopback or inside the cluster. Port 0 selects a free port. Empty: no server.
	Listen string `mapstructure:"listen"`
	// Signals over this server, for holders of a token. Off without a token. See docs/signals.md.
	Signals AdminSignals `mapstructure:"signals"`
}

// AdminSignals configures signals over the HTTP server.
type AdminSignals struct {
	// Token that requests have as "Authorization: Bearer", at least 16 characters. None: the path of signals does not exist.
	Token credentials.Secret `mapstructure:"token"`
	// Take the token although listen is no loopback address. The server has no TLS: the network between it and its clients is
	// trusted, or they come by kubectl port-forward or a proxy with TLS.
	AllowCleartextCredentials bool `mapstructure:"allowCleartextCredentials"`
}

// Log configures logging.
type Log struct {
	// Lowest level that is written: debug, info, warn or error.
	Level string `mapstructure:"level"`
	// Format of log lines: text or json.
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

// Default returns the defaults of an empty file. They are no valid configuration: resources and sinks have no default.
func Default() Config {
	return Config{
		Cluster: Cluster{OnReplaced: Fail},
		Journal: Journal{Dir: "./data", MaxBytes: 10 << 30, MaxDeadLetters: 1 << 30, Reserve: 512 << 20, Keep: 5 * time.Minute, Sync: "always"},
		Delivery: Delivery{
			Retry:        Retry{Min: 100 * time.Millisecond, Max: 30 * time.Second},
			DrainTimeout: 20 * time.Second,
			Rejections:   Rejections{Suspect: 10 * time.Minute},
		},
		Audit:    Audit{FileEnvelope: "auto", Stamps: Stamps{Grace: 2 * time.Minute}, Settle: 40 * time.Second, Window: 10 * time.Minute, CountersEvery: time.Minute, MaxPending: 64 << 20},
		State:    State{Name: "kubecdc-state"},
		Election: Election{Duration: 5 * time.Second, YieldAfter: 30 * time.Second},
		Admin:    Admin{Listen: "127.0.0.1:8080"},
		Log:      Log{Level: "info", Format: "text"},
	}
}

// SetDefaults sets the defaults of the struct that p points to, before the values of the file are decoded into it. It covers
// the items of lists; [Default] covers everything else. Other types are left unchanged.
func SetDefaults(p any) {
	switch v := p.(type) {
	case *Resource:
		*v = Resource{
			Rule:   selection.Rule{Capture: selection.CaptureFull, OnForbidden: selection.Degrade},
			Policy: shape.Policy{Redact: shape.Mask, HMAC: shape.HashOptions{Scope: "object"}, Before: "none", Changed: "none"},
		}
	case *Sink:
		*v = Sink{Start: StartSnapshot, Format: "json", OnOversize: Reduce}
	}
}
