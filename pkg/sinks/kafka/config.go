package kafka

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// Config describes a Kafka cluster and how changes are written to it. Zero values of optional fields mean the default
// that is given with the field. Acknowledgement by all in-sync replicas is not an option: without it the promises of
// docs/delivery.md cannot be kept.
type Config struct {
	// Brokers are the addresses to begin with, "host:port"; the rest of the cluster is discovered from any of them.
	Brokers []string `mapstructure:"brokers"`
	// Topic is a template, see docs/kafka.md. Bytes of a value that Kafka does not allow in a topic name are
	// written as "_" and two hexadecimal digits. {type} is refused: it would spread one object over several topics.
	Topic string `mapstructure:"topic"`
	// CreateTopics lets the sink create topics it does not find.
	CreateTopics CreateTopics `mapstructure:"createTopics"`
	// CheckTopics says what to do when a topic that exists has fewer partitions or replicas than createTopics says, or other
	// configs, or may forget what it has acknowledged, or takes small records only: warn (default; one log line for all
	// topics of which the same is true), off or require (its changes wait until it is corrected). Topics are checked when
	// they are first used, where DESCRIBE_CONFIGS allows it.
	CheckTopics string `mapstructure:"checkTopics"`
	// Idempotence gives every partition a producer ID and its records numbers, so that brokers drop copies: true (default).
	// false is a fallback for brokers that give no producer IDs. What is in doubt is sent again then too, one batch at a
	// time, but nothing drops the copy: a lost answer or a crash may repeat the last batch of a partition, and a slow broker
	// may write the copy late.
	Idempotence *bool `mapstructure:"idempotence"`
	// Compression of record batches: zstd (default, fastest level), lz4, snappy, gzip or none.
	Compression string `mapstructure:"compression"`
	// Tombstones writes a record without a value behind each delete in the format debezium, under the same key, as
	// Debezium's connectors do: a compacted topic then forgets the object.
	Tombstones bool `mapstructure:"tombstones"`
	// Repair gives keys that a snapshot lacks their tombstones, at its end: after a lost journal, what was deleted
	// meanwhile. For the format upsert, or debezium with tombstones, and a topic without {namespace} and {name}. Default
	// false.
	Repair bool `mapstructure:"repair"`
	// ClientID is told to the brokers, for their logs and quotas. Default "kubecdc".
	ClientID string `mapstructure:"clientID"`
	// BatchBytes bounds the uncompressed records of one batch, in bytes. A single larger record is a batch of its own.
	// Default 1,000,000, which fits Kafka's default max.message.bytes even when nothing compresses.
	BatchBytes int `mapstructure:"batchBytes"`
	// RequestTimeout bounds one request, connecting included. Default 10s; at least 100ms.
	RequestTimeout time.Duration `mapstructure:"requestTimeout"`
	// TLS of the connections to the brokers.
	TLS auth.TLS `mapstructure:"tls"`
	// SASL authentication.
	SASL auth.SASL `mapstructure:"sasl"`
}

// CreateTopics says how topics are created that do not exist.
type CreateTopics struct {
	// Enabled turns creation on. Off, an unknown topic holds its changes back until someone creates it.
	Enabled bool `mapstructure:"enabled"`
	// Partitions of a created topic; 0 takes the broker's default.
	Partitions int `mapstructure:"partitions"`
	// ReplicationFactor of a created topic; 0 takes the broker's default.
	ReplicationFactor int `mapstructure:"replicationFactor"`
	// Configs are topic settings such as cleanup.policy. A list, not a map: setting names hold dots.
	Configs []TopicConfig `mapstructure:"configs"`
}

// TopicConfig is one setting of a topic.
type TopicConfig struct {
	// Name of the setting, as Kafka has it.
	Name string `mapstructure:"name"`
	// Value of the setting.
	Value string `mapstructure:"value"`
}

