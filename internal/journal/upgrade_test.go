package journal

import (
	"errors"
	"fmt"
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
	j := start(t, opts)
	if r, ok := j.Recovered(); ok {
		t.Fatalf("the upgrade took the journal for broken: %+v", r)
	}
	checkVersion1(t, j)
	j.append(event.Observation{
		Resource: resource("pods"), Scope: "pods",
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
	stored, err := j.get(codec.KeyVersion)
	if err != nil || string(stored) != "kubecdc journal 4" {
		t.Errorf("version %q %v: an older exporter would not refuse it", stored, err)
	}
}

func checkVersion1(t *testing.T, j *running) {
	t.Helper()
	known, scope := j.stored("pods")
	want := []event.Known{{Key: "ns/a", UID: "u1", ResourceVersion: "6"}}
	if scope.Position != "" || !strings.Contains(scope.Lost, "deletes") || !reflect.DeepEqual(known, want) {
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
	err := j.deadLetters("main", func(d event.DeadLetter) error { dead++; return nil })
	if err != nil || dead != 1 {
		t.Errorf("%d dead letters, %v", dead, err)
	}
}

func TestABodyThatIsMalformedBreaksTheJournalOnce(t *testing.T) {
	dir := t.TempDir()
	fill(t, Options{Dir: dir})
	put(t, dir, codec.KeyOf(codec.PrefixBody, "s", "a"), []byte{1, 200})
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

// version2 makes the store of an exporter of version 2 that knows what is given: scope, then "position=…", "snapshot=…",
// "key=uid@resourceVersion" of a known object that has a body of its resourceVersion too, or "key!" of one that is gone.
func version2(t *testing.T, fsys vfs.FS, scopes map[string][]string) {
	t.Helper()
	opts := Options{FS: fsys}
	start(t, opts).end()
	db, err := pebble.Open(fsys.PathJoin("journal", storeName), storeOptions(fsys, &storeLogger{logger: quiet}))
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
				_ = b.Set(codec.KeyOf(codec.PrefixKnown, scope, key), k, nil)
				if !gone {
					body, _ := codec.AppendBody(nil, nil, &event.Body{UID: uid, ResourceVersion: version, Raw: []byte(version)})
					_ = b.Set(codec.KeyOf(codec.PrefixBody, scope, key), body, nil)
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
				j := start(t, Options{FS: fsys})
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
				if got.Resource != resource("deployments.apps") || len(got.Scopes) != len(c.want) {
					t.Errorf("stored %+v", got)
				}
				for _, s := range got.Scopes {
					if want := c.want[s.ID]; s.Position != want && (s.Position != "" || want == "" || !strings.Contains(s.Lost, want)) {
						t.Errorf("scope %+v, want %s", s, want)
					}
				}
				if known, s := j.stored("pods"); len(known) != 1 || s.Position != "3" || s.Lost != "" {
					t.Errorf("another resource has %v %+v", known, s)
				}
				if names := j.BodyResources(); !slices.Equal(names, []string{"deployments.apps", "pods"}) {
					t.Errorf("bodies of %q", names)
				}
				j.end()
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
	start(t, Options{FS: slow}).end()
	if len(cuts) < 2 {
		t.Fatalf("cut %d times only", len(cuts))
	}
	for _, left := range cuts {
		j := start(t, Options{FS: left})
		if known, s := j.stored("pods"); len(known) != 2000 || s.ID != "pods;l=x" || s.Position != "9" {
			t.Errorf("%d known, scope %+v", len(known), s)
		}
		j.end()
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
