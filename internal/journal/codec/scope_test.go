package codec

import (
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// TestAScopeIsStoredWhole: a scope without AheadUpTo has the form of before, which has no such string.
func TestAScopeIsStoredWhole(t *testing.T) {
	for _, s := range []event.StoredScope{
		{ID: "pods"}, {ID: "pods", Position: "7", Snapshot: "s"}, {ID: "pods", Position: "7", AheadUpTo: "9"},
		{ID: "pods", LostReason: "lost", Pass: "p"}, {ID: "pods", Position: "7", Requests: "new id\n"},
		{ID: "pods", Position: "7", AheadUpTo: "9", Requests: "new id\nother id\n"},
	} {
		got, err := DecodeScope("pods", EncodeScope(s))
		if err != nil || got != s {
			t.Errorf("%+v is stored as %+v: %v", s, got, err)
		}
	}
	if n := len(EncodeScope(event.StoredScope{Position: "7"})); n != 5 {
		t.Errorf("a position takes %d bytes, want those of four strings", n)
	}
}
