package kafka

import (
	"bytes"
	"strings"
	"testing"
)

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
