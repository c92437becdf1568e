package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/pkg/event"
)

const crashScopes = 3

// deadEvery is how often the sink of the crash test gives up on a change.
const deadEvery = 50

// witness is what the journal has promised so far.
type witness struct {
	sync.Mutex
	read    uint64 // seen by a reader
	settled uint64 // settled durably, with a dead letter for every deadEvery-th
}

// crashWorkload appends observations of one to three changes for each scope, and reads and settles them, until ctx ends.
func crashWorkload(ctx context.Context, j *Journal, seed uint64, w *witness) (wait func()) {
	var wg sync.WaitGroup
	for s := range crashScopes {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(s)))
			scope := fmt.Sprint("scope-", s)
			for n := 1; ; {
				o := event.Observation{Resource: resourceNamed(scope), Scope: scope}
				for range 1 + r.IntN(3) {
					c := podChange(n, 600)
					c.Cluster, c.ResourceVersion = scope, strconv.Itoa(n)
					o.Changes = append(o.Changes, c)
					o.Position = c.ResourceVersion
					n++
				}
				o.Known = []event.Known{{Key: "newest", ResourceVersion: o.Position}}
				if j.Append(ctx, o) != nil {
					return
				}
			}
		})
	}
	wg.Go(func() {
		for after := uint64(0); ; {
			records, err := j.Read(ctx, after)
			if err != nil {
				return
			}
			newest := records[len(records)-1].Offset
			w.Lock()
			w.read = newest
			w.Unlock()
			var dead []event.DeadLetter
			for _, rec := range records {
				if rec.Offset%deadEvery == 0 {
					dead = append(dead, event.DeadLetter{Offset: rec.Offset, Reason: "test", Change: rec.Change})
				}
			}
			if j.Settle(ctx, "main", event.Cursor{Low: newest}, dead) != nil {
				return
			}
			after = newest
			w.Lock()
			w.settled = newest
			w.Unlock()
		}
	})
	return wg.Wait
}

// checkCrashed opens what a power loss left and compares it with what was promised before.
func checkCrashed(t *testing.T, opts Options, read, settled uint64) {
	t.Helper()
	j := startJournal(t, opts)
	defer j.stopAndClose()
	if r, ok := j.PendingRecovery(); ok {
		t.Fatalf("a power loss was taken for a broken store: %+v", r)
	}
	checkPromises(t, j, read, settled)
}

