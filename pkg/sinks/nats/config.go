package nats

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
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

// Validate checks everything that does not need files or the network, with defaults in place of zero values. Each of the
// joined errors names the path of its field. None contains a secret.
func (c Config) Validate() error {
	c.SetDefaults()
	return errors.Join(
		atPath("url", c.validateURL()),
		atPath("url", c.validateCleartext()),
		c.validateMode(),
		atPath("subject", c.validateSubject()),
		atPath("lanes", sinks.CheckRange(c.Lanes, 1, maxLanes)),
		atPath("ackTimeout", sinks.CheckTimeout(c.AckTimeout, minAckTimeout, maxAckTimeout)),
		atPath("maxInFlightBytes", checkPositive(c.MaxInFlightBytes)),
		atPath("inboxPrefix", validateLiteral(c.InboxPrefix)),
		c.validateAuthentication(),
		atPath("create.storage", checkOneOf(c.Create.Storage, storageFile, storageMemory)),
		atPath("create.replicas", sinks.CheckRange(c.Create.Replicas, 1, 5)),
		atPath("create.maxAge", checkLimit(c.Create.MaxAge, time.Second)),
		atPath("create.maxBytes", checkLimit(c.Create.MaxBytes, minStreamBytes)),
		atPath("create.duplicates", c.validateDuplicates()),
	)
}

// atPath prefixes an error with the path of its field.
func atPath(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("nats.%s: %w", path, err)
}

func (c Config) validateURL() error {
	if c.URL == "" {
		return errors.New("required; for example nats://127.0.0.1:4222")
	}
	for i, address := range strings.Split(c.URL, ",") {
		u, err := url.Parse(strings.TrimSpace(address))
		if err != nil || u.Host == "" { // the address itself is not shown: it may hold a password
			return fmt.Errorf("address %d is not of the form nats://host:port", i+1)
		}
		if err := checkOneOf(u.Scheme, "nats", "tls", "ws", "wss"); err != nil {
			return fmt.Errorf("address %d: scheme: %w", i+1, err)
		}
		if !sinks.IsPort(cmp.Or(u.Port(), "4222")) || u.Hostname() == "" {
			return fmt.Errorf("address %d is not of the form nats://host:port, with a port from 1 to 65535", i+1)
		}
		if err := sinks.CheckHost(u.Hostname()); err != nil {
			return fmt.Errorf("address %d: %w", i+1, err)
		}
	}
	return nil
}

// validateCleartext refuses to send a password or token in cleartext without allowCleartextCredentials. A loopback address
// is no exception, because a server may announce others to connect to. Seeds and .creds files only sign a challenge.
func (c Config) validateCleartext() error {
	isValid := c.validateURL() == nil // else that is the error
	if c.AllowCleartextCredentials || c.TLS != (TLS{}) || !isValid {
		return nil
	}
	for i, address := range strings.Split(c.URL, ",") {
		u, err := url.Parse(strings.TrimSpace(address))
		if err != nil || u.Scheme == "tls" || u.Scheme == "wss" || u.User == nil && c.Password == (credentials.Secret{}) && c.Token == (credentials.Secret{}) {
			continue
		}
		return fmt.Errorf("address %d sends the password or token in cleartext; write tls://, use credentials or nkeySeed, or "+
			"set nats.allowCleartextCredentials: true if the network is trusted", i+1)
	}
	return nil
}

// validateName refuses a name with a character that is illegal by a rule; missing is the error if there is no name.
func validateName(name, missing string, illegal func(rune) bool, rule string) error {
	if name == "" {
		return errors.New(missing)
	}
	if i := strings.IndexFunc(name, illegal); i >= 0 {
		return fmt.Errorf("%q has %q at position %d; %s", name, name[i], i+1, rule)
	}
	return nil
}

func (c Config) validateSubject() error {
	if c.Subject == "" {
		return errors.New("required; for example k8s.{cluster}.{group}.{resource}.{namespace}.{name}")
	}
	template, err := sinks.ParseTemplate(c.Subject)
	if err != nil {
		return err
	}
	filled := string(template.AppendName(nil, &sampleChange, func(dst []byte, _ string) []byte { return append(dst, 'x') }))
	if err := validateLiteral(filled); err != nil {
		return err
	}
	if i := strings.IndexFunc(filled, func(r rune) bool { return !strings.ContainsRune("/=.", r) && !isPlainByte(byte(r)) }); c.Mode == modeKV && i >= 0 {
		return fmt.Errorf("%q has %q, which a key cannot have; legal are letters, digits and the signs -/_=. only", c.Subject, filled[i])
	}
	if c.Mode == modeKV {
		return checkDistinctSubjects(c.Subject, "mode kv")
	}
	return nil
}

// checkDistinctSubjects checks that no two objects, of any clusters, can share a subject. user names the setting that
// requires it.
func checkDistinctSubjects(template, user string) error {
	tokens := strings.Split(template, ".")
	for _, need := range [][]string{{"{cluster}"}, {"{group}"}, {"{resource}", "{kind}"}, {"{namespace}"}, {"{name}"}} {
		if !slices.ContainsFunc(need, func(placeholder string) bool { return slices.Contains(tokens, placeholder) }) {
			return fmt.Errorf("%q does not give each object a subject of its own, which %s needs; write %s between dots",
				template, user, strings.Join(need, " or "))
		}
	}
	return nil
}

