package topic

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
)

// Config says where audit events are read from. Zero values of optional fields mean the default that is given with the
// field.
type Config struct {
	// Addresses of brokers to begin with, "host:port". Empty: no topic is read.
	Brokers []string `mapstructure:"brokers"`
	// Topics whose records are audit events: each value is one of audit.k8s.io/v1, or a list of them.
	Topics []string `mapstructure:"topics"`
	// Name that is told to the brokers, for their logs and quotas. Default "kubecdc".
	ClientID string `mapstructure:"clientID"`
	// Bound of one request, connecting included. Default 10s; at least 100ms.
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
)

// Enabled says whether there is a topic to read.
func (c Config) Enabled() bool { return len(c.Topics) > 0 }

// Validate says everything that is wrong with c, joined into one error. Each part begins with the path of the field, as
// "kafka.topics: …", and shows no secret. It opens nothing.
func (c Config) Validate() error {
	errs := []error{c.TLS.Validate(), c.SASL.Validate()}
	switch {
	case !c.Enabled() && len(c.Brokers) > 0:
		errs = append(errs, errors.New("kafka.topics: none is given, and without one the rest of audit.kafka means nothing"))
	case c.Enabled() && len(c.Brokers) == 0:
		errs = append(errs, errors.New(`kafka.brokers: missing; expected at least one "host:port"`))
	}
	for i, broker := range c.Brokers {
		if host, _, err := net.SplitHostPort(broker); err != nil || host == "" {
			errs = append(errs, fmt.Errorf(`kafka.brokers[%d]: no "host:port"`, i)) // not shown: it may hold a password
		}
	}
	for i, name := range c.Topics {
		if name == "" || slices.Contains(c.Topics[:i], name) {
			errs = append(errs, fmt.Errorf("kafka.topics[%d]: %q; expected the name of a topic, every topic once", i, name))
		}
	}
	if d := c.RequestTimeout; d != 0 && d < minRequestTimeout {
		errs = append(errs, fmt.Errorf("kafka.requestTimeout: %v; expected at least %v", d, minRequestTimeout))
	}
	if m := c.SASL.Mechanism; !c.TLS.Enabled && !c.SASL.AllowCleartextCredentials && (m == "plain" || m == "oauthbearer") {
		errs = append(errs, fmt.Errorf("kafka.sasl.mechanism: %s without kafka.tls sends the password or token readable; use TLS, or say "+
			"kafka.sasl.allowCleartextCredentials: true where the network is trusted", m))
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
