package journal

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/internal/journal/disk"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/journaltest"
)

// writeStoppedJournal makes a stopped journal with changes in tables and in the log, two scopes, a sink that is behind with
// dead letters, and one that has not settled anything. It returns its changes.
func writeStoppedJournal(t *testing.T, dir string) []*event.Change {
	t.Helper()
	j := startJournal(t, Options{Dir: dir, Declaration: Declaration{Sinks: []string{"bus", "main"}}})
	var all []*event.Change
	for n := range 300 {
		c := podChange(n, 4096)
		all = append(all, c)
		j.mustAppend(event.Observation{
			Resource: resourceNamed("pods"), Scope: "pods", Changes: []*event.Change{c}, Position: fmt.Sprint(n),
			Known: []event.Known{{Key: fmt.Sprint("team/", n%40), UID: c.UID, ResourceVersion: c.ResourceVersion}},
		})
		if n == 150 {
			j.waitFor(151)
			if err := j.store.db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	j.mustAppend(event.Observation{Resource: resourceNamed("deployments.apps"), Scope: "deployments.apps", Position: "77"})
	j.waitFor(300)
	j.mustSettle("bus", event.Cursor{Low: 120, Lanes: map[string]uint64{"3": 125}, Layout: "v1"},
		event.DeadLetter{Offset: 5, Time: time.Unix(1_800_000_000, 0).UTC(), Reason: "too large", Change: all[4]},
		event.DeadLetter{Offset: 9, Time: time.Unix(1_800_000_001, 0).UTC(), Reason: "refused", Change: all[8]})
	storeSignals(t, j.Journal, map[uint64][]byte{0: []byte("1"), 1: []byte("dropped later"), 2: bytes.Repeat([]byte("s"), 1000)})
	storeSignals(t, j.Journal, map[uint64][]byte{0: []byte("2"), 1: nil, 3: []byte("{}")})
	j.stopAndClose()
	return all
}

// storedSignals are the entries of signals that writeStoppedJournal leaves.
var storedSignals = map[uint64][]byte{0: []byte("2"), 2: bytes.Repeat([]byte("s"), 1000), 3: []byte("{}")}

func storeSignals(t *testing.T, j *Journal, entries map[uint64][]byte) {
	t.Helper()
	if err := j.StoreSignals(t.Context(), entries); err != nil {
		t.Fatal(err)
	}
}

func openOffline(t *testing.T, dir string) *Offline {
	t.Helper()
	o, err := OpenOffline(dir)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// readOffline reads everything in an offline journal, and returns its changes and counts.
func readOffline(t *testing.T, dir string) (records []event.Record, s OfflineStat) {
	t.Helper()
	o := openOffline(t, dir)
	defer func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	}()
	s, err := o.Stat()
	if err != nil {
		t.Fatal(err)
	}
	err = o.ForEachChange(0, ^uint64(0), func(r event.Record) error {
		records = append(records, r)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return records, s
}

func TestAStoppedJournalIsReadAndLeftAsItIs(t *testing.T) {
	dir := t.TempDir()
	all := writeStoppedJournal(t, dir)
	journaltest.RequireUnchanged(t, dir, func() {
		records, s := readOffline(t, dir)
		if len(records) != len(all) {
			t.Fatalf("%d changes, want %d", len(records), len(all))
		}
		for i, r := range records {
			if r.Offset != uint64(i+1) || !reflect.DeepEqual(r.Change, all[i]) {
				t.Fatalf("offset %d: %+v, want %+v", r.Offset, r.Change, all[i])
			}
		}
		if s.RetainedBytes <= 0 || s.DiskBytes < s.RetainedBytes || s.ChangeCount() != 300 {
			t.Errorf("%d changes, %d bytes retained, %d on disk", s.ChangeCount(), s.RetainedBytes, s.DiskBytes)
		}
		if r := s.Resources; len(r) != 2 || r[0].Name != "deployments.apps" || r[0].Known != 0 || r[0].Scopes[0].Position != "77" ||
			r[1].Name != "pods" || r[1].Known != 40 || r[1].KnownBytes == 0 || r[1].Scopes[0].Position != "299" {
			t.Errorf("resources %+v", s.Resources)
		}
		if len(s.Sinks) != 1 { // main has left nothing
			t.Fatalf("sinks %+v", s.Sinks)
		}
		bus := s.Sinks[0]
		if bus.Name != "bus" || !bus.Settled || bus.Cursor.Low != 120 || bus.Cursor.Lanes["3"] != 125 || bus.Backlog != 180 || bus.DeadLetters != 2 || bus.DeadBytes <= 0 {
			t.Errorf("sink %+v", bus)
		}
	})
}

func TestOfflineAndRunningAgreeOnTheNumbers(t *testing.T) {
	dir := t.TempDir()
	writeStoppedJournal(t, dir)
	_, offline := readOffline(t, dir)
	j := openJournal(t, Options{Dir: dir, Declaration: Declaration{Sinks: []string{"bus", "main"}}})
	running := j.Stat()
	entries, err := j.Signals()
	if err := errors.Join(err, j.Close()); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(entries, storedSignals) || !reflect.DeepEqual(offline.Signals, storedSignals) {
		t.Errorf("the signals are %v, and offline %v", entries, offline.Signals)
	}
	changes := running.RetainedBytes - running.KnownBytes - running.BodyBytes // those are measured, and here they are counted
	for _, r := range offline.Resources {
		offline.RetainedBytes -= r.KnownBytes + r.BodyBytes
	}
	if offline.Oldest != running.Oldest || offline.Newest != running.Newest || offline.RetainedBytes != changes {
		t.Errorf("offline %d to %d, %d bytes; running %d to %d, %d bytes", offline.Oldest, offline.Newest, offline.RetainedBytes,
			running.Oldest, running.Newest, changes)
	}
}

func TestAJournalWhoseExporterWasKilledIsRead(t *testing.T) {
	dir, copied := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	j := startJournal(t, Options{Dir: dir})
	for n := range 50 {
		j.mustAppend(smallObservation("s", n+1))
	}
	j.waitFor(50)
	j.store.db.TestOnlyWaitForCleaning()                     // no file may vanish while it is copied
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil { // as a SIGKILL now would leave it
		t.Fatal(err)
	}
	logs, _ := filepath.Glob(filepath.Join(copied, storeName, "*.log"))
	f, err := os.OpenFile(logs[len(logs)-1], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(make([]byte, 5000)) // and a power loss would tear it
	if err := errors.Join(err, f.Close(), os.Remove(filepath.Join(copied, "LOCK"))); err != nil {
		t.Fatal(err)
	}
	journaltest.RequireUnchanged(t, copied, func() {
		if records, s := readOffline(t, copied); len(records) != 50 || s.Resources[0].Scopes[0].Position != "50" {
			t.Errorf("%d changes, resources %+v", len(records), s.Resources)
		}
	})
}

func TestABrokenStoreIsReportedAndLeftAsItIs(t *testing.T) {
	for name, breakIt := range storeBreakages {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			fillJournal(t, Options{Dir: dir, Declaration: Declaration{Sinks: []string{"main"}}})
			breakIt(t, dir)
			journaltest.RequireUnchanged(t, dir, func() {
				if _, err := OpenOffline(dir); !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), dir) {
					t.Errorf("open: %v, want ErrBroken and the directory named", err)
				}
			})
			journaltest.RequireUnchanged(t, filepath.Join(dir, storeName), func() {
				if _, err := discardStopped(dir, "main", nil); !errors.Is(err, ErrBroken) {
					t.Errorf("discard: %v, want ErrBroken", err)
				}
			})
		})
	}
}

func TestABadBlockFoundWhileReadingIsReported(t *testing.T) {
	dir := t.TempDir()
	fillJournal(t, Options{Dir: dir})
	putRaw(t, dir, codec.KeyFrame(1), append([]byte{1, 100, 0}, "no zstd"...))
	journaltest.RequireUnchanged(t, dir, func() {
		o := openOffline(t, dir)
		defer o.Close()
		err := o.ForEachChange(1, 100, func(event.Record) error { return nil })
		if !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), "change 1") {
			t.Errorf("%v, want ErrBroken and the place", err)
		}
	})
}

