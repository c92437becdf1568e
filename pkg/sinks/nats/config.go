package nats

import (
	"cmp"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// Config configures a sink. A zero value means the default that is documented at the field; [Config.SetDefaults] fills them
// in.
type Config struct {
	// URL lists the servers, separated by commas: nats://host:4222, tls://, ws://, wss://. Required.
	URL string `mapstructure:"url"`
	// Mode is jetstream (a stream keeps every change; the default) or kv (a key-value bucket keeps the current state).
	Mode string `mapstructure:"mode"`
	// Stream is the JetStream stream that keeps the changes. Required in mode jetstream.
	Stream string `mapstructure:"stream"`
	// Bucket is the key-value bucket. Required in mode kv.
	Bucket string `mapstructure:"bucket"`
	// Subject is the template of subjects, or of keys in mode kv. Required.
	Subject string `mapstructure:"subject"`
	// Routed are the templates of routes, which messages may name. They are no key of the section.
	Routed []string
	// Create configures the creation of a missing stream or bucket. An existing stream is never changed.
	Create Create `mapstructure:"create"`

	// Headers repeats members of the payload as headers. Default false.
	Headers bool `mapstructure:"headers"`

	// Repair purges keys that a snapshot lacks, at its end, in mode kv. Default false.
	Repair bool `mapstructure:"repair"`

	// Lanes that objects hash to while the server refuses a subject: at most 65536. Default 512.
	Lanes int `mapstructure:"lanes"`
	// AckTimeout bounds an answer of the stream, and a connection. Default 5s; 100ms to 1h.
	AckTimeout time.Duration `mapstructure:"ackTimeout"`
	// MaxInFlightBytes bounds the estimated size of all messages in flight. Default 8 MiB.
	MaxInFlightBytes int64 `mapstructure:"maxInFlightBytes"`
	// InboxPrefix is the prefix of reply subjects, for accounts that may not subscribe to _INBOX.>. Default _INBOX.
	InboxPrefix string `mapstructure:"inboxPrefix"`

	// Credentials are a user JWT and its seed, as {file: PATH} of a .creds file.
	Credentials credentials.Secret `mapstructure:"credentials"`
	// NkeySeed is a user nkey seed.
	NkeySeed credentials.Secret `mapstructure:"nkeySeed"`
	// User authenticates, with a password.
	User string `mapstructure:"user"`
	// Password of the user.
	Password credentials.Secret `mapstructure:"password"`
	// Token authenticates by token.
	Token credentials.Secret `mapstructure:"token"`
	// AllowCleartextCredentials permits password and token without TLS, over a trusted network.
	AllowCleartextCredentials bool `mapstructure:"allowCleartextCredentials"`
	// TLS configures TLS; any of its keys enables it.
	TLS TLS `mapstructure:"tls"`
}

// TLS configures a TLS connection. Its files are read again on each connect, so that rotated files take effect.
type TLS struct {
	credentials.TLS `mapstructure:",squash"`
	// HandshakeFirst starts TLS before the server has sent anything, for servers with handshake_first.
	HandshakeFirst bool `mapstructure:"handshakeFirst"`
}

// Create configures the stream to create. It captures exactly the subjects of the templates, and refuses new messages when
// it is full (discard: new): the sink then waits, while discarding the oldest messages would lose changes silently.
type Create struct {
	// Enabled creates a missing stream.
	Enabled bool `mapstructure:"enabled"`
	// Storage is file (the default) or memory.
	Storage string `mapstructure:"storage"`
	// Replicas is 1 (the default) to 5.
	Replicas int `mapstructure:"replicas"`
	// MaxAge is how long messages are kept; 0 means no limit.
	MaxAge time.Duration `mapstructure:"maxAge"`
	// MaxBytes is the size at which the stream refuses messages; 0 means no limit.
	MaxBytes int64 `mapstructure:"maxBytes"`
	// Duplicates is how long the stream recognises a copy, at most MaxAge. Default 2m.
	Duplicates time.Duration `mapstructure:"duplicates"`
}

const (
	defaultLanes            = 512
	maxLanes                = 1 << 16
	defaultAckTimeout       = 5 * time.Second
	defaultMaxInFlightBytes = 8 << 20
	defaultInboxPrefix      = "_INBOX"
	defaultDuplicates       = 2 * time.Minute
	storageFile             = "file"
	storageMemory           = "memory"
)

// Modes of delivery, see [Config.Mode].
const (
	modeJetStream = "jetstream"
	modeKV        = "kv"
)

// Names of NATS key-value buckets (ADR-8): the prefixes of stream and subjects, and the operation and lifetime of a purge
// marker.
const (
	bucketStream   = "KV_"
	bucketSubject  = "$KV."
	operationPurge = "PURGE"
	purgeMarkerTTL = "24h"
)

// SetDefaults sets every zero field that has a default.
func (c *Config) SetDefaults() {
	c.Mode = cmp.Or(c.Mode, modeJetStream)
	c.Lanes = cmp.Or(c.Lanes, defaultLanes)
	c.AckTimeout = cmp.Or(c.AckTimeout, defaultAckTimeout)
	c.MaxInFlightBytes = cmp.Or(c.MaxInFlightBytes, defaultMaxInFlightBytes)
	c.InboxPrefix = cmp.Or(c.InboxPrefix, defaultInboxPrefix)
	c.Create.Storage = cmp.Or(c.Create.Storage, storageFile)
	c.Create.Replicas = cmp.Or(c.Create.Replicas, 1)
	duplicates := defaultDuplicates
	if c.Create.MaxAge > 0 {
		duplicates = min(duplicates, c.Create.MaxAge)
	}
	c.Create.Duplicates = cmp.Or(c.Create.Duplicates, duplicates)
}

// StreamName returns the stream that keeps the changes: that of the bucket in mode kv.
func (c Config) StreamName() string {
	if c.Mode == modeKV {
		return bucketStream + c.Bucket
	}
	return c.Stream
}

// SubjectTemplate returns the template of subjects, with the prefix of the bucket in mode kv.
func (c Config) SubjectTemplate() string {
	if c.Mode == modeKV {
		return bucketSubject + c.Bucket + "." + c.Subject
	}
	return c.Subject
}

// KeepsRows reports whether NATS keeps one value per key, the state of an object: mode kv.
func (c Config) KeepsRows() bool { return c.Mode == modeKV }

// serverHosts returns the addresses in the URL without credentials, for messages.
func (c Config) serverHosts() string {
	var hosts []string
	for address := range strings.SplitSeq(c.URL, ",") {
		if u, err := url.Parse(strings.TrimSpace(address)); err == nil {
			hosts = append(hosts, u.Host)
		}
	}
	return strings.Join(hosts, ", ")
}

// Files returns the files that the sink reads for each connection.
func (c Config) Files() []credentials.File { return c.TLS.Files("nats.tls") }

// fencePrefix returns the prefix of the subjects of fences. No template can give such a subject.
func (c Config) fencePrefix() string {
	if c.Mode == modeKV {
		return bucketSubject + c.Bucket + ".kubecdc.fence."
	}
	return "kubecdc.fence." + c.Stream + "."
}

// fenceSubject returns the subject of the fence of a sink. Other sinks may publish to the same stream.
func (c Config) fenceSubject(claim sinks.Claim) string {
	subject := append(AppendToken([]byte(c.fencePrefix()), cmp.Or(claim.Group, "-")), '.')
	return string(AppendToken(subject, cmp.Or(claim.Sink, "-")))
}

// watermarkPrefix begins the keys of watermarks in a bucket.
const watermarkPrefix = "kubecdc.watermark."

// appendWatermarkSubject appends the subject of a watermark in a bucket: one key for each scope of each cluster. The key has
// three tokens, and keys of objects have five and more, see checkDistinctSubjects.
func (c Config) appendWatermarkSubject(dst []byte, w *event.Change) []byte {
	dst = append(append(append(append(dst, bucketSubject...), c.Bucket...), '.'), watermarkPrefix...)
	dst = append(AppendToken(dst, cmp.Or(w.Cluster, sinks.EmptyValue)), '/')
	dst = append(AppendToken(dst, cmp.Or(w.Resource.Group, "core")), '/')
	dst = AppendToken(dst, w.Resource.Resource)
	if w.Namespace == "" {
		return dst
	}
	return AppendToken(append(dst, '/'), w.Namespace)
}

// streamClient returns a client of the stream that keeps the changes.
func (c Config) streamClient(l *connection.Link) stream.Client {
	return stream.Client{Link: l, Name: c.Stream}
}

// streamConfig returns the settings of a stream to create, for the subjects of pattern.
func (c Config) streamConfig(pattern string) jetstream.StreamConfig {
	s := jetstream.StreamConfig{
		Name: c.Stream, Description: "Changes of Kubernetes objects, by kubecdc", Subjects: []string{pattern},
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage,
		Replicas: c.Create.Replicas, MaxAge: c.Create.MaxAge, MaxBytes: -1, MaxMsgs: -1, MaxConsumers: -1,
		MaxMsgsPerSubject: -1, MaxMsgSize: -1, Duplicates: c.Create.Duplicates, AllowDirect: true,
	}
	if c.Create.Storage == storageMemory {
		s.Storage = jetstream.MemoryStorage
	}
	if c.Create.MaxBytes > 0 {
		s.MaxBytes = c.Create.MaxBytes
	}
	if c.Mode == modeKV { // the same as jetstream.KeyValueConfig of nats.go
		s.Subjects, s.MaxMsgsPerSubject = []string{bucketSubject + c.Bucket + ".>"}, 1
		s.AllowRollup, s.DenyDelete, s.AllowMsgTTL = true, true, true
	}
	return s
}
