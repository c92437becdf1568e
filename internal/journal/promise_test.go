package journal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/journaltest"
)

func TestAtTheBoundAppendWaitsUntilASinkHasCaughtUp(t *testing.T) {
	j := startJournal(t, Options{FS: vfs.NewMem(), Declaration: Declaration{Sinks: []string{"main"}}, MaxBytes: 64 << 10, PendingBytes: 8 << 10, TailBytes: 1})
	appended := make(chan uint64)
	ctx, stop := context.WithCancel(t.Context())
	var count atomic.Uint64
	go func() {
		for n := 0; j.Append(ctx, event.Observation{Resource: resourceNamed("s"), Scope: "s", Changes: []*event.Change{podChange(n, 4096)}}) == nil; n++ {
			count.Add(1)
		}
		appended <- count.Load()
	}()
	for newest := j.Newest(); j.Stat().Blocked.Cause == ""; newest = j.Newest() { // asked first: as long as there is room, more comes
		if _, err := j.Read(t.Context(), newest); err != nil {
			t.Fatal(err)
		}
	}
	full := j.Newest()
	if got := j.Stat().Blocked.Cause; !strings.Contains(got, `"main"`) {
		t.Errorf("blocked reason %q does not name the slowest sink", got)
	}
	j.mustSettle("main", event.Cursor{Low: full})
	j.waitFor(full + 1) // appending goes on
	stop()
	<-appended
	if st := j.Stat(); st.Oldest == 1 || st.RetainedBytes > 64<<10+32<<10 {
		t.Errorf("after settling: oldest %d, %d bytes retained", st.Oldest, st.RetainedBytes)
	}
}

func TestASettlementThatContradictsTheLogIsRefused(t *testing.T) {
	j := startJournal(t, Options{FS: vfs.NewMem(), Declaration: Declaration{Sinks: []string{"main"}}})
	j.mustAppend(smallObservation("s", 0))
	j.waitFor(1)
	for _, c := range []struct {
		sink   string
		cursor event.Cursor
		dead   []event.DeadLetter
		want   string
	}{
		{"main", event.Cursor{Low: 2}, nil, "past the newest change 1"},
		{"main", event.Cursor{Lanes: map[string]uint64{"a": 2}}, nil, "past the newest change 1"},
		{"main", event.Cursor{High: 2}, nil, "past the newest change 1"},
		{"main", event.Cursor{Low: 1}, []event.DeadLetter{{Offset: 2, Change: journaltest.SmallChange(0)}}, "names no change"},
		{"nobody", event.Cursor{Low: 1}, nil, "not declared"},
	} {
		if err := j.Settle(t.Context(), c.sink, c.cursor, c.dead); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("settle %+v: %v, want %q", c, err, c.want)
		}
	}
}

func TestCallsEndWithTheirContext(t *testing.T) {
	j := openJournal(t, Options{FS: vfs.NewMem(), Declaration: Declaration{Sinks: []string{"main"}}, PendingBytes: 1})
	ctx, stop := context.WithCancel(t.Context())
	if err := j.Append(ctx, smallObservation("s", 0)); err != nil {
		t.Fatal(err)
	}
	stop()
	for what, call := range map[string]func() error{
		"append": func() error { return j.Append(ctx, smallObservation("s", 1)) },
		"settle": func() error { return j.Settle(ctx, "main", event.Cursor{}, nil) },
		"read":   func() error { _, err := j.Read(ctx, 0); return err },
	} {
		if err := call(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want canceled", what, err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	for what, call := range map[string]func() error{
		"append": func() error { return j.Append(t.Context(), smallObservation("s", 1)) },
		"settle": func() error { return j.Settle(t.Context(), "main", event.Cursor{}, nil) },
		"read":   func() error { _, err := j.Read(t.Context(), 0); return err },
		"load":   func() error { _, err := j.LoadResource("s", nil); return err },
	} {
		if err := call(); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", what, err)
		}
	}
}

func TestIntervalCommitsAtMostOnceAnInterval(t *testing.T) {
	runInVirtualTime(t, Options{FS: vfs.NewMem(), SyncInterval: time.Second}, func(t *testing.T, j *runningJournal) {
		opening := j.Stat().Commits // of the declaration
		for n := range 100 {
			j.mustAppend(smallObservation("s", n))
			time.Sleep(90 * time.Millisecond)
		}
		synctest.Wait()
		got := j.Stat()
		if commits := got.Commits - opening; commits < 9 || commits > 10 || got.Newest < 90 {
			t.Errorf("after nine seconds: %d commits, newest %d", commits, got.Newest)
		}
	})
}