// discardStopped drops the dead letters of a sink from the journal of a stopped exporter: some, or with nil all.
func discardStopped(dir, sink string, offsets []uint64) (dropped int, err error) {
	err = EditStopped(context.Background(), dir, func(j *Journal) error {
		if offsets == nil {
			var err error
			if offsets, err = j.DeadLetterOffsets(sink, 0); err != nil {
				return err
			}
		}
		var err error
		dropped, err = j.DropDeadLetters(context.Background(), sink, offsets)
		return err
	})
	return dropped, err
}

// holdEnv is the environment variable that makes a child process of TestAReaderAndAnExporterKeepEachOtherOut hold a journal.
const holdEnv = "JOURNAL_TEST_HOLD"

func TestAReaderAndAnExporterKeepEachOtherOut(t *testing.T) {
	if dir := os.Getenv(holdEnv); dir != "" {
		holdJournal(dir)
	}
	dir := t.TempDir()
	writeStoppedJournal(t, dir)

	release := startHolder(t, dir, "open")
	journaltest.RequireUnchanged(t, dir, func() {
		if _, err := OpenOffline(dir); !errors.Is(err, ErrLocked) {
			t.Errorf("open: %v, want ErrLocked", err)
		}
	})
	if _, err := discardStopped(dir, "bus", nil); !errors.Is(err, ErrLocked) {
		t.Errorf("discard: %v, want ErrLocked", err)
	}
	release()

	o := openOffline(t, dir)
	startHolder(t, dir, ErrLocked.Error())()
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	startHolder(t, dir, "open")()
}

