package journal

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
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
	j := startJournal(t, opts)
	if r, ok := j.PendingRecovery(); ok {
		t.Fatalf("the upgrade took the journal for broken: %+v", r)
	}
	checkVersion1(t, j)
	j.mustAppend(event.Observation{
		Resource: resourceNamed("pods"), Scope: "pods",
		Changes: []*event.Change{{Type: event.SnapshotEnd, Class: event.ClassSpec, Snapshot: &event.SnapshotInfo{ID: "x"}, ObservedAt: time.Unix(1, 0).UTC()}},
		Known:   []event.Known{{Key: "ns/c", UID: "u3", ResourceVersion: "9", Summary: "s"}},
		Bodies:  []event.Body{{Key: "ns/c", Raw: []byte("{}")}},
	})
	j.waitFor(4)
	j.stopAndClose()

	j = startJournal(t, opts)
	if got := j.readTo(3, 4)[0].Change; got.Class != event.ClassSpec || got.Snapshot.ID != "x" {
		t.Errorf("what was written after the upgrade came back as %+v", got)
	}
	stored, err := j.getValue(codec.KeyVersion)
	if err != nil || !bytes.Equal(stored, codec.EncodeVersion()) {
		t.Errorf("version %q %v: an older exporter would not refuse it", stored, err)
	}
}

