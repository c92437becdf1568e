package journal

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// newSlowDisk returns a disk that keeps every fsync of the store's log waiting from hold on, until the function that it
// returns is called.
func newSlowDisk() (disk *hookedDisk, hold func() (release func())) {
	var held atomic.Pointer[chan struct{}]
	disk = &hookedDisk{FS: vfs.NewMem(), sync: func(name string) error {
		if until := held.Load(); until != nil && filepath.Ext(name) == ".log" {
			<-*until
		}
		return nil
	}}
	return disk, func() func() {
		until := make(chan struct{})
		held.Store(&until)
		return func() {
			held.Store(nil)
			close(until)
		}
	}
}

// TestReaderContinuesAfterTrimPassesIt reads, without a declared sink, changes that a trim deletes while its fsync is
// slow.
func TestReaderContinuesAfterTrimPassesIt(t *testing.T) {
	disk, holdSyncs := newSlowDisk()
	runInVirtualTime(t, Options{FS: disk, Declaration: Declaration{Sinks: []string{"main"}}, TailBytes: 1}, func(t *testing.T, j *runningJournal) {
		for n := range 40 {
			j.mustAppend(bulkObservation(n, 200<<10))
		}
		j.waitFor(40)
		release := holdSyncs()
		settled := make(chan error)
		go func() { settled <- j.Settle(t.Context(), "main", event.Cursor{Low: 30}, nil) }()
		var stored logExtent
		for stored.oldest <= 1 {
			time.Sleep(time.Millisecond)
			var err error
			if stored, err = j.frames().loadExtent(); err != nil {
				t.Fatal(err)
			}
		}
		if oldest := j.Oldest(); oldest != 1 {
			t.Errorf("trimmed to %d before that is durable", oldest)
		}
		records, err := j.Read(t.Context(), 1)
		if err != nil || records[0].Offset != stored.oldest {
			t.Errorf("read %d records, though the oldest is %d: %v", len(records), stored.oldest, err)
		}
		release()
		if err := <-settled; err != nil {
			t.Error(err)
		}
	})
}
