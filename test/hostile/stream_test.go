package hostile

import (
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// TestEveryHardshipIsInAStream, and the same one comes of a seed each time.
func TestEveryHardshipIsInAStream(t *testing.T) {
	seen := make(map[event.Type]int)
	s, again := Make(1), Make(1)
	for i, c := range s.Changes {
		seen[c.Type]++
		if c.ID() != again.Changes[i].ID() || !c.ObservedAt.Equal(again.Changes[i].ObservedAt) {
			t.Fatalf("change %d is %s, then %s", i, c.ID(), again.Changes[i].ID())
		}
	}
	t.Log(seen, len(s.Moments), s.Now)
	for _, kind := range []event.Type{event.Added, event.Updated, event.Deleted, event.Snapshot, event.Sync, event.Gap, event.Replayed,
		event.Attributed, event.SnapshotEnd, event.PartialEnd} {
		if seen[kind] < 2 {
			t.Errorf("%s is in the stream %d times", kind, seen[kind])
		}
	}
	if len(s.Moments) != Moments || len(s.Now) < 5 || s.GrownAt == 0 {
		t.Errorf("%d moments, %d objects, grown at %d", len(s.Moments), len(s.Now), s.GrownAt)
	}
}
