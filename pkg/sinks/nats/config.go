package nats

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Config says where and how to deliver. Zero values mean the defaults written at each field; [Config.SetDefaults] fills
// them in.
type Config struct {
	// URL lists the servers, separated by commas: nats://host:4222, tls://, ws://, wss://. Required.
	URL string `mapstructure:"url"`
	// Mode is jetstream (the default: a stream keeps every change and acknowledges it), kv (a key-value bucket keeps the
	// current state, one key an object) or core (nothing is kept: who does not listen misses it).
	Mode string `mapstructure:"mode"`
	// Stream is the JetStream stream that keeps the changes. Required in mode jetstream.
	Stream string `mapstructure:"stream"`
	// Bucket is the key-value bucket. Required in mode kv.
	Bucket string `mapstructure:"bucket"`
	// Subject is the template of subjects, for example k8s.{cluster}.{group}.{resource}.{namespace}.{name}, and of the keys
	// in mode kv. Required.
	Subject string `mapstructure:"subject"`
	// Routed are further templates, which messages may name. They are no key of the section: routes name them.
	Routed []string
	// Create makes the stream or bucket if it is missing. An existing stream is never changed.
	Create Create `mapstructure:"create"`

	// Exact says not to deliver at all where changes could be there twice after an outage, because the stream takes no
	// batches (allow_batched, nats-server 2.14) or has other writers. Default false.
	Exact bool `mapstructure:"exact"`
	// Headers says to repeat in headers what the payload says: Kubecdc-Id, Kubecdc-Type and others, for consumers that do
	// not read it. Default false.
	Headers bool `mapstructure:"headers"`

	// Repair purges keys that a snapshot lacks from the bucket, at its end: after a lost journal, what was deleted
	// meanwhile. Only in mode kv. Default false.
	Repair bool `mapstructure:"repair"`

	// Lanes is the number of lanes that objects hash to while some subject may not be published to, so that only what shares
	// its lane waits. Default 512, at most 65536.
	Lanes int `mapstructure:"lanes"`
	// AckTimeout is how long to wait for the stream's answer, and for a connection. Default 5s.
	AckTimeout time.Duration `mapstructure:"ackTimeout"`
	// MaxInFlightBytes bounds the estimated size of all messages waiting for their answers. Default 8 MiB.
	MaxInFlightBytes int64 `mapstructure:"maxInFlightBytes"`
	// InboxPrefix is the subject prefix of the answers, for accounts that may not subscribe to _INBOX.>. Default _INBOX.
	InboxPrefix string `mapstructure:"inboxPrefix"`

	// Credentials is the path of a file with a user JWT and its seed (.creds), read again on each connect.
	Credentials string `mapstructure:"credentials"`
	// NkeySeed is the path of a file with a user nkey seed, read again on each connect.
	NkeySeed string `mapstructure:"nkeySeed"`
	// User authenticates, with a password.
	User string `mapstructure:"user"`
	// Password of the user.
	Password string `mapstructure:"password"`
	// Token authenticates by token.
	Token string `mapstructure:"token"`
	// AllowCleartextCredentials says that whoever sees the network may read password and token: without it they need tls://
	// or wss:// in every address, or tls.
	AllowCleartextCredentials bool `mapstructure:"allowCleartextCredentials"`
	// TLS names files; any of them switches TLS on.
	TLS TLS `mapstructure:"tls"`
}

// TLS names the files of a TLS connection. They are read again on each connect, so that rotated ones are taken up.
type TLS struct {
	// CA is a file of PEM certificates to trust instead of the system's.
	CA string `mapstructure:"ca"`
	// Cert is the file of a client certificate, with Key: both or none.
	Cert string `mapstructure:"cert"`
	// Key is the file of the key of Cert.
	Key string `mapstructure:"key"`
}

// Create describes the stream to make. It captures exactly the subjects the template can give, and refuses new messages
// when it is full (discard: new): the sink then waits, where discarding the oldest would lose changes silently.
type Create struct {
	// Enabled says to create the stream if it is missing.
	Enabled bool `mapstructure:"enabled"`
	// Storage is file (the default) or memory.
	Storage string `mapstructure:"storage"`
	// Replicas is 1 (the default) to 5.
	Replicas int `mapstructure:"replicas"`
	// MaxAge is how long messages are kept; 0 means for ever.
	MaxAge time.Duration `mapstructure:"maxAge"`
	// MaxBytes is how much the stream may hold before it refuses messages; 0 means no limit.
	MaxBytes int64 `mapstructure:"maxBytes"`
	// Duplicates is how long the stream recognises a repeated message. Default 2m, or MaxAge if that is shorter.
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

// SetDefaults fills in the default of every field that is zero and has one.
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

// Validate checks everything that can be known without files and network, with defaults in the place of zero values.
// Each of the joined errors names the path of its field. None holds a secret.
func (c Config) Validate() error {
	c.SetDefaults()
	return errors.Join(
		atPath("url", c.validateURL()),
		atPath("url", c.validateCleartext()),
		c.validateMode(),
		atPath("subject", c.validateSubject()),
		atPath("lanes", checkRange(c.Lanes, 1, maxLanes)),
		atPath("ackTimeout", checkPositive(c.AckTimeout)),
		atPath("maxInFlightBytes", checkPositive(c.MaxInFlightBytes)),
		atPath("inboxPrefix", validateLiteral(c.InboxPrefix)),
		c.validateAuthentication(),
		atPath("create.storage", checkOneOf(c.Create.Storage, storageFile, storageMemory)),
		atPath("create.replicas", checkRange(c.Create.Replicas, 1, 5)),
		atPath("create.maxAge", checkNotNegative(c.Create.MaxAge)),
		atPath("create.maxBytes", checkNotNegative(c.Create.MaxBytes)),
		atPath("create.duplicates", c.validateDuplicates()),
	)
}

// atPath puts the path of a field in front of its error.
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
		if n, err := strconv.ParseUint(cmp.Or(u.Port(), "4222"), 10, 16); err != nil || n == 0 || u.Hostname() == "" {
			return fmt.Errorf("address %d is not of the form nats://host:port, with a port from 1 to 65535", i+1)
		}
	}
	return nil
}

