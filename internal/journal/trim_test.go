package journal

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// slowDisk keeps every fsync of the store's log waiting while it is held.
type slowDisk struct {
	vfs.FS
	held atomic.Pointer[chan struct{}]
}

func (d *slowDisk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, c)
	if filepath.Ext(name) != ".log" {
		return f, err
	}
	return &slowFile{f, d}, err
}

func (d *slowDisk) ReuseForWrite(o, n string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.ReuseForWrite(o, n, c)
	return &slowFile{f, d}, err
}

// holdSyncs keeps fsyncs waiting until the returned function is called.
func (d *slowDisk) holdSyncs() (release func()) {
	held := make(chan struct{})
	d.held.Store(&held)
	return func() {
		d.held.Store(nil)
		close(held)
	}
}

type slowFile struct {
	vfs.File
	disk *slowDisk
}

func (f *slowFile) waitWhileHeld() {
	if held := f.disk.held.Load(); held != nil {
		<-*held
	}
}

func (f *slowFile) Sync() error {
	f.waitWhileHeld()
	return f.File.Sync()
}

func (f *slowFile) SyncData() error {
	f.waitWhileHeld()
	return f.File.SyncData()
}

// TestReaderContinuesAfterTrimPassesIt reads, without a declared sink, changes that a trim deletes while its fsync is
// slow.
func TestReaderContinuesAfterTrimPassesIt(t *testing.T) {
	disk := &slowDisk{FS: vfs.NewMem()}
	runInVirtualTime(t, Options{FS: disk, Declaration: Declaration{Sinks: []string{"main"}}, TailBytes: 1}, func(t *testing.T, j *runningJournal) {
		for n := range 40 {
			j.mustAppend(bulkObservation(n, 200<<10))
		}
		j.waitFor(40)
		release := disk.holdSyncs()
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
