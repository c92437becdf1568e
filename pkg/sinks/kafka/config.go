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

	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// Config describes a Kafka cluster and how changes are written to it. The zero value of an optional field means its default.
// Acknowledgement by all in-sync replicas is not configurable: without it the guarantees of docs/delivery.md do not hold.
type Config struct {
	// Brokers are the bootstrap addresses, "host:port"; the other brokers are discovered from any of them.
	Brokers []string `mapstructure:"brokers"`
	// Topic is a template, without {type}. See docs/kafka.md.
	Topic string `mapstructure:"topic"`
	// CreateTopics creates topics that do not exist.
	CreateTopics CreateTopics `mapstructure:"createTopics"`
	// CheckTopics looks for settings of topics that lose records or refuse large ones: warn (default), require (their
	// changes wait) or off. It needs DESCRIBE_CONFIGS.
	CheckTopics string `mapstructure:"checkTopics"`
	// Idempotence numbers records, so that brokers drop copies. Default true. false is for brokers without producer IDs,
	// and may repeat a batch.
	Idempotence *bool `mapstructure:"idempotence"`
	// Compression of batches: zstd, lz4, snappy, gzip or none. Default: zstd, or what a broker takes.
	Compression string `mapstructure:"compression"`
	// Tombstones writes a record without a value after each delete in the format debezium.
	Tombstones bool `mapstructure:"tombstones"`
	// Repair deletes rows that a snapshot lacks, in the format upsert, or debezium with tombstones. Default false.
	Repair bool `mapstructure:"repair"`
	// ClientID identifies the exporter in the logs and quotas of the brokers. Default "kubecdc".
	ClientID string `mapstructure:"clientID"`
	// BatchBytes bounds the uncompressed records of one batch; a larger record is a batch of its own. Default 1,000,000.
	BatchBytes int `mapstructure:"batchBytes"`
	// RequestTimeout bounds one request, including the connection. Default 10s; 100ms to 1h.
	RequestTimeout time.Duration `mapstructure:"requestTimeout"`
	// TLS of the connections to the brokers.
	TLS auth.TLS `mapstructure:"tls"`
	// SASL authentication.
	SASL auth.SASL `mapstructure:"sasl"`
	// Registry of schemas, for schema: registry.
	Registry Registry `json:",omitzero" mapstructure:"registry"`
}

// CreateTopics describes topics that the sink creates.
type CreateTopics struct {
	// Enabled turns creation on; otherwise the changes of a missing topic wait.
	Enabled bool `mapstructure:"enabled"`
	// Partitions of a created topic; 0: the default of the broker.
	Partitions int `mapstructure:"partitions"`
	// ReplicationFactor of a created topic; 0: the default of the broker.
	ReplicationFactor int `mapstructure:"replicationFactor"`
	// Configs are topic settings such as cleanup.policy.
	Configs []TopicConfig `mapstructure:"configs"`
}

// TopicConfig is one setting of a topic.
type TopicConfig struct {
	// Name of the setting in Kafka.
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
	maxRequestTimeout = time.Hour // a broker that hangs is noticed only then

	maxReplicas = 1000 // no cluster has as many brokers, each of which holds one replica at most
)

func (c Config) isIdempotent() bool {
	return c.Idempotence == nil || *c.Idempotence
}

func (c Config) withDefaults() Config {
	c.CheckTopics = cmp.Or(c.CheckTopics, checkWarn)
	c.ClientID = cmp.Or(c.ClientID, defaultClientID)
	c.Compression = cmp.Or(c.Compression, defaultCompression)
	c.BatchBytes = cmp.Or(c.BatchBytes, defaultBatchBytes)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, defaultRequestTimeout)
	return c
}

func (c Config) clusterOptions() cluster.Options {
	c = c.withDefaults()
	return cluster.Options{Brokers: c.Brokers, ClientID: c.ClientID, TLS: c.TLS, SASL: c.SASL, Timeout: c.RequestTimeout}
}

// Validate returns all errors of c, joined. Each begins with the path of its field relative to the sink ("kafka.brokers: …")
// and names what was expected. No secret is in the text. It opens no file and no connection.
func (c Config) Validate() error {
	return errors.Join(c.validateBrokers(), c.validateTopic(), c.validateTopics(), c.validateBatches(), c.TLS.Validate(), c.SASL.Validate(), c.validateCleartext(), c.Registry.validate())
}

func (c Config) validateBrokers() error {
	if len(c.Brokers) == 0 {
		return errors.New(`kafka.brokers: missing; expected at least one "host:port"`)
	}
	for i, broker := range c.Brokers {
		switch host, port, err := net.SplitHostPort(broker); {
		case strings.ContainsRune(broker, '@'): // not quoted: it may contain a password
			return fmt.Errorf(`kafka.brokers[%d]: contains an "@"; expected "host:port", and credentials under kafka.sasl`, i)
		case err != nil || strings.ContainsAny(host, ", \t/"):
			return fmt.Errorf(`kafka.brokers[%d]: %q; expected "host:port"`, i, broker)
		case host == "" || !sinks.IsPort(port):
			return fmt.Errorf(`kafka.brokers[%d]: %q; expected "host:port" with a port from 1 to 65535`, i, broker)
		case sinks.CheckHost(host) != nil:
			return fmt.Errorf(`kafka.brokers[%d]: %q: %w`, i, broker, sinks.CheckHost(host))
		case slices.Contains(c.Brokers[:i], broker):
			return fmt.Errorf(`kafka.brokers[%d]: %q is given twice`, i, broker)
		}
	}
	return nil
}

