package kafka

import (
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
)

func TestAMechanismThatIsNotOfferedIsNamed(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA), kfake.EnableSASL(), kfake.Superuser("PLAIN", "exporter", rightPassword))
	dir := t.TempDir()
	writeFile(t, dir, "token", []byte(unsignedToken("exporter", time.Hour)))
	_, err := lookUp(t, openSink(t, Config{Brokers: brokers, Topic: topicA, SASL: auth.SASL{Mechanism: "oauthbearer", AllowCleartextCredentials: true, Token: credentials.InFile(filepath.Join(dir, "token"))}}), pod("a", 1))
	var unavailable *sinks.UnavailableError
	if !errors.As(err, &unavailable) || !strings.Contains(err.Error(), "kafka.sasl.mechanism") {
		t.Errorf("%v; want an UnavailableError that names the setting", err)
	}
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

func writeFile(t *testing.T, dir, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}
