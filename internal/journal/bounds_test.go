package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/internal/journal/disk"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/journaltest"
)

// incompressibleChange makes a change that does not compress.
func incompressibleChange(n, size int) *event.Change {
	c := journaltest.SmallChange(n)
	r := rand.New(rand.NewPCG(uint64(n), 3))
	c.After = make([]byte, size)
	for i := range c.After {
		c.After[i] = byte(r.UintN(256))
	}
	return c
}

func bulkObservation(n, size int) event.Observation {
	return event.Observation{Resource: resourceNamed("pods"), Scope: "pods", Changes: []*event.Change{incompressibleChange(n, size)}, Position: fmt.Sprint(n)}
}

// runInVirtualTime runs a journal in virtual time.
func runInVirtualTime(t *testing.T, opts Options, f func(t *testing.T, j *runningJournal)) {
	synctest.Test(t, func(t *testing.T) {
		j := startJournal(t, opts)
		f(t, j)
		j.stopAndClose()
	})
}

func TestIdleChangeIsCommittedAtOnce(t *testing.T) {
	runInVirtualTime(t, Options{FS: vfs.NewMem()}, func(t *testing.T, j *runningJournal) {
		time.Sleep(300 * time.Millisecond)
		before := time.Now()
		j.mustAppend(smallObservation("s", 1))
		j.waitFor(1)
		if waited := time.Since(before); waited != 0 {
			t.Errorf("it waited %v for company", waited)
		}
	})
}

func TestSettledChangesAreTrimmedThoughNothingIsCommitted(t *testing.T) {
	runInVirtualTime(t, Options{FS: vfs.NewMem(), Declaration: Declaration{Sinks: []string{"main"}}, KeepSettled: time.Minute}, func(t *testing.T, j *runningJournal) {
		for n := range 40 {
			j.mustAppend(bulkObservation(n, 200<<10))
		}
		j.waitFor(40)
		j.mustSettle("main", event.Cursor{Low: 40})
		time.Sleep(30 * time.Second)
		if j.Oldest() != 1 {
			t.Errorf("trimmed to %d, though settled changes are kept for a minute", j.Oldest())
		}
		time.Sleep(time.Minute)
		if j.Oldest() == 1 {
			t.Error("nothing was trimmed")
		}
	})
}

func TestDeadLettersAndSettledChangesAtTheBoundStopNothing(t *testing.T) {
	opts := Options{FS: vfs.NewMem(), Declaration: Declaration{Sinks: []string{"main"}}, MaxBytes: 4 << 20, KeepSettled: time.Hour}
	runInVirtualTime(t, opts, func(t *testing.T, j *runningJournal) {
		var dead []event.DeadLetter
		for n := range 18 {
			j.mustAppend(bulkObservation(n, 200<<10))
			dead = append(dead, event.DeadLetter{Offset: uint64(n + 1), Reason: "no", Change: incompressibleChange(n, 200<<10)})
		}
		j.waitFor(18)
		j.mustSettle("main", event.Cursor{Low: 18}, dead...)
		for n := range 20 {
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			if err := j.Append(ctx, bulkObservation(n, 200<<10)); err != nil {
				t.Fatalf("change %d: %v; %s", n, err, j.Stat().Blocked.Cause)
			}
			stop()
			j.waitFor(uint64(19 + n))
			j.mustSettle("main", event.Cursor{Low: uint64(19 + n)})
		}
	})
}