// validateLiteral checks that s is a subject without wildcards. The client and the server accept more: "a.*" is stored under
// exactly that name, and "a..b" gets no answer.
func validateLiteral(s string) error {
	if strings.HasPrefix(s, "$") {
		return fmt.Errorf("%q begins with $, which is the server's own", s)
	}
	for token := range strings.SplitSeq(s, ".") {
		if token == "" {
			return fmt.Errorf("%q has an empty token; write no dot at the ends and no two in a row", s)
		}
	}
	if i := strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '*' || r == '>' }); i >= 0 {
		return fmt.Errorf("%q has a blank, a wildcard or a character that is not ASCII: %q", s, s[i:i+1])
	}
	return nil
}

func (c Config) validateAuthentication() error {
	var ways []string
	none := credentials.Secret{}
	for _, way := range []struct {
		name string
		set  bool
	}{
		{"credentials", c.Credentials != none}, {"nkeySeed", c.NkeySeed != none},
		{"user", c.User != "" || c.Password != none}, {"token", c.Token != none},
	} {
		if way.set {
			ways = append(ways, way.name)
		}
	}
	var errs []error
	if len(ways) > 1 {
		errs = append(errs, atPath(ways[1], fmt.Errorf("%s is set too; use one way to authenticate", ways[0])))
	}
	if (c.User == "") != (c.Password == none) {
		errs = append(errs, atPath("user", errors.New("user and password belong together; set both or none")))
	}
	errs = append(errs, atPath("tls.cert", c.TLS.Validate()))
	if text, _ := c.Credentials.Read(); c.Credentials.Path() == "" && text != "" && !strings.Contains(text, "-----BEGIN NATS USER JWT-----") {
		errs = append(errs, atPath("credentials", errors.New("no user JWT with its seed; expected {file: PATH} of a .creds file")))
	}
	if _, err := c.readNkey(); c.NkeySeed.Path() == "" && c.NkeySeed != none && err != nil {
		errs = append(errs, atPath("nkeySeed", errors.New("no seed of a user nkey; expected {file: PATH}, or a text that begins with SU")))
	}
	return errors.Join(errs...)
}

const (
	minAckTimeout = 100 * time.Millisecond // below it no server over a network can acknowledge
	maxAckTimeout = time.Hour              // a server that hangs is noticed only then
)

func (c Config) validateDuplicates() error {
	if err := checkPositive(c.Create.Duplicates); err != nil {
		return err
	}
	if c.Create.MaxAge > 0 && c.Create.Duplicates > c.Create.MaxAge {
		return fmt.Errorf("%v is longer than maxAge, %v; the server refuses that", c.Create.Duplicates, c.Create.MaxAge)
	}
	return nil
}

func checkPositive[T int64 | time.Duration](v T) error {
	if v <= 0 {
		return fmt.Errorf("%v is not positive", v)
	}
	return nil
}

// minStreamBytes is the least limit of a stream that holds a large object.
const minStreamBytes int64 = 1 << 20

// checkLimit checks a limit of which 0 is none.
func checkLimit[T int64 | time.Duration](v, least T) error {
	if v != 0 && v < least {
		return fmt.Errorf("%v keeps nothing; expected at least %v, or 0 for no limit", v, least)
	}
	return nil
}

func checkOneOf(v string, allowed ...string) error {
	if !slices.Contains(allowed, v) {
		return fmt.Errorf("%q is not one of %s", v, strings.Join(allowed, ", "))
	}
	return nil
}

// validateMode checks the settings that the mode requires and those that have no effect in it.
func (c Config) validateMode() error {
	unused := func(path string, set bool, why string) error {
		if !set {
			return nil
		}
		return atPath(path, fmt.Errorf("has no effect in mode %s: %s", c.Mode, why))
	}
	switch c.Mode {
	case modeJetStream:
		name := validateName(c.Stream, "required; the name of a JetStream stream", func(r rune) bool {
			return r <= ' ' || r == 0x7f || strings.ContainsRune(`.*>/\`, r)
		}, `a stream name has no blanks and none of . * > / \`)
		return errors.Join(unused("repair", c.Repair, "it is for mode kv"), atPath("stream", name),
			unused("bucket", c.Bucket != "", "it is for mode kv"))
	case modeKV:
		name := validateName(c.Bucket, "required in mode kv; the name of a key-value bucket", isIllegalInName,
			"a bucket's name has letters, digits, _ and - only")
		err := errors.Join(atPath("bucket", name), unused("stream", c.Stream != "", "the bucket has its own"))
		if c.Create.MaxAge != 0 {
			err = errors.Join(err, atPath("create.maxAge", errors.New("objects that do not change would disappear from the bucket; "+
				"leave it out in mode kv")))
		}
		return err
	case "core":
		return atPath("mode", errors.New(`"core" is no mode any more, since it kept nothing; name a stream, or a bucket with mode kv`))
	}
	return atPath("mode", checkOneOf(c.Mode, modeJetStream, modeKV))
}
