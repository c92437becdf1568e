package topic

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
)

// Config configures the topics that audit events are read from. A zero value of an optional field stands for its default.
type Config struct {
	// Addresses of brokers to start from, "host:port". Empty: no topic is read.
	Brokers []string `mapstructure:"brokers"`
	// Topics with audit events: the value of each record is an event of audit.k8s.io/v1, or a list of them, in the envelope.
	Topics []string `mapstructure:"topics"`
	// Envelope of the events: none; azure, records of an AKS diagnostic setting; cloudwatch, subscription batches of EKS, with
	// or without gzip; auto: whichever a record has. Default auto.
	Envelope audit.Envelope `mapstructure:"envelope"`
	// Client ID for the logs and quotas of the brokers. Default "kubecdc".
	ClientID string `mapstructure:"clientID"`
	// Timeout of one request, including the connection. Default 10s; 100ms to 1h.
	RequestTimeout time.Duration `mapstructure:"requestTimeout"`
	// TLS of the connections to the brokers.
	TLS auth.TLS `mapstructure:"tls"`
	// SASL authentication.
	SASL auth.SASL `mapstructure:"sasl"`
}

const (
	defaultClientID       = "kubecdc"
	defaultRequestTimeout = 10 * time.Second
	minRequestTimeout     = 100 * time.Millisecond
	maxRequestTimeout     = time.Hour
)

// Enabled reports whether any topic is read.
func (c Config) Enabled() bool { return len(c.Topics) > 0 }

// Validate returns all problems of c in one joined error. Each part starts with the path of the field, as "kafka.topics:
// …", and contains no secret. It opens no connection.
func (c Config) Validate() error {
	errs := []error{c.TLS.Validate(), c.SASL.Validate()}
	switch {
	case !c.Enabled() && len(c.Brokers) > 0:
		errs = append(errs, errors.New("kafka.topics: none is given, and without one the rest of audit.kafka means nothing"))
	case c.Enabled() && len(c.Brokers) == 0:
		errs = append(errs, errors.New(`kafka.brokers: missing; expected at least one "host:port"`))
	}
	for i, broker := range c.Brokers {
		host, port, err := net.SplitHostPort(broker)
		if n, portErr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || portErr != nil || n == 0 { // not shown: it may hold a password
			errs = append(errs, fmt.Errorf(`kafka.brokers[%d]: no "host:port" with a port from 1 to 65535`, i))
		}
	}
	for i, name := range c.Topics {
		if name == "" || slices.Contains(c.Topics[:i], name) {
			errs = append(errs, fmt.Errorf("kafka.topics[%d]: %q; expected the name of a topic, every topic once", i, name))
		}
	}
	if err := c.Envelope.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("kafka.envelope: %w", err))
	}
	if d := c.RequestTimeout; d != 0 && d < minRequestTimeout || d > maxRequestTimeout {
		errs = append(errs, fmt.Errorf("kafka.requestTimeout: %v; expected %v to %v", d, minRequestTimeout, maxRequestTimeout))
	}
	if m := c.SASL.Mechanism; !c.TLS.Enabled && !c.SASL.AllowCleartextCredentials && (m == "plain" || m == "oauthbearer") {
		errs = append(errs, fmt.Errorf("kafka.sasl.mechanism: %s without kafka.tls sends the password or token in cleartext; use TLS, or set "+
			"kafka.sasl.allowCleartextCredentials: true in a trusted network", m))
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	if c.ClientID == "" {
		c.ClientID = defaultClientID
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = defaultRequestTimeout
	}
	return c
}