func TestDeadLettersHaveABoundOfTheirOwn(t *testing.T) {
	j := startJournal(t, Options{Dir: t.TempDir(), Declaration: Declaration{Sinks: []string{"bus", "main"}}, MaxDeadLetters: 64 << 10})
	for n := range 4 {
		j.mustAppend(bulkObservation(n, 20<<10))
	}
	j.waitFor(4)
	for n := range 4 {
		if err := j.CheckDeadLetterSpace(); err != nil {
			t.Fatalf("dead letter %d: %v", n+1, err)
		}
		j.mustSettle("bus", event.Cursor{}, event.DeadLetter{Offset: uint64(n + 1), Reason: "no", Change: incompressibleChange(n, 20<<10)})
	}
	status := j.Stat().DeadLettersFull
	for what, full := range map[string]string{"room": j.CheckDeadLetterSpace().Error(), "stat": status.Text(time.Now())} {
		if !strings.Contains(full, "journal.maxDeadLetters") || !strings.Contains(full, "exporter deadletters list --sink bus") {
			t.Errorf("%s: %q names no remedy", what, full)
		}
	}
	j.mustAppend(bulkObservation(5, 20<<10)) // nothing else stops
	j.waitFor(5)
	j.mustSettle("main", event.Cursor{Low: 5})
	if s := j.Stat(); s.Blocked.Cause != "" {
		t.Errorf("blocked: %q", s.Blocked.Cause)
	}
	j.stopAndClose()
	if n, err := discardStopped(j.opts.Dir, "bus", nil); err != nil || n != 4 {
		t.Fatalf("%d discarded, %v", n, err)
	}
	if err := startJournal(t, j.opts).CheckDeadLetterSpace(); err != nil {
		t.Errorf("after they are dropped: %v", err)
	}
}

func TestKnownObjectsAndLastStatesAreCounted(t *testing.T) {
	const objects = 100
	j := startJournal(t, Options{FS: vfs.NewMem(), Declaration: Declaration{Sinks: []string{"main"}}, MaxBytes: 4 << 20})
	for n := range objects {
		key := fmt.Sprint("k", n)
		j.mustAppend(event.Observation{
			Resource: resourceNamed("pods"), Scope: "pods",
			Known:  []event.Known{{Key: key, UID: string(incompressibleChange(n, 8<<10).After), ResourceVersion: "1"}},
			Bodies: []event.Body{{Key: key, Raw: incompressibleChange(n, 60<<10).After}},
		})
	}
	if err := errors.Join(j.Flush(t.Context()), j.store.db.Flush()); err != nil {
		t.Fatal(err)
	}
	j.space.measureSizes()
	s := j.Stat()
	if s.KnownBytes < objects*7<<10 || s.BodyBytes < objects*58<<10 || s.RetainedBytes < s.KnownBytes+s.BodyBytes {
		t.Errorf("%d bytes of known objects, %d of bodies, %d in all", s.KnownBytes, s.BodyBytes, s.RetainedBytes)
	}
	if s.RetainedBytes <= s.MaxBytes {
		t.Fatalf("%d bytes do not reach the bound", s.RetainedBytes)
	}
	// They are more than the bound allows, and changes go on all the same as long as they are taken.
	for n := range 20 {
		j.mustAppend(bulkObservation(n, 100<<10))
		j.waitFor(uint64(n + 1))
		j.mustSettle("main", event.Cursor{Low: uint64(n + 1)})
	}
	for n := 0; j.Stat().Blocked.Cause == ""; n++ { // these are not settled
		j.mustAppend(bulkObservation(n, 100<<10))
		if err := j.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if blocked := j.Stat().Blocked.Cause; !strings.Contains(blocked, "known objects, last states") || !strings.Contains(blocked, `"main"`) {
		t.Errorf("%q does not say what fills the journal", blocked)
	}
}

func TestFilesArePrivateToTheUser(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "here")
	use := func() {
		j := startJournal(t, Options{Dir: dir})
		j.mustAppend(smallObservation("s", 1))
		if err := errors.Join(j.Flush(t.Context()), j.store.db.Flush()); err != nil {
			t.Fatal(err)
		}
		j.stopAndClose()
	}
	check := func(when string) {
		t.Helper()
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			want := fs.FileMode(0o600)
			if d.IsDir() {
				want = 0o700
			}
			if err == nil && info.Mode().Perm() != want {
				t.Errorf("%s: %s is %v", when, path, info.Mode())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	use()
	check("new")
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		mode := fs.FileMode(0o644)
		if d.IsDir() {
			mode = 0o755
		}
		return errors.Join(err, os.Chmod(path, mode))
	})
	if err != nil {
		t.Fatal(err)
	}
	use()
	check("after wider permissions")
}

// smallDisk is a disk in memory with an end.
type smallDisk struct {
	hookedDisk
	total uint64
}