// corruptFiles changes one byte in the middle of every file of the store with a suffix.
func corruptFiles(t *testing.T, dir, suffix string) {
	t.Helper()
	paths, _ := filepath.Glob(filepath.Join(dir, storeName, "*"+suffix))
	spoilt := 0
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil || len(b) == 0 {
			continue
		}
		for i := len(b) / 4; i < len(b)/4+64 && i < len(b); i++ {
			b[i] ^= 0xff
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		spoilt++
	}
	if spoilt == 0 {
		t.Fatalf("nothing to spoil: %s/*%s", dir, suffix)
	}
}

// storeBreakages are ways to break the store of a journal that has a cursor of the sink main.
var storeBreakages = map[string]func(t *testing.T, dir string){
	"manifest":         func(t *testing.T, dir string) { corruptFiles(t, dir, "") },
	"tables are gone":  func(t *testing.T, dir string) { removeAll(t, dir, "*.sst") },
	"manifest is gone": func(t *testing.T, dir string) { removeAll(t, dir, "MANIFEST-*") },
	"marked":           func(t *testing.T, dir string) { markStore(t, dir) },
	"version is odd":   func(t *testing.T, dir string) { putRaw(t, dir, codec.KeyVersion, []byte("other journal 1")) },
	"frame is odd":     func(t *testing.T, dir string) { putRaw(t, dir, codec.KeyFrame(999), []byte{1}) },
	"cursor is too far": func(t *testing.T, dir string) {
		putRaw(t, dir, codec.KeyCursor("main"), codec.EncodeCursor(event.Cursor{Low: 1 << 40}))
	},
}

func TestBrokenStoreIsMovedAsideAndReported(t *testing.T) {
	for name, breakIt := range storeBreakages {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			opts := Options{Dir: dir, Declaration: Declaration{Sinks: []string{"main"}}}
			fillJournal(t, opts)
			breakIt(t, dir)
			j := startJournal(t, opts)
			r, ok := j.PendingRecovery()
			if !ok || r.Reason == "" {
				t.Fatalf("recovered %v %+v", ok, r)
			}
			if _, err := os.Stat(r.MovedTo); err != nil {
				t.Errorf("the broken store is not kept: %v", err)
			}
			left := map[string]uint64{"marked": 101, "frame is odd": 101, "cursor is too far": 101}[name] // changes that can be read
			if j.Newest() != left || !strings.Contains(r.Reason, carriedPart) {
				t.Errorf("newest %d, want %d: %s", j.Newest(), left, r.Reason)
			}
			j.mustAppend(smallObservation("s", 1))
			j.waitFor(left + 1)
			j.stopAndClose()

			j = startJournal(t, opts) // killed before the gap was emitted: reported again
			if again, ok := j.PendingRecovery(); !ok || again != r {
				t.Errorf("after a restart: %v %+v, want %+v", ok, again, r)
			}
			if err := j.RecordGapsEmitted(t.Context()); err != nil {
				t.Fatal(err)
			}
			j.stopAndClose()
			j = startJournal(t, opts)
			if r, ok := j.PendingRecovery(); ok {
				t.Errorf("reported once too often: %+v", r)
			}
		})
	}
}

func fillJournal(t *testing.T, opts Options) {
	t.Helper()
	j := startJournal(t, opts)
	for n := range 100 {
		j.mustAppend(event.Observation{Resource: resourceNamed("s"), Scope: "s", Changes: []*event.Change{podChange(n, 4096)}, Position: fmt.Sprint(n)})
	}
	j.waitFor(100)
	if err := j.store.db.Flush(); err != nil {
		t.Fatal(err)
	}
	j.mustAppend(smallObservation("s", 101))
	j.waitFor(101)
	j.stopAndClose()
}

