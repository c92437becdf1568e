package deltas

import (
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

func FuzzKnownEncodingRoundTrips(f *testing.F) {
	f.Add("6f1d3c9e-8a57-4f0e-9d0b-3c5a7e2b1f44", "123456789", "summary")
	f.Add("6F1D3C9E-8A57-4F0E-9D0B-3C5A7E2B1F44", "0123", "")
	f.Add("6f1d3c9e-8a57-4f0e-9d0b3c5a7e2b1f44--", "18446744073709551616", "\x00")
	f.Add("", "", "")
	f.Add(strings.Repeat("u", 300), "-1", strings.Repeat("s", 300))
	f.Fuzz(func(t *testing.T, uid, rv, summary string) {
		k := event.Known{Key: "k", UID: uid, ResourceVersion: rv, Summary: summary}
		if got := encodeKnown(k).decodeKnown("k"); got != k {
			t.Errorf("%+v came back as %+v", k, got)
		}
	})
}
