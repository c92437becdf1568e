package journal

import (
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// TestARenamedSinkContinuesAtItsDestination renames a sink that still gets a snapshot: cursor and request are those of the
// former name, nothing of which is left. Another destination, or a name that was there before, is another sink.
func TestARenamedSinkContinuesAtItsDestination(t *testing.T) {
	for name, again := range redeclarations {
		t.Run(name, func(t *testing.T) {
			opts := Options{
				FS: vfs.NewMem(), Declaration: Declaration{Sinks: []string{"main"}, Starts: map[string]Start{"before": StartSnapshot, "after": StartSnapshot, "elsewhere": StartSnapshot}, Destinations: map[string]string{"main": "there", "before": "here", "after": "here", "elsewhere": "far"}},
			}
			j := startJournal(t, opts)
			for n := range 10 {
				j.mustAppend(smallObservation("pods", n+1))
			}
			j.waitFor(10)
			opts.Sinks = []string{"main", "before"}
			j = again(t, j, opts)
			for n := range 10 {
				j.mustAppend(smallObservation("pods", n+11))
			}
			j.waitFor(20)
			j.mustSettle("before", event.Cursor{Low: 14, Layout: "kafka", State: []byte("state")})
			opts.Sinks = []string{"after", "main"}
			for range 2 {
				j = again(t, j, opts)
				cursor, stored, err := j.Cursor("after")
				if err != nil || !stored || cursor.Low != 14 || string(cursor.State) != "state" {
					t.Fatalf("it continues at %+v, %v (%v)", cursor, stored, err)
				}
				if former, err := j.FormerName("after"); former != "before" || err != nil {
					t.Errorf("its former name is %q (%v)", former, err)
				}
				if got := requestsOf(t, j); got["pods"] != "after " {
					t.Errorf("snapshots are requested of %v", got)
				}
				if m := j.Checkpoint().Members; !slices.Equal(m.Sinks, []string{"after", "main"}) || len(m.Former) > 0 {
					t.Errorf("the members are %+v", m)
				}
			}
			opts.Sinks = []string{"main", "after", "before"}
			j = again(t, j, opts)
			if cursor, _, err := j.Cursor("before"); cursor.Low != 20 || err != nil {
				t.Errorf("another sink of the former name begins at %d (%v)", cursor.Low, err)
			}
			if former, err := j.FormerName("after"); former != "" || err != nil {
				t.Errorf("it still gets what is for %q (%v)", former, err)
			}
			opts.Sinks = []string{"main", "elsewhere"}
			j = again(t, j, opts)
			if cursor, _, err := j.Cursor("elsewhere"); cursor.Low != 20 || err != nil {
				t.Errorf("a sink of another destination begins at %d (%v)", cursor.Low, err)
			}
		})
	}
}