// validateCleartext refuses credentials that would cross the network in cleartext. Bootstrap brokers on loopback are no
// exception, because they name the addresses of others.
func (c Config) validateCleartext() error {
	valid := c.TLS.Validate() == nil && c.SASL.Validate() == nil // so that it is known what is sent
	if c.SASL.AllowCleartextCredentials || !valid {
		return nil
	}
	const remedy = "; use TLS, or set kafka.sasl.allowCleartextCredentials: true if the network is trusted"
	var errs []error
	if m := c.SASL.Mechanism; !c.TLS.Enabled && (m == "plain" || m == "oauthbearer") {
		errs = append(errs, fmt.Errorf("kafka.sasl.mechanism: %s without kafka.tls sends the password or token in cleartext%s", m, remedy))
	}
	if u, err := url.Parse(c.SASL.OAuth.TokenURL); err == nil && u.Scheme == "http" && !isLoopback(u.Hostname()) {
		errs = append(errs, errors.New("kafka.sasl.oauth.tokenURL: http:// sends the secret and the token in cleartext"+remedy))
	}
	return errors.Join(errs...)
}

func isLoopback(host string) bool { return host == "localhost" || net.ParseIP(host).IsLoopback() }

// Files returns the files that the sink reads for each connection.
func (c Config) Files() []credentials.File {
	return append(c.TLS.Files("kafka.tls"), c.Registry.TLS.Files("kafka.registry.tls")...)
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
		return errors.New("kafka.topic: {type} would spread the changes of one object over several topics and lose their order; remove it (the type is in every record and its headers)")
	}
	if err := checkTopicName(t.AppendName(nil, &event.Change{}, appendEscaped)); err != nil {
		return fmt.Errorf("kafka.topic: %q: %w", c.Topic, err)
	}
	if c.Repair && (t.UsesPlaceholder("namespace") || t.UsesPlaceholder("name")) {
		return fmt.Errorf("kafka.repair: true, and kafka.topic is %q; with {namespace} or {name} the topics of deleted objects are unknown", c.Topic)
	}
	return nil
}

// validateFormat checks the settings that depend on the format of the sink.
func (c Config) validateFormat(f format.Format) error {
	if c.Tombstones && !f.IsEnvelope() {
		return fmt.Errorf("kafka.tombstones: true, with the format %v; only consumers of debezium expect them", f)
	}
	if c.Repair && f != format.Upsert && !c.Tombstones {
		return fmt.Errorf("kafka.repair: true, with the format %v; it needs upsert, or debezium with kafka.tombstones", f)
	}
	return c.ValidateRegistry(f)
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
		return errors.New("kafka.createTopics.enabled: false, but other settings of kafka.createTopics are set; set it to true, or kafka.checkTopics, or remove them")
	}
	return c.CreateTopics.validateSettings()
}

func (c CreateTopics) validateSettings() error {
	if c.Partitions < 0 || c.Partitions > 100_000 {
		return fmt.Errorf("kafka.createTopics.partitions: %d; expected 1 to 100000, or 0 for the broker's default", c.Partitions)
	}
	if c.ReplicationFactor < 0 || c.ReplicationFactor > maxReplicas {
		return fmt.Errorf("kafka.createTopics.replicationFactor: %d; expected 1 to %d, at most the number of brokers, or 0 for the broker's default",
			c.ReplicationFactor, maxReplicas)
	}
	for i, entry := range c.Configs {
		if entry.Name == "" {
			return fmt.Errorf("kafka.createTopics.configs[%d].name: missing; expected a topic setting such as cleanup.policy", i)
		}
		if slices.ContainsFunc(c.Configs[:i], func(earlier TopicConfig) bool { return earlier.Name == entry.Name }) {
			return fmt.Errorf("kafka.createTopics.configs[%d].name: %s is given twice", i, entry.Name)
		}
		if err := c.validateRetention(entry); err != nil {
			return fmt.Errorf("kafka.createTopics.configs[%d].value: %w", i, err)
		}
		if n, err := strconv.Atoi(entry.Value); err == nil && entry.Name == "min.insync.replicas" && c.ReplicationFactor > 0 && n > c.ReplicationFactor {
			return fmt.Errorf("kafka.createTopics.configs[%d].value: %d replicas in sync are never reached; expected at most %d, the replicationFactor",
				i, n, c.ReplicationFactor)
		}
	}
	return nil
}

// minTopicRetention is the shortest time in which a consumer may read a record before it is deleted.
const minTopicRetention = time.Second

// validateRetention checks the setting retention.ms, which has no effect on topics that are only compacted.
func (c CreateTopics) validateRetention(entry TopicConfig) error {
	if entry.Name != "retention.ms" || slices.Contains(c.Configs, TopicConfig{Name: "cleanup.policy", Value: "compact"}) {
		return nil
	}
	n, err := strconv.ParseInt(entry.Value, 10, 64)
	if err != nil || n < -1 || n >= 0 && n < minTopicRetention.Milliseconds() {
		return fmt.Errorf("%q keeps nothing, or is no number of milliseconds; expected at least %d, or -1 for no limit",
			entry.Value, minTopicRetention.Milliseconds())
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
	if d := c.RequestTimeout; d > maxRequestTimeout {
		errs = append(errs, fmt.Errorf("kafka.requestTimeout: %v; expected at most %v", d, maxRequestTimeout))
	}
	return errors.Join(errs...)
}
