package journal

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

var writeTestdata = flag.Bool("write-testdata", false, "write testdata/vN for the format version of this build, if it is missing")

// TestStoredJournalOfThisFormatIsRead opens a journal that an earlier build wrote with the same format version: known
// objects, bodies, changes that not every sink has received, cursors and a dead letter. It fails when the layout changes and
// the version does not. After raising the version, write the new fixture with go test ./internal/journal -run OfThisFormat
// -write-testdata.
func TestStoredJournalOfThisFormatIsRead(t *testing.T) {
	stored, dir := filepath.Join("testdata", codec.Version), t.TempDir()
	if _, err := os.Stat(stored); *writeTestdata && errors.Is(err, fs.ErrNotExist) {
		writeStored(t, stored)
	}
	if err := os.CopyFS(dir, os.DirFS(stored)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		j := startJournal(t, Options{Dir: dir, Declaration: Declaration{Sinks: []string{"main", "second"}}})
		if r, ok := j.PendingRecovery(); ok {
			t.Fatalf("the journal was moved aside: %+v", r)
		}
		checkRemembered(t, j)
		checkUndelivered(t, j)
		j.stopAndClose()
	}
}

func TestOtherFormatVersionIsRefusedAndLeftUnchanged(t *testing.T) {
	for _, version := range []string{"5", "v0", "v2", "99"} {
		t.Run("version "+version, func(t *testing.T) {
			dir := t.TempDir()
			fillJournal(t, Options{Dir: dir})
			putRaw(t, dir, codec.KeyVersion, []byte(codec.VersionPrefix+version))
			_, offlineErr := OpenOffline(dir)
			_, discardErr := discardStopped(dir, "main", nil)
			_, err := Open(Options{Dir: dir, Logger: discardLogger})
			_, again := Open(Options{Dir: dir, Logger: discardLogger}) // the first refusal has not moved the store aside
			for what, err := range map[string]error{"offline": offlineErr, "discard": discardErr, "open": err, "open again": again} {
				if !errors.Is(err, ErrFormatVersion) {
					t.Errorf("%s: %v, want ErrFormatVersion", what, err)
					continue
				}
				for _, part := range []string{dir, fmt.Sprintf("version %q,", version), "delete the journal directory", "snapshot"} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%s: %q does not contain %q", what, err, part)
					}
				}
			}
			putRaw(t, dir, codec.KeyVersion, []byte(codec.VersionPrefix+codec.Version))
			if j := startJournal(t, Options{Dir: dir}); j.Newest() != 101 {
				t.Errorf("newest %d after the refusals, want 101", j.Newest())
			}
		})
	}
}

// writeStored writes the journal that checkRemembered and checkUndelivered know.
func writeStored(t *testing.T, dir string) {
	t.Helper()
	at := time.Unix(1700000000, 5).UTC()
	pods := event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}
	deployments := event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"}
	pod := func(c event.Change) *event.Change {
		c.Cluster, c.Resource, c.Namespace, c.ObservedAt = "c", pods, "ns", at
		return &c
	}
	a := func(version, raw string) ([]event.Known, []event.Body) {
		return []event.Known{{Key: "ns/a", UID: "u1", ResourceVersion: version, Summary: "s" + version}},
			[]event.Body{{Key: "ns/a", UID: "u1", ResourceVersion: version, Raw: []byte(raw)}}
	}
	listed := event.Observation{Resource: pods, Scope: "pods", Snapshot: "snap", Changes: []*event.Change{pod(event.Change{
		Type: event.Snapshot, Name: "a", UID: "u1", ResourceVersion: "4", Class: event.ClassSpec,
		Snapshot: &event.SnapshotInfo{ID: "snap"}, After: []byte(`{"a":0}`),
	})}}
	listed.Known, listed.Bodies = a("4", `{"a":0}`)
	watched := event.Observation{Resource: pods, Scope: "pods", Position: "7", Changes: []*event.Change{
		pod(event.Change{
			Type: event.Updated, Name: "a", UID: "u1", ResourceVersion: "6", Class: event.ClassStatus,
			Actor: &event.Actor{Manager: "m"}, After: []byte(`{"a":1}`),
		}),
		pod(event.Change{Type: event.Deleted, Name: "b", UID: "u2", ResourceVersion: "7", Before: []byte(`{"b":1}`)}),
	}}
	watched.Known, watched.Bodies = a("6", `{"a":1}`)
	d := event.Change{
		Cluster: "c", Resource: deployments, Namespace: "web", Type: event.Added, Name: "d", UID: "u3", ResourceVersion: "9",
		ObservedAt: at, After: []byte(`{"d":1}`),
	}
	other := event.Observation{
		Resource: deployments, Scope: "deployments.apps;ns=web;l=app=shop", Position: "9", Changes: []*event.Change{&d},
		Known: []event.Known{{Key: "web/d", UID: "u3", ResourceVersion: "9", Summary: "s9"}},
	}

	j := startJournal(t, Options{Dir: dir, Declaration: Declaration{Sinks: []string{"main", "second"}}})
	if err := j.SetCluster(t.Context(), "cluster-uid"); err != nil {
		t.Fatal(err)
	}
	j.mustAppend(listed, watched, other)
	j.waitFor(4)
	j.mustSettle("main", event.Cursor{Low: 2, Lanes: map[string]uint64{"lane": 4}, Layout: "layout", State: []byte("state")},
		event.DeadLetter{Offset: 4, Time: at, Reason: "too large", Change: &d})
	j.mustSettle("second", event.Cursor{Low: 1})
	j.stopAndClose()
}

