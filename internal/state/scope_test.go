package state

import (
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

func TestAScopeIsStoredWhole(t *testing.T) {
	for _, s := range []event.StoredScope{
		{ID: "pods"}, {ID: "pods", Position: "7", Snapshot: "s"}, {ID: "pods", Position: "7", AheadUpTo: "9"},
		{ID: "pods", LostReason: "lost", Pass: "p"}, {ID: "pods", Position: "7", Requests: "new id\n"},
		{ID: "pods", Position: "7", AheadUpTo: "9", Requests: "new id\nother id\n"},
	} {
		got, err := decodeScope("pods", string(encodeScope(s)))
		if err != nil || got != s {
			t.Errorf("%+v is stored as %+v: %v", s, got, err)
		}
	}
}