func newSmallDisk(total uint64) *smallDisk {
	d := &smallDisk{hookedDisk: hookedDisk{FS: vfs.NewMem()}, total: total}
	d.write = func(_ vfs.File, p []byte) (int, error) {
		if uint64(d.countUsed())+uint64(len(p)) > d.total {
			return 0, &os.PathError{Op: "write", Path: "disk", Err: syscall.ENOSPC}
		}
		return 0, nil
	}
	return d
}

func (d *smallDisk) countUsed() (used int64) {
	for _, dir := range []string{"journal", "journal/store"} {
		names, _ := d.List(dir)
		for _, name := range names {
			if info, err := d.Stat(d.PathJoin(dir, name)); err == nil && !info.IsDir() {
				used += info.Size()
			}
		}
	}
	return used
}

func (d *smallDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	used := uint64(d.countUsed())
	return vfs.DiskUsage{TotalBytes: d.total, UsedBytes: used, AvailBytes: d.total - min(used, d.total)}, nil
}

func TestAFilledDiskRecoversAsSinksCatchUp(t *testing.T) {
	const size = 96 << 20
	for name, where := range map[string]func(t *testing.T) Options{
		"counted": func(*testing.T) Options { return Options{FS: newSmallDisk(size)} },
		"tmpfs": func(t *testing.T) Options {
			dir := t.TempDir()
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
				t.Skipf("NOT TESTED on a real disk that is full: a small one cannot be mounted here: %v", err)
			}
			t.Cleanup(func() {
				if err := syscall.Unmount(dir, 0); err != nil {
					t.Error(err)
				}
			})
			return Options{Dir: filepath.Join(dir, "journal")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			opts := where(t)
			opts.Sinks, opts.Reserve, opts.KeepSettled = []string{"main"}, 512<<20, time.Hour
			j := startJournal(t, opts)
			fill := func(n int) int {
				for ctx := t.Context(); ; n++ {
					trying, stop := context.WithCancel(ctx)
					done := make(chan error, 1)
					go func() { done <- j.Append(trying, bulkObservation(n, 256<<10)) }()
					for waits := false; !waits; {
						select {
						case err := <-done:
							if err != nil {
								t.Fatal(err)
							}
							waits = true
						case <-time.After(2 * tickEvery):
							if blocked := j.Stat().Blocked.Cause; strings.Contains(blocked, "disk") {
								stop()
								if <-done == nil {
									n++
								}
								return n
							}
						}
					}
					stop()
				}
			}
			n := 0
			for range 3 {
				full := fill(n)
				if full-n < 20 {
					t.Fatalf("only %d changes of 256 KiB fit: %s", full-n, j.Stat().Blocked.Cause)
				}
				n = full
				if err := j.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				j.mustSettle("main", event.Cursor{Low: j.Newest()})
				j.mustAppend(bulkObservation(n, 1)) // waits until there is room
				n++
			}
		})
	}
}

// TestACompactionLeavesRoomForLogs has compactions fail where the log and the tables of memtables are still written.
func TestACompactionLeavesRoomForLogs(t *testing.T) {
	small := newSmallDisk(10 << 20)
	if err := small.MkdirAll("journal", 0o700); err != nil {
		t.Fatal(err)
	}
	fs := disk.NewSpaceFS(small, "journal", time.Millisecond)
	fs.EnableWaiting()
	fs.SetCompactionReserve(6 << 20)
	create := func(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
		f, err := fs.Create("journal/"+name, category)
		if err == nil {
			t.Cleanup(func() { f.Close() })
		}
		return f, err
	}
	tables, err := create("tables", "pebble-compaction")
	if err != nil {
		t.Fatal(err)
	}
	log, err := create("log", "pebble-wal")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.Write(make([]byte, 5<<20)); err != nil {
		t.Fatal(err)
	}
	if _, err := tables.Write([]byte("x")); !errors.Is(err, disk.ErrNoRoomToCompact) {
		t.Errorf("a compaction wrote with %v", err)
	}
	if _, err := create("more", "pebble-compaction"); !errors.Is(err, disk.ErrNoRoomToCompact) {
		t.Errorf("a compaction began with %v", err)
	}
	if _, err := log.Write(make([]byte, 4<<20)); err != nil || fs.IsFull() {
		t.Errorf("the log: %v, waits %v", err, fs.IsFull())
	}
}
