package kafka

import (
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
)

func TestEveryMechanismLetsTheRightPasswordIn(t *testing.T) {
	t.Parallel()
	for mechanism, method := range map[string]string{"plain": "PLAIN", "scram-sha-256": "SCRAM-SHA-256", "scram-sha-512": "SCRAM-SHA-512"} {
		_, brokers := startFakeCluster(t, kfake.SeedTopics(1, topicA), kfake.EnableSASL(), kfake.Superuser(method, "exporter", "right"))
		cfg := Config{Brokers: brokers, Topic: topicA, SASL: auth.SASL{Mechanism: mechanism, AllowCleartextCredentials: true, Username: "exporter", Password: credentials.Text("right")}}
		s := openSink(t, cfg)
		mustPublish(t, s, laneOf(t, s, pod("a", 1)), pods("a", 1, 5))

		cfg.SASL.Password = credentials.Text("wrong")
		_, err := lookUp(t, openSink(t, cfg), pod("a", 1))
		var unavailable *sinks.UnavailableError
		if !errors.As(err, &unavailable) || strings.Contains(err.Error(), "wrong") {
			t.Errorf("%s with a wrong password: %v", mechanism, err)
		}
	}
}

func TestTLSWithAClientCertificateThatIsRotated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := certificates.New(t)
	writeFile(t, dir, "ca.pem", ca.PEM)
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA), kfake.TLS(ca.Server(t)))
	cfg := Config{Brokers: brokers, Topic: topicA, TLS: auth.TLS{
		Enabled: true, TLS: credentials.TLS{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")},
	}}

	cert, key := certificates.New(t).Issue(t) // of an authority that the broker does not trust
	writeFile(t, dir, "cert.pem", cert)
	writeFile(t, dir, "key.pem", key)
	s := openSink(t, cfg)
	var unavailable *sinks.UnavailableError
	if _, err := lookUp(t, s, pod("a", 1)); !errors.As(err, &unavailable) {
		t.Fatalf("a certificate that the broker does not trust: %v", err)
	}
	cert, key = ca.Issue(t)
	writeFile(t, dir, "cert.pem", cert)
	writeFile(t, dir, "key.pem", key)
	publishUntilAccepted(t, s, topicA+"/0of1", pods("a", 1, 5))
}

func TestABrokerThatIsNotTrustedGetsNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, dir, "ca.pem", certificates.New(t).PEM)
	ca := certificates.New(t)
	server, err := tls.X509KeyPair(ca.Issue(t))
	if err != nil {
		t.Fatal(err)
	}
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA), kfake.TLS(&tls.Config{Certificates: []tls.Certificate{server}}))
	testCorrectedCredentials(t, Config{Brokers: brokers, Topic: topicA, TLS: auth.TLS{Enabled: true, TLS: credentials.TLS{CA: filepath.Join(dir, "ca.pem")}}},
		"kafka.tls", func() { writeFile(t, dir, "ca.pem", ca.PEM) })
}

func TestAMechanismThatIsNotOfferedIsNamed(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA), kfake.EnableSASL(), kfake.Superuser("PLAIN", "exporter", rightPassword))
	dir := t.TempDir()
	writeFile(t, dir, "token", []byte(unsignedToken("exporter", time.Hour)))
	wantUnavailable(t, Config{Brokers: brokers, Topic: topicA, SASL: auth.SASL{Mechanism: "oauthbearer", AllowCleartextCredentials: true, Token: credentials.InFile(filepath.Join(dir, "token"))}}, "kafka.sasl.mechanism")
}

func TestCredentialsThatAreGoneAreNamed(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA), kfake.EnableSASL(), kfake.Superuser("PLAIN", "exporter", rightPassword))
	dir := t.TempDir()
	writeFile(t, dir, "password", []byte(rightPassword))
	s := openSink(t, Config{Brokers: brokers, Topic: topicA, SASL: auth.SASL{Mechanism: "plain", AllowCleartextCredentials: true, Username: "exporter", Password: credentials.InFile(filepath.Join(dir, "password"))}})
	if err := os.Remove(filepath.Join(dir, "password")); err != nil {
		t.Fatal(err)
	}
	_, err := lookUp(t, s, pod("a", 1))
	var unavailable *sinks.UnavailableError
	if !errors.As(err, &unavailable) || !strings.Contains(err.Error(), "kafka.sasl.password") {
		t.Errorf("%v; want an UnavailableError that names the file's key", err)
	}
}

// wantUnavailable opens a sink that Kafka rejects, and checks that the error names the setting.
func wantUnavailable(t *testing.T, cfg Config, names string) {
	t.Helper()
	s := openSink(t, cfg)
	_, err := lookUp(t, s, pod("a", 1))
	var unavailable *sinks.UnavailableError
	if !errors.As(err, &unavailable) || !strings.Contains(err.Error(), names) {
		t.Errorf("%v; want an UnavailableError that names %s", err, names)
	}
}

func writeFile(t *testing.T, dir, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}
