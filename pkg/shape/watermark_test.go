package shape

import (
	"context"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// TestAWatermarkHasNoDigestOfWhatIsNotEmitted: a rule that leaves objects or versions out of the stream makes the digest
// that of something else.
func TestAWatermarkHasNoDigestOfWhatIsNotEmitted(t *testing.T) {
	for name, c := range map[string]struct {
		policy Policy
		has    bool
	}{
		"everything":    {Policy{}, true},
		"the diff too":  {Policy{Changed: "paths"}, true},
		"filter":        {Policy{Filter: `object.kind == "Pod"`}, false},
		"onlyIfChanged": {Policy{OnlyIfChanged: []string{"spec"}}, false},
		"ignoreChanges": {Policy{IgnoreChanges: []string{"status"}}, false},
	} {
		s, err := New([]Policy{c.policy}, Options{Bodies: &store{}})
		if err != nil {
			t.Fatal(err)
		}
		var got *event.WatermarkInfo
		to := s.WrapAppend(0, func(_ context.Context, o event.Observation) error {
			got = o.Changes[0].Watermark
			return nil
		})
		mark := &event.Change{Type: event.Watermark, Watermark: &event.WatermarkInfo{Algorithm: event.DigestAlgorithm, Count: 1, Digest: "d"}}
		if err := to(t.Context(), event.Observation{Changes: []*event.Change{mark}}); err != nil {
			t.Fatal(err)
		}
		if has := got != nil && got.Algorithm != ""; has != c.has {
			t.Errorf("%s: the watermark is %+v", name, got)
		}
	}
}