// checkRemembered compares what a start of the source reads.
func checkRemembered(t *testing.T, j *runningJournal) {
	t.Helper()
	if uid, err := j.Cluster(); err != nil || uid != "cluster-uid" {
		t.Errorf("cluster %q %v", uid, err)
	}
	for name, want := range map[string]struct {
		known event.Known
		scope event.StoredScope
	}{
		"pods": {
			event.Known{Key: "ns/a", UID: "u1", ResourceVersion: "6", Summary: "s6"},
			event.StoredScope{ID: "pods", Position: "7", Snapshot: "snap"},
		},
		"deployments.apps": {
			event.Known{Key: "web/d", UID: "u3", ResourceVersion: "9", Summary: "s9"},
			event.StoredScope{ID: "deployments.apps;ns=web;l=app=shop", Position: "9"},
		},
	} {
		if known, scope := j.loadStored(name); !reflect.DeepEqual(known, []event.Known{want.known}) || scope != want.scope {
			t.Errorf("%s: known %+v, scope %+v, want %+v", name, known, scope, want)
		}
	}
	if b, ok, err := j.Body("pods", "ns/a"); err != nil || !ok || string(b.Raw) != `{"a":1}` || b.ResourceVersion != "6" {
		t.Errorf("last state %+v %v %v", b, ok, err)
	}
}

// checkUndelivered compares what a start of the delivery reads.
func checkUndelivered(t *testing.T, j *runningJournal) {
	t.Helper()
	var got []string
	for _, r := range j.readTo(1, 4) {
		c := r.Change
		actor := ""
		if c.Actor != nil {
			actor = c.Actor.Manager
		}
		got = append(got, fmt.Sprint(r.Offset, c.Type, c.Resource, c.Name, c.ResourceVersion, c.Class, actor, string(c.Before), string(c.After)))
	}
	want := []string{
		fmt.Sprint(2, event.Updated, "pods", "a", "6", event.ClassStatus, "m", "", `{"a":1}`),
		fmt.Sprint(3, event.Deleted, "pods", "b", "7", "", "", `{"b":1}`, ""),
		fmt.Sprint(4, event.Added, "deployments.apps", "d", "9", "", "", "", `{"d":1}`),
	}
	if !slices.Equal(got, want) {
		t.Errorf("changes\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for sink, want := range map[string]event.Cursor{
		"main":   {Low: 2, High: 2, Lanes: map[string]uint64{"lane": 4}, Layout: "layout", State: []byte("state")},
		"second": {Low: 1, High: 1},
	} {
		if c, ok, err := j.Cursor(sink); err != nil || !ok || !reflect.DeepEqual(c, want) {
			t.Errorf("%s: cursor %+v %v %v, want %+v", sink, c, ok, err, want)
		}
	}
	var letters []string
	err := j.DeadLetters.reader().forEachLetter("main", func(d event.DeadLetter) error {
		letters = append(letters, d.Reason+": "+d.Change.Name)
		return nil
	})
	if err != nil || !slices.Equal(letters, []string{"too large: d"}) {
		t.Errorf("dead letters %q, %v", letters, err)
	}
}

func TestABodyThatIsMalformedBreaksTheJournalOnce(t *testing.T) {
	dir := t.TempDir()
	fillJournal(t, Options{Dir: dir})
	putRaw(t, dir, codec.KeyNamed(codec.PrefixBody, "s", "a"), []byte{1, 200})
	j := openJournal(t, Options{Dir: dir})
	if _, _, err := j.Body("s", "a"); !errors.Is(err, ErrBroken) {
		t.Errorf("%v, want ErrBroken", err)
	}
	if err := errors.Join(j.store.db.Close(), j.store.lock.Close()); err != nil { // the process would end
		t.Fatal(err)
	}
	if _, ok := startJournal(t, Options{Dir: dir}).PendingRecovery(); !ok {
		t.Error("the next start does not begin anew")
	}
}