func removeAll(t *testing.T, dir, pattern string) {
	t.Helper()
	paths, _ := filepath.Glob(filepath.Join(dir, storeName, pattern))
	if len(paths) == 0 {
		t.Fatalf("nothing to remove: %s", pattern)
	}
	for _, path := range paths {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

func markStore(t *testing.T, dir string) {
	t.Helper()
	if err := markBroken(vfs.Default, filepath.Join(dir, storeName), "a bad block"); err != nil {
		t.Fatal(err)
	}
}

// putRaw writes a key into a closed journal's store.
func putRaw(t *testing.T, dir string, key, value []byte) {
	t.Helper()
	db, err := pebble.Open(filepath.Join(dir, storeName), storeOptions(vfs.Default, &storeLogger{logger: discardLogger}))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Set(key, value, pebble.Sync), db.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestBadBlockFoundWhileReadingEndsRunAndNextOpenRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		opts := Options{Dir: dir, TailBytes: 1}
		fillJournal(t, opts)
		putRaw(t, dir, codec.KeyFrame(1), append([]byte{1, 100, 0}, "no zstd"...))
		j := openJournal(t, Options{Dir: dir, TailBytes: 1, Logger: discardLogger})
		done := make(chan error, 1)
		go func() { done <- j.Run(t.Context()) }()
		if _, err := j.Read(t.Context(), 0); !errors.Is(err, ErrBroken) {
			t.Errorf("read: %v, want ErrBroken", err)
		}
		if err := <-done; !errors.Is(err, ErrBroken) {
			t.Errorf("run: %v, want ErrBroken", err)
		}
		if err := j.Append(t.Context(), smallObservation("s", 1)); !errors.Is(err, ErrBroken) {
			t.Errorf("append: %v, want ErrBroken", err)
		}
		if !strings.Contains(j.Stat().Blocked.Cause, "restart") {
			t.Errorf("blocked %q", j.Stat().Blocked.Cause)
		}
		// The process would end now; here the store is closed by hand for the next Open, once no call uses it.
		synctest.Wait()
		if err := errors.Join(j.store.db.Close(), j.store.lock.Close()); err != nil {
			t.Fatal(err)
		}
		next := startJournal(t, opts)
		if r, ok := next.PendingRecovery(); !ok || !strings.Contains(r.Reason, "malformed") {
			t.Errorf("recovered %v %+v", ok, r)
		}
		next.stopAndClose()
	})
}

// fullDisk fails writes with ENOSPC while it is full.
type fullDisk struct {
	hookedDisk
	full    atomic.Bool
	refused chan struct{} // a write was refused
}

func newFullDisk(fs vfs.FS) *fullDisk {
	d := &fullDisk{hookedDisk: hookedDisk{FS: fs}, refused: make(chan struct{}, 1)}
	d.create = d.checkSpace
	d.write = func(f vfs.File, p []byte) (int, error) { // half of p before it finds the disk full, as the kernel may
		if err := d.checkSpace(); err != nil {
			n, _ := f.Write(p[:len(p)/2])
			return n, err
		}
		return 0, nil
	}
	return d
}

func (d *fullDisk) checkSpace() error {
	if !d.full.Load() {
		return nil
	}
	select {
	case d.refused <- struct{}{}:
	default:
	}
	return &os.PathError{Op: "write", Path: "disk", Err: syscall.ENOSPC}
}

func TestAFullDiskIsWaitedForAndNothingIsLost(t *testing.T) {
	disk := newFullDisk(vfs.NewMem())
	opts := Options{FS: disk, Declaration: Declaration{Sinks: []string{"main"}}}
	j := openJournal(t, opts)
	j.store.fs.RetryEvery = time.Millisecond
	r := runJournal(t, j)
	r.mustAppend(smallObservation("s", 0))
	r.waitFor(1)
	disk.full.Store(true)
	for n := range 20 {
		r.mustAppend(smallObservation("s", n+1))
	}
	<-disk.refused
	<-disk.refused // the first wait has begun
	if got := j.Stat().Blocked.Cause; !strings.Contains(got, "disk is full") {
		t.Errorf("blocked %q", got)
	}
	if j.Newest() != 1 {
		t.Errorf("newest %d while nothing can be written", j.Newest())
	}
	disk.full.Store(false)
	r.waitFor(21)
	if got := j.Stat().Blocked.Cause; got != "" {
		t.Errorf("still blocked: %q", got)
	}
	r.stopAndClose()
	r = startJournal(t, opts)
	if got := len(r.readTo(0, 21)); got != 21 {
		t.Errorf("%d changes after a reopen", got)
	}
}

