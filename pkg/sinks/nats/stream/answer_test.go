package stream

import (
	"encoding/json"
	"testing"
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