// holdJournal is the child process: it opens the journal, prints the outcome, and ends with its standard input.
func holdJournal(dir string) {
	j, err := Open(Options{Dir: dir, Logger: discardLogger})
	if err != nil {
		fmt.Println(err)
		os.Exit(0)
	}
	if err := j.store.db.LogData(nil, pebble.Sync); err != nil { // what Open wrote without waiting is in its file
		fmt.Println(err)
		os.Exit(1)
	}
	// This waits for the work that Open has scheduled.
	if err := j.store.db.Compact(context.Background(), []byte{0}, []byte{0xff}, false); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	j.store.db.TestOnlyWaitForCleaning() // the parent watches that nothing changes from now on
	fmt.Println("open")
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = j.Close()
	os.Exit(0)
}

// startHolder starts a child that opens the journal, and checks what comes of it. The result ends the child.
func startHolder(t *testing.T, dir, want string) (release func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAReaderAndAnExporterKeepEachOtherOut$")
	cmd.Env = append(os.Environ(), holdEnv+"="+dir)
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, want) {
		t.Errorf("the child printed %q (%v), want %q", line, err, want)
	}
	return func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Error(err)
		}
	}
}

func TestNothingIsWrittenThroughAReadingStore(t *testing.T) {
	fsys, dir := disk.ReadOnly{FS: vfs.Default}, t.TempDir()
	name, other := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if err := os.WriteFile(name, []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n := reflect.TypeFor[vfs.FS]().NumMethod(); n != 18 {
		t.Errorf("a file system has %d methods now: see whether the new ones write", n)
	}
	journaltest.RequireUnchanged(t, dir, func() {
		_, create := fsys.Create(other, "")
		_, open := fsys.OpenReadWrite(name, "")
		_, reuse := fsys.ReuseForWrite(name, other, "")
		for what, err := range map[string]error{
			"create": create, "open": open, "reuse": reuse, "link": fsys.Link(name, other), "remove": fsys.Remove(name),
			"remove all": fsys.RemoveAll(dir), "rename": fsys.Rename(name, other), "mkdir": fsys.MkdirAll(other, 0o700),
		} {
			if err == nil {
				t.Errorf("%s is allowed", what)
			}
		}
	})
}
