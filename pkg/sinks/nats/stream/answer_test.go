package stream

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
)

func FuzzAPlainReceiptIsParsedAsJSON(f *testing.F) {
	for _, data := range []string{`{"stream":"K8S","seq":12}`, `{"stream":"K8S","seq":12,"duplicate":true}`, `{"stream":"K8S","seq":0}`,
		`{"stream":"K8S","seq":-1}`, `{"stream":"K8SX","seq":1}`, `{"stream":"K8S","seq":1`, `{"error":{"code":503}}`, ``} {
		f.Add([]byte(data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		sequence, plain := parsePlainReceipt("K8S", data)
		if !plain {
			return
		}
		var ack struct {
			Stream    string
			Seq       uint64
			Duplicate bool
			Error     any
		}
		if err := json.Unmarshal(data, &ack); err != nil || ack.Stream != "K8S" || ack.Seq != sequence || ack.Duplicate || ack.Error != nil {
			t.Errorf("%q was read as message %d; as JSON it is %+v, %v", data, sequence, ack, err)
		}
	})
}

// TestAnAnswerOfAnotherProgramIsNotQuoted: a service that subscribes to the subject may answer with what it got.
func TestAnAnswerOfAnotherProgramIsNotQuoted(t *testing.T) {
	for _, data := range []string{`{"after":"hunter2"}`, `hunter2`, `{"stream":"hunter2","seq":1}`, `{"stream":"K8S","seq":"hunter2"}`} {
		if _, err := ParseReceipt("K8S", "k8s.a", connection.Answer{Data: []byte(data)}); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", data, err)
		}
	}
}