// serverHosts are the addresses in the URL, for messages, without what it may hold beside them.
func (c Config) serverHosts() string {
	var hosts []string
	for address := range strings.SplitSeq(c.URL, ",") {
		if u, err := url.Parse(strings.TrimSpace(address)); err == nil {
			hosts = append(hosts, u.Host)
		}
	}
	return strings.Join(hosts, ", ")
}

func (c Config) hasURL() bool { return c.validateURL() == nil }

// validateCleartext sees to it that no password or token crosses the network readable by mistake. A server names others
// to connect to, so that loopback is no excuse. Seeds and .creds files sign a challenge and are never sent.
func (c Config) validateCleartext() error {
	if c.AllowCleartextCredentials || c.TLS != (TLS{}) || !c.hasURL() {
		return nil
	}
	for i, address := range strings.Split(c.URL, ",") {
		u, err := url.Parse(strings.TrimSpace(address))
		if err != nil || u.Scheme == "tls" || u.Scheme == "wss" || u.User == nil && c.Password == "" && c.Token == "" {
			continue
		}
		return fmt.Errorf("address %d sends the password or token readable; write tls://, use credentials or nkeySeed, or say "+
			"nats.allowCleartextCredentials: true where the network is trusted", i+1)
	}
	return nil
}

// Files are the files that the sink reads for each connection.
func (c Config) Files() []sinks.File {
	return sinks.NamedFiles(
		sinks.File{Key: "nats.credentials", Path: c.Credentials}, sinks.File{Key: "nats.nkeySeed", Path: c.NkeySeed},
		sinks.File{Key: "nats.tls.ca", Path: c.TLS.CA, PEM: true}, sinks.File{Key: "nats.tls.cert", Path: c.TLS.Cert, PEM: true},
		sinks.File{Key: "nats.tls.key", Path: c.TLS.Key, PEM: true},
	)
}

func validateStream(name string) error {
	if name == "" {
		return errors.New("required; the name of a JetStream stream")
	}
	if i := strings.IndexFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`.*>/\`, r) }); i >= 0 {
		return fmt.Errorf(`%q has %q at position %d; a stream name has no blanks and none of . * > / \`, name, name[i], i+1)
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

// checkDistinctSubjects checks that no two objects can share a subject.
func checkDistinctSubjects(template, who string) error {
	tokens := strings.Split(template, ".")
	for _, need := range [][]string{{"{group}"}, {"{resource}", "{kind}"}, {"{namespace}"}, {"{name}"}} {
		if !slices.ContainsFunc(need, func(placeholder string) bool { return slices.Contains(tokens, placeholder) }) {
			return fmt.Errorf("%q does not give each object a subject of its own, which %s needs; write %s between dots",
				template, who, strings.Join(need, " or "))
		}
	}
	return nil
}

// validateLiteral checks that s is a subject without wildcards that JetStream may store. The client and the server let
// more pass: "a.*" is stored under just that name, and "a..b" gets no answer.
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
	for _, way := range []struct {
		name string
		set  bool
	}{
		{"credentials", c.Credentials != ""}, {"nkeySeed", c.NkeySeed != ""},
		{"user", c.User != "" || c.Password != ""}, {"token", c.Token != ""},
	} {
		if way.set {
			ways = append(ways, way.name)
		}
	}
	var errs []error
	if len(ways) > 1 {
		errs = append(errs, atPath(ways[1], fmt.Errorf("%s is set too; use one way to authenticate", ways[0])))
	}
	if (c.User == "") != (c.Password == "") {
		errs = append(errs, atPath("user", errors.New("user and password belong together; set both or none")))
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		errs = append(errs, atPath("tls.cert", errors.New("cert and key belong together; set both or none")))
	}
	return errors.Join(errs...)
}

func (c Config) validateDuplicates() error {
	if err := checkPositive(c.Create.Duplicates); err != nil {
		return err
	}
	if c.Create.MaxAge > 0 && c.Create.Duplicates > c.Create.MaxAge {
		return fmt.Errorf("%v is longer than maxAge, %v; the server refuses that", c.Create.Duplicates, c.Create.MaxAge)
	}
	return nil
}

func checkRange(n, low, high int) error {
	if n < low || n > high {
		return fmt.Errorf("%d is not between %d and %d", n, low, high)
	}
	return nil
}

func checkPositive[T int64 | time.Duration](v T) error {
	if v <= 0 {
		return fmt.Errorf("%v is not positive", v)
	}
	return nil
}

func checkNotNegative[T int64 | time.Duration](v T) error {
	if v < 0 {
		return fmt.Errorf("%v is negative", v)
	}
	return nil
}

func checkOneOf(v string, allowed ...string) error {
	if !slices.Contains(allowed, v) {
		return fmt.Errorf("%q is not one of %s", v, strings.Join(allowed, ", "))
	}
	return nil
}

// streamConfig returns the configuration of the stream to create, for the subjects of pattern.
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
	if c.Mode == modeKV { // as nats.go's jetstream.KeyValueConfig makes it
		s.Subjects, s.MaxMsgsPerSubject = []string{bucketSubject + c.Bucket + ".>"}, 1
		s.AllowRollup, s.DenyDelete, s.AllowMsgTTL = true, true, true
	}
	return s
}
