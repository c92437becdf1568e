package journal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// filled is what a journal was filled with.
type filled struct {
	changes map[uint64]string            // UID by offset
	letters map[string]map[uint64]string // the same of dead letters, by sink
	final   map[string]uint64            // cursors
	killed  string                       // directory, as it was a moment after the newest settlement
}

// fillForSalvage makes the journal of a stopped exporter: sinks at different changes, some of which are dead letters, in
// tables and in logs.
func fillForSalvage(t *testing.T, opts Options, r *rand.Rand) filled {
	t.Helper()
	f := filled{map[uint64]string{}, map[string]map[uint64]string{}, map[string]uint64{}, t.TempDir()}
	for _, sink := range opts.Sinks {
		f.letters[sink] = map[uint64]string{}
	}
	j := startJournal(t, opts)
	if err := j.Identity.StoreSignals(t.Context(), map[uint64][]byte{0: []byte("1"), 1: []byte("pause")}); err != nil {
		t.Fatal(err)
	}
	for n := range 60 {
		c := podChange(n, 4096)
		j.mustAppend(event.Observation{Resource: resourceNamed("pods"), Scope: "pods", Changes: []*event.Change{c}, Position: fmt.Sprint(n),
			Known: []event.Known{{Key: c.Name, UID: c.UID, ResourceVersion: fmt.Sprint(n)}}})
		j.waitFor(j.Newest() + 1)
		f.changes[j.Newest()] = c.UID
		sink := opts.Sinks[r.IntN(len(opts.Sinks))]
		if low := f.final[sink] + r.Uint64N(4); sink != "paused" && low > f.final[sink] && low <= j.Newest() {
			var dead []event.DeadLetter
			if r.IntN(2) == 0 {
				dead = []event.DeadLetter{{Offset: low, Time: time.Now(), Reason: "no", Change: podChange(int(low)-1, 4096)}}
				f.letters[sink][low] = f.changes[low]
			}
			j.mustSettle(sink, event.Cursor{Low: low, State: []byte("numbers")}, dead...)
			f.final[sink] = low
		}
		if n == 25 {
			if err := j.store.db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.CopyFS(f.killed, os.DirFS(opts.Dir)); err != nil {
		t.Fatal(err)
	}
	j.stopAndClose()
	return f
}

// TestWhatStandsBeforeADamagedByteIsDelivered flips a byte at many places of each file, after an orderly stop and after a
// kill. Each sink goes on behind what it had settled, and gets what follows in order, up to the damage; a dead letter is one
// of those that were there. The next start finds the same, and both report the recovery, which begins with gaps.
func TestWhatStandsBeforeADamagedByteIsDelivered(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	opts := Options{Dir: t.TempDir(), Declaration: Declaration{Sinks: []string{"fast", "slow", "paused"}, ClusterName: "prod"}, Logger: discardLogger}
	f := fillForSalvage(t, opts, r)
	t.Run("stopped", func(t *testing.T) { f.flipBytes(t, opts.Dir, opts, r) })
	t.Run("killed", func(t *testing.T) { f.flipBytes(t, f.killed, opts, r) })
}

func (f *filled) flipBytes(t *testing.T, original string, opts Options, r *rand.Rand) {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(original, storeName))
	if err != nil {
		t.Fatal(err)
	}
	kept := map[string][]uint64{} // by kind of file: the newest change that is left, in the order of the damaged places
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(original, storeName, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		const places = 12
		for n := range min(places, len(content)) {
			opts.Dir = t.TempDir()
			if err := os.CopyFS(opts.Dir, os.DirFS(original)); err != nil {
				t.Fatal(err)
			}
			spoilt := slices.Clone(content)
			at := (len(content)*n + r.IntN(len(content))) / min(places, len(content))
			spoilt[min(at, len(content)-1)] ^= byte(1 + r.IntN(255))
			if err := os.WriteFile(filepath.Join(opts.Dir, storeName, file.Name()), spoilt, 0o600); err != nil {
				t.Fatal(err)
			}
			t.Run(fmt.Sprintf("%s at %d", file.Name(), at), func(t *testing.T) {
				newest, recovered := f.check(t, opts)
				if again, was := f.check(t, opts); again != newest || was != recovered {
					t.Errorf("the next start finds changes up to %d, recovered %v; the first up to %d, %v", again, was, newest, recovered)
				}
				if kind := filepath.Ext(file.Name()); recovered {
					kept[kind] = append(kept[kind], newest)
				}
			})
		}
	}
	t.Logf("changes are kept up to %v", kept)
	if logs := kept[".log"]; len(logs) == 0 || !slices.IsSorted(logs) || logs[0] < 26 || logs[len(logs)/2] < 40 || logs[len(logs)-1] < 57 {
		t.Errorf("by the place of a damaged byte in the log, changes are kept up to %d", logs)
	}
	if tables := kept[".sst"]; len(tables) == 0 || slices.Max(tables) < 10 {
		t.Errorf("by the place of a damaged byte in a table, changes are kept up to %d", tables)
	}
}

// check opens the journal, compares it with what it was filled with, and returns the newest change that is left of that.
func (f *filled) check(t *testing.T, opts Options) (newest uint64, recovered bool) {
	t.Helper()
	j := startJournal(t, opts)
	defer j.stopAndClose()
	recovery, recovered := j.PendingRecovery()
	for _, sink := range opts.Sinks {
		cursor, _, err := j.Cursor(sink)
		if err != nil {
			t.Fatal(err)
		}
		if recovered && cursor.State != nil {
			t.Errorf("sink %s has a state that may be older than its destination", sink)
		}
		left := j.readTo(cursor.Low, j.Newest())
		if !recovered && (cursor.Low != f.final[sink] || j.Newest() != uint64(len(f.changes))) {
			t.Errorf("nothing is reported, and sink %s is at %d of %d", sink, cursor.Low, j.Newest())
		}
		for i, record := range left {
			if due := f.final[sink] + uint64(i) + 1; record.Change.UID != f.changes[due] {
				t.Fatalf("sink %s had settled up to %d, and gets %s where change %d is due", sink, f.final[sink], record.Change.UID, due)
			}
		}
		newest = max(newest, f.final[sink]*uint64(min(len(left), 1))+uint64(len(left)))
		if err := j.DeadLetters.reader().forEachLetter(sink, func(d event.DeadLetter) error {
			if f.letters[sink][d.Offset] != d.Change.UID {
				t.Errorf("sink %s has a dead letter %d that was never one", sink, d.Offset)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if recovered && !strings.Contains(recovery.Reason, carriedPart) {
		t.Errorf("the reason does not say what is left: %s", recovery.Reason)
	}
	if signals, err := j.Identity.Signals(); err != nil || newest > 26 && string(signals[1]) != "pause" {
		t.Errorf("the signal is %q (%v)", signals[1], err)
	}
	if name := j.CheckClusterName("prod"); name != nil {
		t.Error(name)
	}
	return newest, recovered
}

// TestAnInterruptedSalvageIsBegunAgain, and a finished one is not.
func TestAnInterruptedSalvageIsBegunAgain(t *testing.T) {
	opts := Options{Dir: t.TempDir(), Declaration: Declaration{Sinks: []string{"fast", "slow", "paused"}, ClusterName: "prod"}, Logger: discardLogger}
	f := fillForSalvage(t, opts, rand.New(rand.NewPCG(3, 4)))
	markStore(t, opts.Dir)
	j := openJournal(t, opts)
	r, _ := j.PendingRecovery()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	interruptSalvage(t, opts.Dir, r.MovedTo)
	if newest, recovered := f.check(t, opts); newest != 60 || !recovered {
		t.Errorf("changes are kept up to %d, recovered %v", newest, recovered)
	}
	if err := os.RemoveAll(filepath.Join(opts.Dir, storeName)); err != nil { // by an operator, for a new beginning
		t.Fatal(err)
	}
	if fresh := startJournal(t, opts); fresh.Newest() != 0 {
		t.Errorf("changes up to %d of a store that was set aside long ago are back", fresh.Newest())
	}
}

// interruptSalvage leaves the store as a process does that ends while it fills it.
func interruptSalvage(t *testing.T, dir, moved string) {
	t.Helper()
	if err := os.Remove(filepath.Join(moved, salvagedMarker)); err != nil {
		t.Fatal(err)
	}
	db, err := pebble.Open(filepath.Join(dir, storeName), storeOptions(vfs.Default, &storeLogger{logger: discardLogger}))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Set(codec.KeySalvaging, nil, pebble.Sync), db.Delete(codec.KeyVersion, pebble.Sync), db.Close()); err != nil {
		t.Fatal(err)
	}
}