const (
	defaultClientID       = "kubecdc"
	defaultCompression    = "zstd"
	defaultBatchBytes     = 1_000_000
	defaultRequestTimeout = 10 * time.Second

	minBatchBytes     = 1 << 10
	minRequestTimeout = 100 * time.Millisecond
)

// isIdempotent says whether records are numbered.
func (c Config) isIdempotent() bool {
	return c.Idempotence == nil || *c.Idempotence
}

// withDefaults returns c with its zero values replaced.
func (c Config) withDefaults() Config {
	c.CheckTopics = cmp.Or(c.CheckTopics, checkWarn)
	c.ClientID = cmp.Or(c.ClientID, defaultClientID)
	c.Compression = cmp.Or(c.Compression, defaultCompression)
	c.BatchBytes = cmp.Or(c.BatchBytes, defaultBatchBytes)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, defaultRequestTimeout)
	return c
}

// Validate reports everything that is wrong with c, joined into one error. Each part begins with the path of the field
// relative to the sink ("kafka.brokers: …") and says what was expected. No secret is in the text. It opens no file and
// no connection.
func (c Config) Validate() error {
	return errors.Join(c.validateBrokers(), c.validateTopic(), c.validateTopics(), c.validateBatches(), c.TLS.Validate(), c.SASL.Validate(), c.validateCleartext())
}

