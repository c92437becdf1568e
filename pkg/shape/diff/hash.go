package diff

import (
	"crypto/sha256"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// Hash returns the hash of an object without the value of one member. 16 bytes are enough to tell two objects apart.
func Hash(object []byte, without string) string {
	h := sha256.New()
	for m := rawjson.EnterObject(object, rawjson.SkipSpace(object, 0)); m.Next(); {
		from := m.I
		if m.I = rawjson.SkipValue(object, from, 1); m.I < 0 {
			break
		}
		if string(m.Key) == without {
			h.Write(object[:from])
			object = object[m.I:]
			break
		}
	}
	h.Write(object)
	return string(h.Sum(nil)[:16])
}