// checkPromises compares what is stored with itself, and with what was promised.
func checkPromises(t *testing.T, j *runningJournal, read, settled uint64) {
	t.Helper()
	newest, oldest := j.Newest(), j.Oldest()
	_, recovered := j.PendingRecovery() // from a broken store come changes, and no positions
	if newest < read {
		t.Fatalf("a reader saw change %d, the newest left is %d", read, newest)
	}
	last := map[string]int{}
	for _, rec := range j.readTo(oldest-1, newest) { // checks that offsets have no hole
		scope := rec.Change.Cluster
		n, _ := strconv.Atoi(rec.Change.ResourceVersion)
		if before, ok := last[scope]; ok && n != before+1 {
			t.Fatalf("%s: change %d follows %d", scope, n, before)
		}
		last[scope] = n
	}
	for s := range crashScopes {
		scope := fmt.Sprint("scope-", s)
		known, stored := j.loadStored(scope)
		position := stored.Position
		if n, ok := last[scope]; ok && !recovered && position != strconv.Itoa(n) || recovered && position != "" { // I1
			t.Fatalf("%s: position %q, newest change %d", scope, position, n)
		}
		if position != "" && (len(known) != 1 || known[0].ResourceVersion != position) {
			t.Fatalf("%s: position %q, known %+v", scope, position, known)
		}
	}
	c, _, err := j.Cursor("main")
	if err != nil || c.Low < settled || c.Low > newest { // I2
		t.Fatalf("cursor %+v %v, settled %d, newest %d", c, err, settled, newest)
	}
	next := uint64(deadEvery)
	if err := j.DeadLetters.reader().forEachLetter("main", func(d event.DeadLetter) error {
		if d.Offset != next {
			t.Errorf("dead letter %d where %d is due", d.Offset, next)
		}
		next += deadEvery
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if next <= c.Low && !recovered { // same atomic write as the cursor
		t.Fatalf("cursor %d, but no dead letter %d", c.Low, next)
	}
	j.mustAppend(smallObservation("after", 1))
	j.waitFor(newest + 1)
}

func TestAPowerLossAtAnyMomentKeepsEveryPromise(t *testing.T) {
	for name, opts := range map[string]Options{
		"always":   {},
		"interval": {SyncInterval: time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(3) {
				mem := vfs.NewCrashableMem()
				opts.FS, opts.Sinks = mem, []string{"main"}
				opts.MaxBytes, opts.PendingBytes, opts.TailBytes = 2<<20, 32<<10, 8<<10
				j := startJournal(t, opts)
				ctx, stop := context.WithCancel(t.Context())
				var w witness
				wait := crashWorkload(ctx, j.Journal, seed, &w)
				r := rand.New(rand.NewPCG(seed, 99))
				for crash := range uint64(12) {
					j.waitFor(j.Newest() + 1 + r.Uint64N(60))
					if r.IntN(3) == 0 {
						if _, err := j.store.db.AsyncFlush(); err != nil {
							t.Fatal(err)
						}
					}
					w.Lock()
					read, settled := w.read, w.settled
					w.Unlock()
					crashed := opts
					crashed.MaxBytes = 0 // the check appends, whatever is retained
					crashed.FS = mem.CrashClone(vfs.CrashCloneCfg{
						UnsyncedDataPercent: r.IntN(101), RNG: rand.New(rand.NewPCG(seed, crash)),
					})
					checkCrashed(t, crashed, read, settled)
				}
				stop()
				wait()
				j.stopAndClose()
			}
		})
	}
}

// TestCopyMadeInMidWriteIsCompleteOrReportedBroken copies the files of a journal one after the other while they are written,
// trimmed and compacted, as a backup without volume snapshots does. An opened copy is consistent.
func TestCopyMadeInMidWriteIsCompleteOrReportedBroken(t *testing.T) {
	opts := Options{Dir: t.TempDir(), Declaration: Declaration{Sinks: []string{"main"}}, MaxBytes: 2 << 20, PendingBytes: 32 << 10, TailBytes: 8 << 10}
	j := startJournal(t, opts)
	ctx, stop := context.WithCancel(t.Context())
	wait := crashWorkload(ctx, j.Journal, 1, &witness{})
	broken := 0
	for n := range 12 {
		j.waitFor(j.Newest() + 300)
		if n%3 == 0 {
			if _, err := j.store.db.AsyncFlush(); err != nil {
				t.Fatal(err)
			}
		}
		copied := opts
		copied.Dir, copied.MaxBytes = t.TempDir(), 0
		copyFiles(t, filepath.Join(opts.Dir, storeName), filepath.Join(copied.Dir, storeName))
		c := startJournal(t, copied)
		if _, moved := c.PendingRecovery(); moved {
			broken++
		}
		checkPromises(t, c, 0, 0)
		c.stopAndClose()
	}
	stop()
	wait()
	t.Logf("%d of 12 copies were broken", broken)
}

// copyFiles copies files as they are found. The lock of the process would end with a look at its file.
func copyFiles(t *testing.T, from, to string) {
	t.Helper()
	files, err := os.ReadDir(from)
	if err := errors.Join(err, os.MkdirAll(to, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.Name() == "LOCK" {
			continue
		}
		b, err := os.ReadFile(filepath.Join(from, f.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := errors.Join(err, os.WriteFile(filepath.Join(to, f.Name()), b, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}