// runInChildProcess runs the calling test in a child process, because a store that failed keeps goroutines and locks until
// the process ends. It returns true in the child.
func runInChildProcess(t *testing.T) bool {
	t.Helper()
	const childOf = "JOURNAL_TEST_CHILD"
	if os.Getenv(childOf) == t.Name() {
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), childOf+"="+t.Name())
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "kept") {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// exitChild ends the child process of a test.
func exitChild(t *testing.T) {
	if t.Failed() {
		return
	}
	fmt.Println("kept")
	os.Exit(0)
}

func TestOpenOnAFullDiskReportsItAndBreaksNothing(t *testing.T) {
	if !runInChildProcess(t) {
		return
	}
	mem := vfs.NewCrashableMem()
	disk := newFullDisk(mem)
	j := startJournal(t, Options{FS: disk})
	j.mustAppend(smallObservation("s", 1))
	j.waitFor(1)
	j.stopAndClose()
	disk.full.Store(true)
	_, err := Open(Options{Dir: "journal", FS: disk, Logger: discardLogger})
	if err == nil || !strings.Contains(err.Error(), "free space") {
		t.Fatalf("open: %v, want the remedy", err)
	}
	j = startJournal(t, Options{FS: mem.CrashClone(vfs.CrashCloneCfg{})})
	if _, ok := j.PendingRecovery(); ok || j.Newest() != 1 {
		t.Errorf("recovered %v, newest %d: a full disk was taken for a broken store", ok, j.Newest())
	}
	exitChild(t)
}

func TestStoppingOnAFullDiskReturnsAndLosesNothingDurable(t *testing.T) {
	if !runInChildProcess(t) {
		return
	}
	mem := vfs.NewCrashableMem()
	disk := newFullDisk(mem)
	j := openJournal(t, Options{FS: disk})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()
	_ = j.Append(ctx, smallObservation("s", 1))
	_, _ = j.Read(ctx, 0)
	disk.full.Store(true)
	_ = j.Append(ctx, smallObservation("s", 2))
	<-disk.refused
	stop()
	if err := <-done; !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("run: %v, want ENOSPC", err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	r := startJournal(t, Options{FS: mem.CrashClone(vfs.CrashCloneCfg{})})
	if _, s := r.loadStored("s"); r.Newest() != 1 || s.Position != "1" {
		t.Errorf("newest %d, position %q", r.Newest(), s.Position)
	}
	exitChild(t)
}

func TestFailedFsyncEndsRunAndNothingUnsyncedIsVisible(t *testing.T) {
	if !runInChildProcess(t) {
		return
	}
	var dead atomic.Bool
	disk := &hookedDisk{FS: vfs.NewMem(), sync: func(string) error {
		if dead.Load() {
			return syscall.EIO
		}
		return nil
	}}
	j := openJournal(t, Options{FS: disk, Declaration: Declaration{Sinks: []string{"main"}}})
	done := make(chan error, 1)
	go func() { done <- j.Run(context.Background()) }()
	_ = j.Append(context.Background(), smallObservation("s", 0))
	_, _ = j.Read(context.Background(), 0)
	dead.Store(true)
	_ = j.Append(context.Background(), smallObservation("s", 1))
	_, readErr := j.Read(context.Background(), 1)
	settleErr := j.Settle(context.Background(), "main", event.Cursor{Low: 1}, nil)
	runErr := <-done
	for what, err := range map[string]error{"read": readErr, "settle": settleErr, "run": runErr} {
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v, want EIO", what, err)
		}
	}
	if j.Newest() != 1 {
		t.Errorf("newest %d, want 1", j.Newest())
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	exitChild(t)
}

// TestContentsOfABrokenStoreAreNamedOnce has a start that marked the store and was killed before it moved it.
func TestContentsOfABrokenStoreAreNamedOnce(t *testing.T) {
	dir := t.TempDir()
	fillJournal(t, Options{Dir: dir})
	reason := "a bad block" + contentsPart + describeContents(vfs.Default, filepath.Join(dir, storeName))
	if err := markBroken(vfs.Default, filepath.Join(dir, storeName), reason); err != nil {
		t.Fatal(err)
	}
	j := openJournal(t, Options{Dir: dir, Logger: discardLogger})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if last, err := lastRecovery(vfs.Default, dir); err != nil || last == nil || last.Reason != reason {
		t.Errorf("%+v %v, want the reason %q", last, err, reason)
	}
}
