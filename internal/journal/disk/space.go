package disk

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// SpaceFS is a file system with writes that wait while the disk is full, instead of failing: Pebble ends the process when a
// write of its log or manifest fails, and a full disk is no reason for that (I7). A write that hit the end of the disk is
// repeated until it succeeds, from the byte where it stopped.
//
// A failed fsync is not repeated: the kernel may have dropped the pages it could not write, and a second fsync would lie.
//
// Compactions are the exception: they leave a part of the reserve free, and fail instead of waiting. One that waits would
// hold on to its inputs, the very files that a trim frees, and with its unfinished outputs to the room that the trim has to
// be written to. Pebble tries it again later.
type SpaceFS struct {
	vfs.FS
	dir               string        // on the disk that is asked
	RetryEvery        time.Duration // of a write that waits
	compactionReserve atomic.Uint64 // bytes that compactions leave free
	waitEnabled       atomic.Bool   // false while the store is opened: a start on a full disk fails
	waitingWrites     atomic.Int32  // writes that wait
	stopWaiting       chan struct{} // closed: wait no longer, let the error through
	StopWaiting       func()        // closes released, once
}

// ErrNoRoomToCompact ends a compaction.
var ErrNoRoomToCompact = fmt.Errorf("no room for a compaction: %w", syscall.ENOSPC)

// compactionCategory is what Pebble calls the files that compactions write.
const compactionCategory = "pebble-compaction"

// NewSpaceFS wraps inner. Writes fail on a full disk until EnableWaiting; dir is on the disk whose free space is read.
func NewSpaceFS(inner vfs.FS, dir string, retryEvery time.Duration) *SpaceFS {
	s := &SpaceFS{FS: inner, dir: dir, RetryEvery: retryEvery, stopWaiting: make(chan struct{})}
	s.StopWaiting = sync.OnceFunc(func() { close(s.stopWaiting) })
	return s
}

// EnableWaiting makes writes wait for space from now on.
func (s *SpaceFS) EnableWaiting() { s.waitEnabled.Store(true) }

// IsFull reports whether writes wait for space.
func (s *SpaceFS) IsFull() bool { return s.waitingWrites.Load() > 0 }

// IsOutOfSpace reports whether an error is that of a full disk.
func IsOutOfSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// retryUntilSpace repeats op while it fails for want of space.
func (s *SpaceFS) retryUntilSpace(op func() error) error {
	err := op()
	if !IsOutOfSpace(err) || !s.waitEnabled.Load() {
		return err
	}
	s.waitingWrites.Add(1)
	defer s.waitingWrites.Add(-1)
	for IsOutOfSpace(err) {
		select {
		case <-s.stopWaiting:
			return err
		case <-time.After(s.RetryEvery):
		}
		err = op()
	}
	return err
}

// writeWithinReserve does op for a compaction. Where there is no room it waits once, so that the next try does not come at
// once.
func (s *SpaceFS) writeWithinReserve(op func() error) error {
	usage, err := s.GetDiskUsage(s.dir)
	if err != nil || usage.AvailBytes >= s.compactionReserve.Load() {
		if err = op(); !IsOutOfSpace(err) {
			return err
		}
	}
	select {
	case <-s.stopWaiting:
	case <-time.After(s.RetryEvery):
	}
	return ErrNoRoomToCompact
}

// SetCompactionReserve sets how many bytes compactions leave free.
func (s *SpaceFS) SetCompactionReserve(bytes uint64) { s.compactionReserve.Store(bytes) }

// Unwrap implements [vfs.FS].
func (s *SpaceFS) Unwrap() vfs.FS { return s.FS }

func (s *SpaceFS) openFile(category vfs.DiskWriteCategory, open func() (vfs.File, error)) (vfs.File, error) {
	f := &spaceFile{runWrite: s.retryUntilSpace}
	if category == compactionCategory {
		f.runWrite = s.writeWithinReserve
	}
	err := f.runWrite(func() (err error) {
		f.File, err = open()
		return err
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Create implements [vfs.FS].
func (s *SpaceFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return s.openFile(category, func() (vfs.File, error) { return s.FS.Create(name, category) })
}

// OpenReadWrite implements [vfs.FS].
func (s *SpaceFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return s.openFile(category, func() (vfs.File, error) { return s.FS.OpenReadWrite(name, category, opts...) })
}

// ReuseForWrite implements [vfs.FS].
func (s *SpaceFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return s.openFile(category, func() (vfs.File, error) { return s.FS.ReuseForWrite(oldname, newname, category) })
}

// Link implements [vfs.FS].
func (s *SpaceFS) Link(oldname, newname string) error {
	return s.retryUntilSpace(func() error { return s.FS.Link(oldname, newname) })
}

// Rename implements [vfs.FS].
func (s *SpaceFS) Rename(oldname, newname string) error {
	return s.retryUntilSpace(func() error { return s.FS.Rename(oldname, newname) })
}

type spaceFile struct {
	vfs.File
	runWrite func(op func() error) error
}

// Write implements [vfs.File].
func (f *spaceFile) Write(p []byte) (n int, err error) {
	err = f.runWrite(func() error {
		m, err := f.File.Write(p[n:])
		n += m
		return err
	})
	return n, err
}

// WriteAt implements [vfs.File].
func (f *spaceFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.runWrite(func() error {
		m, err := f.File.WriteAt(p[n:], off+int64(n))
		n += m
		return err
	})
	return n, err
}

// Preallocate implements [vfs.File].
func (f *spaceFile) Preallocate(offset, length int64) error {
	return f.runWrite(func() error { return f.File.Preallocate(offset, length) })
}
