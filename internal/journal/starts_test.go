package journal

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// requestsOf returns the sinks that wait for a snapshot of each scope of pods, and checks that the requests of one sink
// share an ID.
func requestsOf(t *testing.T, j *runningJournal) map[string]string {
	t.Helper()
	stored, err := j.LoadResource("pods", nil)
	if err != nil {
		t.Fatal(err)
	}
	all, ids := map[string]string{}, map[string]string{}
	for _, s := range stored.Scopes {
		for _, r := range s.SnapshotRequests() {
			all[s.ID] += r.Sink + " "
			if id, seen := ids[r.Sink]; r.ID == "" || seen && id != r.ID {
				t.Errorf("sink %s has the requests %q and %q", r.Sink, id, r.ID)
			}
			ids[r.Sink] = r.ID
		}
	}
	return all
}

// TestANewSinkBeginsAsItsStartDefines adds sinks to a journal, when it is opened and while it runs.
func TestANewSinkBeginsAsItsStartDefines(t *testing.T) {
	starts := map[string]Start{"whole": StartSnapshot, "kept": StartJournal, "later": StartNow, "main": StartSnapshot}
	names := []string{"main", "whole", "kept", "later"}
	for name, add := range redeclarations {
		t.Run(name, func(t *testing.T) {
			opts := Options{FS: vfs.NewMem(), Declaration: Declaration{Sinks: []string{"main"}, Starts: starts}}
			j := startJournal(t, opts)
			for n := range 10 {
				j.mustAppend(smallObservation("pods", n+1))
			}
			j.waitFor(10)
			if first := requestsOf(t, j); len(first) > 0 {
				t.Errorf("a first start requests %v", first)
			}
			opts.Sinks = names
			for range 2 { // a second time changes nothing
				j = add(t, j, opts)
				for sink, low := range map[string]uint64{"whole": 10, "kept": 0, "later": 10} {
					if cursor, _, err := j.Cursor(sink); err != nil || cursor.Low != low {
						t.Errorf("%s begins at %d (%v), want %d", sink, cursor.Low, err, low)
					}
				}
				if got := requestsOf(t, j); len(got) != 1 || got["pods"] != "whole " {
					t.Errorf("snapshots are requested of %v", got)
				}
			}
			opts.Sinks = []string{"main", "whole"}
			j = add(t, j, opts)
			if got := requestsOf(t, j); len(got) != 1 {
				t.Errorf("a request ended with another sink: %v", got)
			}
			opts.Sinks = []string{"main"}
			j = add(t, j, opts)
			if got := requestsOf(t, j); len(got) > 0 {
				t.Errorf("a removed sink waits for %v", got)
			}
		})
	}
}

// TestARequestEndsWithItsEnd: the end of a snapshot and the end of its request are in one observation, and lost history ends
// none.
func TestARequestEndsWithItsEnd(t *testing.T) {
	fs := vfs.NewMem()
	j := startJournal(t, Options{FS: fs, Declaration: Declaration{Sinks: []string{"main"}}})
	j.mustAppend(smallObservation("pods", 1))
	j.waitFor(1)
	if err := j.Declare(t.Context(), Declaration{Sinks: []string{"main", "new"}, Starts: map[string]Start{"new": StartSnapshot}}); err != nil {
		t.Fatal(err)
	}
	stored, err := j.LoadResource("pods", nil)
	if err != nil {
		t.Fatal(err)
	}
	lost := smallObservation("pods", 2)
	lost.LostReason, lost.Position = "a test", ""
	j.mustAppend(lost)
	j.mustAppend(smallObservation("pods", 3))
	j.waitFor(3)
	if got := requestsOf(t, j); got["pods"] != "new " {
		t.Fatalf("after lost history is requested %v", got)
	}
	end := smallObservation("pods", 4)
	end.EndedRequest = stored.Scopes[0].SnapshotRequests()[0].ID
	j.mustAppend(end)
	j.waitFor(4)
	for range 2 {
		if got := requestsOf(t, j); len(got) > 0 {
			t.Errorf("after the end is requested %v", got)
		}
		j.stopAndClose()
		j = startJournal(t, Options{FS: fs, Declaration: Declaration{Sinks: []string{"main", "new"}, Starts: map[string]Start{"new": StartSnapshot}}})
	}
}

// TestASeedRequestsSnapshotsForNewSinks: a sink that was none of the process before is new, unless that is not known. The
// requests of the seed stay, for sinks that are declared.
func TestASeedRequestsSnapshotsForNewSinks(t *testing.T) {
	former := event.FormerSink{Name: "returned", Missed: true}
	for name, c := range map[string]struct {
		members Members
		want    string
	}{
		"known members":   {Members{Sinks: []string{"main", "waiting", "gone"}, Former: []event.FormerSink{former}}, "waiting new "},
		"unknown members": {Members{}, "waiting "},
	} {
		t.Run(name, func(t *testing.T) {
			j := startJournal(t, Options{FS: vfs.NewMem(), Declaration: Declaration{Sinks: []string{"main", "waiting", "new", "later", "returned"}, Starts: map[string]Start{"new": StartSnapshot, "waiting": StartSnapshot, "returned": StartSnapshot, "later": StartNow}}})
			seed := podSeed(3)
			seed.Members = c.members
			var requests event.StoredScope
			requests.AddSnapshotRequests(event.SnapshotRequest{Sink: "gone", ID: "1"}, event.SnapshotRequest{Sink: "waiting", ID: "2"})
			for i := range seed.Resources {
				for k := range seed.Resources[i].Scopes {
					seed.Resources[i].Scopes[k].Requests = requests.Requests
				}
			}
			j.mustSeed(seed)
			for scope, got := range requestsOf(t, j) {
				if got != c.want {
					t.Errorf("of %s are requested snapshots for %q, want %q", scope, got, c.want)
				}
			}
			if len(requestsOf(t, j)) == 0 {
				t.Error("nothing is requested")
			}
		})
	}
}
