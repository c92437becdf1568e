package journal

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/journaltest"
)

// loadCluster is what a journal knows about its cluster and its scopes.
func loadCluster(t *testing.T, j *Journal) (cluster, anew string, resources []string) {
	t.Helper()
	var errs [3]error
	cluster, errs[0] = j.Cluster()
	anew, errs[1] = j.ResetReason()
	resources, errs[2] = j.Resources()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return cluster, anew, resources
}

// TestAJournalIsBoundToTheNameOfItsCluster because all keys and IDs begin with that. A refused start changes nothing.
func TestAJournalIsBoundToTheNameOfItsCluster(t *testing.T) {
	for _, c := range []struct {
		first, uid, then string
		refused          bool
	}{
		{"a", "u1", "a", false}, {"a", "u1", "b", true}, {"a", "u1", "", true}, {"", "u1", "b", true}, {"", "", "b", true},
		{"", "u1", "u1", false}, {"u1", "u1", "", false}, {"u1", "", "", true}, {"", "u1", "", false},
	} {
		opts := Options{Dir: "journal", FS: vfs.NewMem(), Declaration: Declaration{Sinks: []string{"main", "other"}, ClusterName: c.first}, Logger: discardLogger}
		j := startJournal(t, opts)
		if err := j.SetCluster(t.Context(), c.uid); err != nil {
			t.Fatal(err)
		}
		j.mustAppend(smallObservation("pods", 1))
		j.waitFor(1)
		j.stopAndClose()
		then := opts
		then.ClusterName, then.Sinks = c.then, []string{"main"}
		edited, err := Open(then)
		if refused := errors.As(err, new(*RenamedError)); refused != c.refused || !refused && err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if err == nil {
			if err := edited.Close(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		j = startJournal(t, opts)
		if stat := j.Stat(); len(stat.Sinks) != 2 || j.Newest() != 1 {
			t.Errorf("%+v: the refused start has left changes up to %d, and sinks %+v", c, j.Newest(), stat.Sinks)
		}
		if _, recovered := j.PendingRecovery(); recovered {
			t.Errorf("%+v: the refused start has taken the journal for broken", c)
		}
		j.stopAndClose()
	}
}

func TestResetForClusterDropsResourcesAndKeepsChanges(t *testing.T) {
	fsys := vfs.NewMem()
	j := startJournal(t, Options{FS: fsys, Declaration: Declaration{Sinks: []string{"main"}}})
	if err := j.SetCluster(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	j.mustAppend(event.Observation{Resource: resourceNamed("pods"), Scope: "pods", Changes: []*event.Change{journaltest.SmallChange(9)}, Known: []event.Known{{Key: "a", UID: "x"}},
		Bodies: []event.Body{{Key: "a", UID: "x", ResourceVersion: "9", Raw: []byte(`{}`)}}, Snapshot: "s1", Position: "9"})
	j.mustAppend(event.Observation{Resource: resourceNamed("nodes"), Scope: "nodes", Position: "8"}) // perhaps in the same group as what follows
	if err := j.ResetForCluster(t.Context(), "u2", "another cluster"); err != nil {
		t.Fatal(err)
	}
	j.mustAppend(event.Observation{Resource: resourceNamed("pods"), Scope: "pods", Known: []event.Known{{Key: "b", UID: "y"}}})
	j.stopAndClose()

	j = startJournal(t, Options{FS: fsys, Declaration: Declaration{Sinks: []string{"main"}}})
	if cluster, anew, names := loadCluster(t, j.Journal); cluster != "u2" || anew != "another cluster" || len(names) != 1 {
		t.Errorf("cluster %q, begun anew %q, resources %q", cluster, anew, names)
	}
	if known, s := j.loadStored("pods"); s != (event.StoredScope{}) || len(known) != 1 || known[0].Key != "b" {
		t.Errorf("stored %+v, %v", s, known)
	}
	if _, has, err := j.Body("pods", "a"); err != nil || has {
		t.Errorf("a body of the other cluster is left: %v, %v", has, err)
	}
	if got := j.readTo(0, 1); got[0].Change.ResourceVersion != journaltest.SmallChange(9).ResourceVersion {
		t.Errorf("read %+v", got[0].Change)
	}
	if err := j.RecordGapsEmitted(t.Context()); err != nil {
		t.Fatal(err)
	}
	if cluster, anew, _ := loadCluster(t, j.Journal); cluster != "u2" || anew != "" {
		t.Errorf("announced, and it is of cluster %q and begun anew %q", cluster, anew)
	}
	if err := j.ResetForCluster(t.Context(), "u3", ""); err == nil {
		t.Error("a beginning without a reason is no gap, and was taken")
	}
}
