package kafka

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/require"
)

func integration(t *testing.T) {
	t.Helper()
	require.Integration(t)
	require.Program(t, "java", "install Java 17 or later")
	require.Program(t, "mvn", "install Maven 3.8 or later")
}

func stopAtEnd(t *testing.T, stop func() error) {
	t.Helper()
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestABrokerComesBackAtItsAddress(t *testing.T) {
	integration(t)
	b, err := Start(t.Context(), Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, b.Stop)
	address := b.Address()
	if err := errors.Join(b.Answers(t.Context()), b.Kill()); err != nil {
		t.Fatal(err)
	}
	if b.Answers(t.Context()) == nil {
		t.Fatal("a killed broker answers")
	}
	if err := errors.Join(b.Restart(t.Context()), b.Answers(t.Context())); err != nil {
		t.Fatal(err)
	}
	if b.Address() != address {
		t.Fatalf("address = %s, was %s", b.Address(), address)
	}
}

func TestAClusterOfThreeLivesWithTwo(t *testing.T) {
	integration(t)
	brokers, err := StartCluster(t.Context(), t.TempDir(), 3, nil)
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, brokers.Stop)
	if err := errors.Join(brokers[0].Kill(), brokers[0].Restart(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, b := range brokers {
		if err := b.Answers(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestAWrongPropertyIsReportedWithTheBrokersOwnWords(t *testing.T) {
	integration(t)
	_, err := Start(t.Context(), Options{Dir: t.TempDir(), Properties: map[string]string{"num.io.threads": "none"}})
	if err == nil || !strings.Contains(err.Error(), "num.io.threads") {
		t.Fatalf("Start: %v", err)
	}
}

func TestPropertiesOfTheCallerWin(t *testing.T) {
	b := &Broker{id: 2, port: 9092, dir: "/d"}
	text := b.properties([]int{1, 2, 3}, map[string]string{"min.insync.replicas": "3"})
	for _, want := range []string{
		"min.insync.replicas=3\n",
		"auto.create.topics.enable=false\n",
		"offsets.topic.replication.factor=3\n",
		"controller.quorum.voters=1@127.0.0.1:1,2@127.0.0.1:2,3@127.0.0.1:3\n",
		"listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:2\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestWhatIsNotKafkaIsNotTakenForIt(t *testing.T) {
	answers := map[string]string{
		"nothing":              "",
		"half":                 "\x00\x00\x00\x0a\x00",
		"another protocol":     "HTTP/1.1 400 Bad Request\r\n",
		"an error code":        "\x00\x00\x00\x0a\x00\x00\x00\x07\x00\x23\x00\x00\x00\x01",
		"another correlation":  "\x00\x00\x00\x0a\x00\x00\x00\x08\x00\x00\x00\x00\x00\x01",
		"no API, so not ready": "\x00\x00\x00\x0a\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00",
	}
	for name, answer := range answers {
		if readAPIVersions(bytes.NewReader([]byte(answer))) == nil {
			t.Errorf("%s is taken for a broker", name)
		}
	}
	good := "\x00\x00\x00\x0a\x00\x00\x00\x07\x00\x00\x00\x00\x00\x01"
	if err := readAPIVersions(bytes.NewReader([]byte(good))); err != nil {
		t.Error(err)
	}
}
