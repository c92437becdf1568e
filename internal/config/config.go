package config

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks/history"
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
	// The rules that select resources, at least one. The first rule that selects a resource applies to it.
	Resources []Resource `mapstructure:"resources"`
	// Redaction of all rules.
	Redaction Redaction `mapstructure:"redaction"`
	// The destinations, at least one. Each gets every change, unless routes exclude it, and none blocks another.
	Sinks []Sink `mapstructure:"sinks"`
	// Which changes go to which sinks and topics: the first route that matches applies; without one a change goes to every
	// sink. See docs/shaping.md.
	Routes []Route `mapstructure:"routes"`
	// The store of changes that are not delivered yet, and of positions. It must survive restarts.
	Journal Journal `mapstructure:"journal"`
	// How changes are moved. Each sink has its own window and retries.
	Delivery Delivery `mapstructure:"delivery"`
	// Records of type attributed, which name the authenticated user of a change. Off unless a source is given. See
	// docs/audit-trail.md.
	Audit Audit `mapstructure:"audit"`
	// A replica of positions and known objects in the bus of one sink, with which an exporter survives its machine. Off
	// unless a sink is named. See docs/high-availability.md.
	State State `mapstructure:"state"`
	// Several exporters, of which one is active. Off unless a Lease is named; it needs state.
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
	// Name of the cluster in changes, IDs and keys, without "/". Empty: the UID of kube-system. Journal and state are bound
	// to it.
	Name string `mapstructure:"name"`
	// A kubeconfig file. Empty: $KUBECONFIG, else ~/.kube/config, else the service account of the Pod.
	Kubeconfig string `mapstructure:"kubeconfig"`
	// Context within the kubeconfig. Empty: its current context.
	Context string `mapstructure:"context"`
	// What happens when another cluster answers: fail ends the exporter; fresh begins again, with a gap for every resource.
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
	// be paused.
	Name string `mapstructure:"name"`
	// Which resources, and which objects of them.
	selection.Rule `mapstructure:",squash"`
	// How their changes are shaped.
	shape.Policy `mapstructure:",squash"`
}

// Redaction configures the redaction of all rules.
type Redaction struct {
	// Key of the hashes of redact: hmac, at least 16 bytes, from a file or a variable.
	Key string `mapstructure:"key"`
	// Whether the types of a rule wait while one of its redactPaths is not known to match. See docs/shaping.md.
	Strict bool `mapstructure:"strict"`
}

// Sink is one destination. Exactly one of Kafka, NATS, Webhook, Stdout and History is set.
type Sink struct {
	// Name of the sink in metrics, logs and the journal: lower-case letters, digits and "-".
	Name string `mapstructure:"name"`
	// Where an added sink begins: snapshot (all existing objects), journal (the changes that it still holds) or now,
	// without a first list. See docs/reload.md.
	Start string `json:",omitempty" mapstructure:"start"`
	// Encoding of changes: json, cloudevents, cloudevents-structured, debezium (stores states in every rule) or upsert.
	// stdout takes json and cloudevents-structured, a webhook the cloudevents formats, a history none.
	Format string `mapstructure:"format"`
	// Of debezium in Kafka: inline or registry, see docs/events-reference.md.
	Schema string `json:",omitempty" mapstructure:"schema"`
	// Of debezium and upsert: whether control records, which have no value there, are left out, as with schema.
	RowsOnly bool `json:",omitempty" mapstructure:"rowsOnly"`
	// What happens to a change that is too large: reduce leaves out parts and lists them; deadLetter keeps it whole.
	OnOversize string `mapstructure:"onOversize"`
	// How often a record marks up to which version each resource is complete, at least 1s; 0s: never. See
	// docs/watermarks.md.
	Watermarks time.Duration `json:",omitempty" mapstructure:"watermarks"`
	// Apache Kafka and compatible brokers.
	Kafka *kafka.Config `mapstructure:"kafka"`
	// NATS JetStream.
	NATS *nats.Config `mapstructure:"nats"`
	// CloudEvents over HTTP to one URL.
	Webhook *webhook.Config `mapstructure:"webhook"`
	// JSON lines on standard output or in a file.
	Stdout *stdout.Config `mapstructure:"stdout"`
	// A folder of Parquet files that answers what changed, and what was at a time: docs/history.md. Every rule then describes
	// updates as changed: values does, for every sink.
	History *history.Config `mapstructure:"history"`
	// Where dead letters of this sink are published, in addition to the journal, with the reason as deadLetter.
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
	// A sink of kafka or nats, which may be this one. Empty: dead letters are kept in the journal only.
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
	// Directory of the journal, created if absent, for one process at a time.
	Dir string `mapstructure:"dir"`
	// Bound of the journal on disk. At the bound the API server is not read, and the exporter is not ready.
	MaxBytes Bytes `mapstructure:"maxBytes"`
	// Bound of the dead letters, at most half of maxBytes. At the bound a rejected change blocks its lane.
	MaxDeadLetters Bytes `mapstructure:"maxDeadLetters"`
	// Disk space that stays free for acknowledgements: below it the API server is not read. 0: none.
	Reserve Bytes `mapstructure:"reserve"`
	// How long delivered changes are kept, to send again what a destination lost; shorter when half of maxBytes is used.
	// 0s: not at all.
	Keep time.Duration `mapstructure:"keep"`
	// When writes are synced: always (before anything is sent) or interval (every few milliseconds).
	Sync string `mapstructure:"sync"`
}

// Delivery configures how changes are moved, per sink.
type Delivery struct {
	// Waits between attempts. Attempts continue until they succeed.
	Retry Retry `mapstructure:"retry"`
	// Bound of the memory for changes on their way to one sink. 0: 16 MiB, and 16 KiB for each lane, up to 64 MiB.
	Window Bytes `mapstructure:"window"`
	// How long a stop waits for pending deliveries. Undelivered changes stay in the journal.
	DrainTimeout time.Duration `mapstructure:"drainTimeout"`
	// When permanently rejected changes become dead letters.
	Rejections Rejections `mapstructure:"rejections"`
}

// Rejections bounds the dead letters of a destination that rejects everything.
type Rejections struct {
	// A destination that accepted nothing for so long makes at most 20 dead letters, any other 100 in a row; then changes
	// wait. 0: every rejected change is one.
	Suspect time.Duration `mapstructure:"suspect"`
}

// Retry bounds the exponential back-off.
type Retry struct {
	// Wait after the first failure.
	Min time.Duration `mapstructure:"min"`
	// Longest wait of a lane. A destination that is away is tried every 5 seconds at least.
	Max time.Duration `mapstructure:"max"`
}

// Admin configures the HTTP server.
type Admin struct {
	// Address, host:port, of metrics, health and status page, without authentication. Port 0: a free one. Empty: no server.
	Listen string `mapstructure:"listen"`
	// Signals over this server, for holders of a token. Off without a token. See docs/signals.md.
	Signals AdminSignals `mapstructure:"signals"`
}

// AdminSignals configures signals over the HTTP server.
type AdminSignals struct {
	// Token that requests have as "Authorization: Bearer", at least 16 characters. None: no signals here.
	Token credentials.Secret `mapstructure:"token"`
	// Take the token though listen is no loopback address and the server has no TLS: the network is trusted, or clients
	// come by kubectl port-forward or a proxy with TLS.
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
		Audit:    Audit{Stamps: Stamps{Grace: 2 * time.Minute}, Settle: 40 * time.Second, Window: 10 * time.Minute, CountersEvery: time.Minute, MaxPending: 64 << 20},
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