func (c Config) validateBrokers() error {
	if len(c.Brokers) == 0 {
		return errors.New(`kafka.brokers: missing; expected at least one "host:port"`)
	}
	for i, broker := range c.Brokers {
		switch host, port, err := net.SplitHostPort(broker); {
		case strings.ContainsRune(broker, '@'): // not shown: it may hold a password
			return fmt.Errorf(`kafka.brokers[%d]: holds an "@"; expected "host:port", and credentials under kafka.sasl`, i)
		case err != nil || strings.ContainsAny(host, ", \t/"):
			return fmt.Errorf(`kafka.brokers[%d]: %q; expected "host:port"`, i, broker)
		case host == "" || !isPort(port):
			return fmt.Errorf(`kafka.brokers[%d]: %q; expected "host:port" with a port from 1 to 65535`, i, broker)
		case slices.Contains(c.Brokers[:i], broker):
			return fmt.Errorf(`kafka.brokers[%d]: %q is given twice`, i, broker)
		}
	}
	return nil
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// validateCleartext sees to it that nobody's password or token crosses the network readable by mistake. The brokers to
// begin with name others, so that loopback is no excuse.
func (c Config) validateCleartext() error {
	if c.SASL.AllowCleartextCredentials || !c.hasValidCredentials() {
		return nil
	}
	const remedy = "; use TLS, or say kafka.sasl.allowCleartextCredentials: true where the network is trusted"
	var errs []error
	if m := c.SASL.Mechanism; !c.TLS.Enabled && (m == "plain" || m == "oauthbearer") {
		errs = append(errs, fmt.Errorf("kafka.sasl.mechanism: %s without kafka.tls sends the password or token readable%s", m, remedy))
	}
	if u, err := url.Parse(c.SASL.OAuth.TokenURL); err == nil && u.Scheme == "http" && !isLoopback(u.Hostname()) {
		errs = append(errs, errors.New("kafka.sasl.oauth.tokenURL: http:// sends the secret and the token readable"+remedy))
	}
	return errors.Join(errs...)
}

// hasValidCredentials says whether TLS and SASL are valid, and so what is sent.
func (c Config) hasValidCredentials() bool {
	return c.TLS.Validate() == nil && c.SASL.Validate() == nil
}

func isLoopback(host string) bool { return host == "localhost" || net.ParseIP(host).IsLoopback() }

// Files are the files that the sink reads for each connection.
func (c Config) Files() []sinks.File {
	return sinks.NamedFiles(
		sinks.File{Key: "kafka.tls.caFile", Path: c.TLS.CAFile, PEM: true},
		sinks.File{Key: "kafka.tls.certFile", Path: c.TLS.CertFile, PEM: true},
		sinks.File{Key: "kafka.tls.keyFile", Path: c.TLS.KeyFile, PEM: true},
		sinks.File{Key: "kafka.sasl.passwordFile", Path: c.SASL.PasswordFile},
		sinks.File{Key: "kafka.sasl.tokenFile", Path: c.SASL.TokenFile},
		sinks.File{Key: "kafka.sasl.oauth.clientSecretFile", Path: c.SASL.OAuth.ClientSecretFile},
	)
}

func (c Config) validateTopic() error {
	if c.Topic == "" {
		return errors.New(`kafka.topic: missing; expected a name such as "k8s.{group}.{resource}"`)
	}
	t, err := sinks.ParseTemplate(c.Topic)
	if err != nil {
		return fmt.Errorf("kafka.topic: %w", err)
	}
	if t.UsesPlaceholder("type") {
		return errors.New("kafka.topic: {type} would spread the changes of one object over several topics and lose their order; leave it out (the type is in every record and its headers)")
	}
	if err := checkTopicName(t.AppendName(nil, &event.Change{}, appendEscaped)); err != nil {
		return fmt.Errorf("kafka.topic: %q: %w", c.Topic, err)
	}
	return c.validateRepair(t)
}

func (c Config) validateRepair(t *sinks.Template) error {
	switch {
	case !c.Repair:
		return nil
	case !c.isIdempotent():
		return errors.New("kafka.repair: true, without kafka.idempotence: a tombstone that is late could hide a newer object; set one of them")
	case t.UsesPlaceholder("namespace") || t.UsesPlaceholder("name"):
		return fmt.Errorf("kafka.repair: true, and kafka.topic is %q; with {namespace} or {name} it is not known which topics have deleted objects", c.Topic)
	}
	return nil
}

func (c Config) validateTopics() error {
	off := false
	switch c.CheckTopics {
	case "", checkOff:
		off = true
	case checkWarn, checkRequire:
	default:
		return fmt.Errorf("kafka.checkTopics: %q; expected off, warn or require", c.CheckTopics)
	}
	if t := c.CreateTopics; off && !t.Enabled && (t.Partitions != 0 || t.ReplicationFactor != 0 || len(t.Configs) != 0) {
		return errors.New("kafka.createTopics.enabled: false, but other settings of kafka.createTopics are given; set it to true, or kafka.checkTopics, or remove them")
	}
	return c.CreateTopics.validateSettings()
}

func (c CreateTopics) validateSettings() error {
	if c.Partitions < 0 || c.Partitions > 100_000 {
		return fmt.Errorf("kafka.createTopics.partitions: %d; expected 1 to 100000, or 0 for the broker's default", c.Partitions)
	}
	if c.ReplicationFactor < 0 || c.ReplicationFactor > 1<<15-1 {
		return fmt.Errorf("kafka.createTopics.replicationFactor: %d; expected 1 or more, or 0 for the broker's default", c.ReplicationFactor)
	}
	for i, entry := range c.Configs {
		if entry.Name == "" {
			return fmt.Errorf("kafka.createTopics.configs[%d].name: missing; expected a topic setting such as cleanup.policy", i)
		}
	}
	return nil
}

func (c Config) validateBatches() error {
	var errs []error
	if _, ok := record.Codecs[c.withDefaults().Compression]; !ok {
		errs = append(errs, fmt.Errorf("kafka.compression: %q; expected zstd, lz4, snappy, gzip or none", c.Compression))
	}
	if b := c.BatchBytes; b != 0 && (b < minBatchBytes || b > record.MaxBatchBytes) {
		errs = append(errs, fmt.Errorf("kafka.batchBytes: %d; expected %d to %d", b, minBatchBytes, record.MaxBatchBytes))
	}
	if d := c.RequestTimeout; d != 0 && d < minRequestTimeout {
		errs = append(errs, fmt.Errorf("kafka.requestTimeout: %v; expected at least %v", d, minRequestTimeout))
	}
	return errors.Join(errs...)
}