func checkVersion1(t *testing.T, j *runningJournal) {
	t.Helper()
	known, scope := j.loadStored("pods")
	want := []event.Known{{Key: "ns/a", UID: "u1", ResourceVersion: "6"}}
	if scope.Position != "" || !strings.Contains(scope.LostReason, "deletes") || !reflect.DeepEqual(known, want) {
		t.Errorf("scope %+v, known %+v, want %+v", scope, known, want)
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
	err := j.forEachDeadLetter("main", func(d event.DeadLetter) error { dead++; return nil })
	if err != nil || dead != 1 {
		t.Errorf("%d dead letters, %v", dead, err)
	}
}

var writeTestdata = flag.Bool("write-testdata", false, "write testdata/vN of the version that is written now, if it is not there")

// testdata/v2 and later were written by exporters of each format, by writeStored: they hold what was remembered of two
// scopes, last states, changes that not every sink has taken, and a dead letter. Whoever raises the version has the old one
// there: go test ./internal/journal -run EachLaterVersion -write-testdata keeps what the present one writes.
func TestAJournalOfEachLaterVersionGoesOnWithoutAGap(t *testing.T) {
	for version := 2; version <= codec.Version; version++ {
		t.Run(fmt.Sprintf("version %d", version), func(t *testing.T) {
			stored, dir := filepath.Join("testdata", fmt.Sprintf("v%d", version)), t.TempDir()
			if _, err := os.Stat(stored); version == codec.Version && errors.Is(err, fs.ErrNotExist) {
				if !*writeTestdata {
					stored = t.TempDir()
				}
				writeStored(t, stored)
			}
			if err := os.CopyFS(dir, os.DirFS(stored)); err != nil {
				t.Fatal(err)
			}
			opts := Options{Dir: dir, Sinks: []string{"main", "second"}}
			for range 2 { // the second start finds nothing left to do
				j := startJournal(t, opts)
				if r, ok := j.PendingRecovery(); ok {
					t.Fatalf("the upgrade took the journal for broken: %+v", r)
				}
				checkRemembered(t, j)
				checkUndelivered(t, j)
				j.stopAndClose()
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

	j := startJournal(t, Options{Dir: dir, Sinks: []string{"main", "second"}})
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
	err := j.forEachDeadLetter("main", func(d event.DeadLetter) error {
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
	if err := errors.Join(j.db.Close(), j.lock.Close()); err != nil { // the process would end
		t.Fatal(err)
	}
	if _, ok := startJournal(t, Options{Dir: dir}).PendingRecovery(); !ok {
		t.Error("the next start does not begin anew")
	}
}

// version2 makes the store of an exporter of version 2 that knows what is given: scope, then "position=…", "snapshot=…",
// "key=uid@resourceVersion" of a known object that has a body of its resourceVersion too, or "key!" of one that is gone.
func version2(t *testing.T, fsys vfs.FS, scopes map[string][]string) {
	t.Helper()
	opts := Options{FS: fsys}
	startJournal(t, opts).stopAndClose()
	db, err := pebble.Open(fsys.PathJoin("journal", storeName), storeOptions(fsys, &storeLogger{logger: discardLogger}))
	if err != nil {
		t.Fatal(err)
	}
	b := db.NewBatch()
	_ = b.Set(codec.KeyVersion, []byte("kubecdc journal 2"), nil)
	for scope, entries := range scopes {
		for _, entry := range entries {
			name, value, _ := strings.Cut(entry, "=")
			switch name {
			case "position":
				_ = b.Set(append([]byte{oldPosition}, scope...), []byte(value), nil)
			case "snapshot":
				_ = b.Set(append([]byte{oldSnapshot}, scope...), []byte(value), nil)
			default:
				key, gone := strings.CutSuffix(name, "!")
				uid, version, _ := strings.Cut(value, "@")
				k := codec.AppendKnown(nil, &event.Known{Key: key, UID: uid, ResourceVersion: version})
				if gone {
					k[0] |= oldGone
				}
				_ = b.Set(codec.KeyNamed(codec.PrefixKnown, scope, key), k, nil)
				if !gone {
					body, _ := codec.AppendBody(nil, nil, &event.Body{UID: uid, ResourceVersion: version, Raw: []byte(version)})
					_ = b.Set(codec.KeyNamed(codec.PrefixBody, scope, key), body, nil)
				}
			}
		}
	}
	if err := errors.Join(b.Commit(pebble.Sync), db.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestWhatWasKnownByScopeIsKnownByResourceAfterAnUpgrade(t *testing.T) {
	const apart, ahead = "kept what they knew", "deletes of this resource"
	for name, c := range map[string]struct {
		scopes map[string][]string
		known  string            // of deployments.apps
		want   map[string]string // position of each scope, or a part of what it says is lost
	}{
		"one scope": {
			map[string][]string{"deployments.apps": {"position=9", "a/x=u1@5", "b/y=u2@7"}}, "a/x=u1@5 b/y=u2@7",
			map[string]string{"deployments.apps": "9"},
		},
		"one scope with a selector": {
			map[string][]string{"deployments.apps;l=a in (b)": {"position=9", "a/x=u1@5"}}, "a/x=u1@5",
			map[string]string{"deployments.apps;l=a in (b)": "9"},
		},
		"a namespace each": {
			map[string][]string{"deployments.apps;ns=a;l=x": {"position=9", "a/x=u1@5"}, "deployments.apps;ns=b;l=x": {"position=8", "b/y=u2@7"}},
			"a/x=u1@5 b/y=u2@7", map[string]string{"deployments.apps;ns=a;l=x": "9", "deployments.apps;ns=b;l=x": "8"},
		},
		"overlapping scopes: the newer version of an object stays": {
			map[string][]string{"deployments.apps": {"position=9", "a/x=u1@9", "b/y=u2@7"}, "deployments.apps;l=x": {"position=12", "a/x=u1@10", "b/y=u2@6"}},
			"a/x=u1@10 b/y=u2@7", map[string]string{"deployments.apps": apart, "deployments.apps;l=x": apart},
		},
		"a snapshot in progress goes on": {
			map[string][]string{"deployments.apps": {"snapshot=s1", "a/x=u1@5"}}, "a/x=u1@5", map[string]string{"deployments.apps": ""},
		},
		"deletes ahead of the position": {
			map[string][]string{"deployments.apps": {"position=9", "a/x=u1@5", "b/y!=u2@10"}}, "a/x=u1@5", map[string]string{"deployments.apps": ahead},
		},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := vfs.NewMem()
			c.scopes["pods"] = []string{"position=3", "a/x=p1@1"}
			version2(t, fsys, c.scopes)
			for range 2 { // the second start finds nothing left to do
				j := startJournal(t, Options{FS: fsys})
				var known []string
				got, err := j.LoadResource("deployments.apps", func(k event.Known) {
					known = append(known, k.Key+"="+k.UID+"@"+k.ResourceVersion)
					if b, ok, err := j.Body("deployments.apps", k.Key); err != nil || !ok || string(b.Raw) != k.ResourceVersion {
						t.Errorf("body of %s: %+v %v", k.Key, b, err)
					}
				})
				if s := strings.Join(known, " "); err != nil || s != c.known {
					t.Errorf("known %s %v, want %s", s, err, c.known)
				}
				if got.Resource != resourceNamed("deployments.apps") || len(got.Scopes) != len(c.want) {
					t.Errorf("stored %+v", got)
				}
				for _, s := range got.Scopes {
					if want := c.want[s.ID]; s.Position != want && (s.Position != "" || want == "" || !strings.Contains(s.LostReason, want)) {
						t.Errorf("scope %+v, want %s", s, want)
					}
				}
				if known, s := j.loadStored("pods"); len(known) != 1 || s.Position != "3" || s.LostReason != "" {
					t.Errorf("another resource has %v %+v", known, s)
				}
				if names := j.BodyResources(); !slices.Equal(names, []string{"deployments.apps", "pods"}) {
					t.Errorf("bodies of %q", names)
				}
				j.stopAndClose()
			}
		})
	}
}

func TestAnUpgradeThatIsCutShortIsGoneOnWith(t *testing.T) {
	fsys := vfs.NewCrashableMem()
	entries := []string{"position=9"}
	for n := range 2000 {
		entries = append(entries, fmt.Sprintf("%s/o%d=%s@5", strings.Repeat("long-", 100), n, strings.Repeat("uid", 100)))
	}
	version2(t, fsys, map[string][]string{"pods;l=x": entries})
	var mu sync.Mutex
	var cuts []vfs.FS
	slow := &cutting{FS: fsys, cut: func() {
		mu.Lock()
		defer mu.Unlock()
		cuts = append(cuts, fsys.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(uint64(len(cuts)), 1))}))
	}}
	startJournal(t, Options{FS: slow}).stopAndClose()
	if len(cuts) < 2 {
		t.Fatalf("cut %d times only", len(cuts))
	}
	for _, left := range cuts {
		j := startJournal(t, Options{FS: left})
		if known, s := j.loadStored("pods"); len(known) != 2000 || s.ID != "pods;l=x" || s.Position != "9" {
			t.Errorf("%d known, scope %+v", len(known), s)
		}
		j.stopAndClose()
	}
}

// cutting calls cut before every sync of a file.
type cutting struct {
	vfs.FS
	cut func()
}

type cuttingFile struct {
	vfs.File
	fs *cutting
}

func (c *cutting) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := c.FS.Create(name, category)
	return &cuttingFile{f, c}, err
}

func (f *cuttingFile) Sync() error     { f.fs.cut(); return f.File.Sync() }
func (f *cuttingFile) SyncData() error { f.fs.cut(); return f.File.SyncData() }
