package journal

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// testdata/v1 was written by the last exporter of format 1. It must go on working: an upgrade is no loss of history.
func TestAJournalOfVersion1GoesOnWithoutAGap(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "v1"))); err != nil {
		t.Fatal(err)
	}
	if o, err := OpenOffline(dir); err != nil || o.Newest() != 3 {
		t.Fatalf("a version 1 journal cannot be looked at: %v", err)
	} else if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	opts := Options{Dir: dir, Sinks: []string{"main"}}
	j := start(t, opts)
	if r, ok := j.Recovered(); ok {
		t.Fatalf("the upgrade took the journal for broken: %+v", r)
	}
	checkVersion1(t, j)
	j.append(Observation{
		Scope:   "pods",
		Changes: []*event.Change{{Type: event.SnapshotEnd, Class: event.ClassSpec, Snapshot: &event.SnapshotInfo{ID: "x"}, ObservedAt: time.Unix(1, 0).UTC()}},
		Known:   []event.Known{{Key: "ns/c", UID: "u3", ResourceVersion: "9", Summary: "s"}},
		Bodies:  []event.Body{{Key: "ns/c", Raw: []byte("{}")}},
	})
	j.waitFor(4)
	j.end()

	j = start(t, opts)
	if got := j.readTo(3, 4)[0].Change; got.Class != event.ClassSpec || got.Snapshot.ID != "x" {
		t.Errorf("what was written after the upgrade came back as %+v", got)
	}
	stored, err := j.get(keyVersion)
	if err != nil || string(stored) != "kubecdc journal 2" {
		t.Errorf("version %q %v: an older exporter would not refuse it", stored, err)
	}
}

func checkVersion1(t *testing.T, j *running) {
	t.Helper()
	got, err := j.LoadScope("pods")
	want := event.Stored{Position: "7", Known: []event.Known{{Key: "ns/a", UID: "u1", ResourceVersion: "6"}, {Key: "ns/b", UID: "u2", ResourceVersion: "8", Gone: true}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("scope %+v %v, want %+v", got, err, want)
	}
	records := j.readTo(0, 3)
	if g := records[0].Change.Gap; g == nil || g.Reason != "expired" {
		t.Errorf("gap %+v", g)
	}
	if c := records[1].Change; string(c.After) != `{"a":1}` || c.Actor == nil || c.Actor.Manager != "m" || c.Class != "" {
		t.Errorf("updated %+v", c)
	}
	if c := records[2].Change; string(c.Before) != `{"b":1}` {
		t.Errorf("deleted %+v", c)
	}
	dead := 0
	err = j.DeadLetters("main", func(d DeadLetter) error { dead++; return nil })
	if err != nil || dead != 1 {
		t.Errorf("%d dead letters, %v", dead, err)
	}
}

func TestABodyThatIsMalformedBreaksTheJournalOnce(t *testing.T) {
	dir := t.TempDir()
	fill(t, Options{Dir: dir})
	put(t, dir, keyBody("s", "a"), []byte{bodyFormat, 200})
	j := open(t, Options{Dir: dir})
	if _, _, err := j.Body("s", "a"); !errors.Is(err, ErrBroken) {
		t.Errorf("%v, want ErrBroken", err)
	}
	if err := errors.Join(j.db.Close(), j.lock.Close()); err != nil { // the process would end
		t.Fatal(err)
	}
	if _, ok := start(t, Options{Dir: dir}).Recovered(); !ok {
		t.Error("the next start does not begin anew")
	}
}
