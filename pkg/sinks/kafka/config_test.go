package kafka

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
)

func validConfig() Config {
	return Config{Brokers: []string{"kafka:9092"}, Topic: "k8s.{group}.{resource}"}
}

func TestErrorsNameTheFieldAndWhatIsExpected(t *testing.T) {
	t.Parallel()
	for want, spoil := range map[string]func(*Config){
		`kafka.brokers[1]: "kafka"; expected "host:port"`:                                                                            func(c *Config) { c.Brokers = append(c.Brokers, "kafka") },
		`kafka.brokers[0]: "a:1,b:2"; expected "host:port"`:                                                                          func(c *Config) { c.Brokers = []string{"a:1,b:2"} },
		`kafka.topic: unknown placeholder "{colour}"`:                                                                                func(c *Config) { c.Topic = "k8s.{colour}" },
		`kafka.topic: {type} would spread the changes of one object over several`:                                                    func(c *Config) { c.Topic = "k8s.{type}" },
		`kafka.topic: "k8s/{resource}": a topic name consists of letters, digits`:                                                    func(c *Config) { c.Topic = "k8s/{resource}" },
		`kafka.topic: ".": the topic name "." is not allowed by Kafka`:                                                               func(c *Config) { c.Topic = "." },
		`kafka.topic: "` + strings.Repeat("a", 250) + `": a topic name of 250 bytes`:                                                 func(c *Config) { c.Topic = strings.Repeat("a", 250) },
		`kafka.batchBytes: 12; expected 1024 to 16777216`:                                                                            func(c *Config) { c.BatchBytes = 12 },
		`kafka.requestTimeout: 1ms; expected at least 100ms`:                                                                         func(c *Config) { c.RequestTimeout = time.Millisecond },
		`kafka.createTopics.enabled: false, but other settings`:                                                                      func(c *Config) { c.CreateTopics.Partitions = 3 },
		`kafka.checkTopics: "on"; expected off, warn or require`:                                                                     func(c *Config) { c.CheckTopics = "on" },
		`kafka.createTopics.partitions: -1; expected 1 to 100000, or 0`:                                                              func(c *Config) { c.CreateTopics = CreateTopics{Enabled: true, Partitions: -1} },
		`kafka.createTopics.replicationFactor: -1; expected 1 to 1000, at most the number of brokers, or 0 for the broker's default`: func(c *Config) { c.CreateTopics = CreateTopics{Enabled: true, ReplicationFactor: -1} },
		`kafka.createTopics.configs[0].name: missing; expected a topic setting`: func(c *Config) {
			c.CreateTopics = CreateTopics{Enabled: true, Configs: []TopicConfig{{Value: "compact"}}}
		},
		`kafka.tls.enabled: false, but other settings of kafka.tls are given`:                                     func(c *Config) { c.TLS.CA = "ca.pem" },
		`kafka.tls.cert: cert and key belong together`:                                                            func(c *Config) { c.TLS = auth.TLS{Enabled: true, TLS: credentials.TLS{Cert: "c.pem"}} },
		`kafka.sasl.mechanism: missing; expected plain, scram-sha-256, scram-sha-512, oauthbearer or aws-msk-iam`: func(c *Config) { c.SASL.Username = "u" },
		`kafka.sasl.mechanism: "gssapi"; expected plain`:                                                          func(c *Config) { c.SASL.Mechanism = "gssapi" },
		`kafka.sasl.mechanism: aws-msk-iam uses the credentials of the Pod`:                                       func(c *Config) { c.SASL = auth.SASL{Mechanism: "aws-msk-iam", Username: "u"} },
		`kafka.sasl.username: missing`: func(c *Config) {
			c.SASL = auth.SASL{Mechanism: "plain", AllowCleartextCredentials: true, Password: credentials.Text("p")}
		},
		`kafka.sasl.password: missing`: func(c *Config) {
			c.SASL = auth.SASL{Mechanism: "plain", AllowCleartextCredentials: true, Username: "u"}
		},
		`kafka.sasl.username, kafka.sasl.password: given, but oauthbearer`: func(c *Config) {
			c.SASL = auth.SASL{Mechanism: "oauthbearer", AllowCleartextCredentials: true, Username: "u", Token: credentials.Text("t")}
		},
		`kafka.sasl.token, kafka.sasl.oauth: expected exactly one`: func(c *Config) { c.SASL = auth.SASL{Mechanism: "oauthbearer"} },
		`kafka.sasl.oauth.tokenURL: expected the address of a token endpoint`: func(c *Config) {
			c.SASL = auth.SASL{Mechanism: "oauthbearer", AllowCleartextCredentials: true, OAuth: auth.OAuth{TokenURL: "idp"}}
		},
		`kafka.sasl.oauth.clientSecret: missing`: func(c *Config) {
			c.SASL = auth.SASL{Mechanism: "oauthbearer", AllowCleartextCredentials: true, OAuth: auth.OAuth{TokenURL: "https://idp/token", ClientID: "c"}}
		},
	} {
		c := validConfig()
		spoil(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestNoErrorHoldsThePassword(t *testing.T) {
	t.Parallel()
	const secret = "s3cr\x00et"
	c := validConfig()
	for _, s := range []auth.SASL{
		{Mechanism: "x", Username: "u", Password: credentials.Text(secret)}, {Mechanism: "plain", Password: credentials.Text(secret)},
	} {
		c.SASL = s
		_, err := New(c, format.JSON, slog.New(slog.DiscardHandler))
		if err == nil || strings.Contains(err.Error(), "s3cr") {
			t.Errorf("%+v", err)
		}
	}
}

func TestAPasswordFileIsReadAtStart(t *testing.T) {
	t.Parallel()
	c := validConfig()
	c.SASL = auth.SASL{Mechanism: "plain", AllowCleartextCredentials: true, Username: "u", Password: credentials.InFile(filepath.Join(t.TempDir(), "password"))}
	if _, err := New(c, format.JSON, slog.New(slog.DiscardHandler)); err == nil || !strings.HasPrefix(err.Error(), "kafka.sasl.password: ") {
		t.Errorf("a missing file: %v", err)
	}
	if err := os.WriteFile(c.SASL.Password.Path(), []byte("p\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(c, format.JSON, slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
}

func TestTopicNamesAreAlwaysLegal(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{"web-1.eu_x": "web-1.eu_x", "system:node": "system_3Anode", "ä": "_C3_A4", "a/b": "a_2Fb"} {
		if got := string(appendEscaped(nil, value)); got != want {
			t.Errorf("%q becomes %q, want %q", value, got, want)
		}
	}
}

func FuzzLaneNamesComeBack(f *testing.F) {
	f.Add("k8s.core.pods/3of6")
	f.Add("a/0of1")
	f.Add("a/00of1")
	f.Fuzz(func(t *testing.T, name string) {
		topic, partition, count, err := parseLane(sinks.Lane(name))
		if err == nil && (topic == "" || partition < 0 || count <= int(partition)) {
			t.Errorf("%q: topic %q, partition %d", name, topic, partition)
		}
	})
}
