package attribution

import (
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// TestOnlyTheResultOfASingleWriteHasAnAuthor: a list may reveal what several writes have made, and no request makes versions
// that are emitted again, gaps and attributions.
func TestOnlyTheResultOfASingleWriteHasAnAuthor(t *testing.T) {
	for name, test := range map[string]struct {
		change event.Change
		want   bool
	}{
		"added":              {event.Change{Type: event.Added}, true},
		"updated":            {event.Change{Type: event.Updated}, true},
		"deleted":            {event.Change{Type: event.Deleted}, true},
		"added, by a list":   {event.Change{Type: event.Added, Coalesced: true}, false},
		"updated, by a list": {event.Change{Type: event.Updated, Coalesced: true}, false},
		"deleted, by a list": {event.Change{Type: event.Deleted, Coalesced: true, FinalStateUnknown: true}, false},
		"no longer selected": {event.Change{Type: event.Deleted, Left: true}, false},
		"of a snapshot":      {event.Change{Type: event.Snapshot}, false},
		"emitted again":      {event.Change{Type: event.Sync}, false},
		"an attribution":     {event.Change{Type: event.Attributed}, false},
		"a gap":              {event.Change{Type: event.Gap}, false},
	} {
		test.change.UID = "u"
		if _, eligible := ChangeOf(event.Record{Change: &test.change}); eligible != test.want {
			t.Errorf("%s: eligible is %v", name, eligible)
		}
	}
}
