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

// SpaceFS is a file system whose writes wait while the disk is full, instead of failing: Pebble ends the process when a
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
	dir        string        // on the disk that is asked
	RetryEvery time.Duration // of a write that waits
	spared     atomic.Uint64 // bytes that compactions leave free
	waits      atomic.Bool   // false while the store is opened: whoever starts the exporter wants the error
	waiting    atomic.Int32  // writes that wait
	released   chan struct{} // closed: wait no longer, let the error through
	Release    func()        // closes released, once
}

// ErrNoRoomToCompact ends a compaction.
var ErrNoRoomToCompact = fmt.Errorf("no room for a compaction: %w", syscall.ENOSPC)

// compactionCategory is what Pebble calls the files that compactions write.
const compactionCategory = "pebble-compaction"

// NewSpaceFS returns inner, whose writes do not wait yet; dir is on the disk that is asked for its room.
func NewSpaceFS(inner vfs.FS, dir string, retryEvery time.Duration) *SpaceFS {
	s := &SpaceFS{FS: inner, dir: dir, RetryEvery: retryEvery, released: make(chan struct{})}
	s.Release = sync.OnceFunc(func() { close(s.released) })
	return s
}

// Wait makes writes wait for space from now on.
func (s *SpaceFS) Wait() { s.waits.Store(true) }

// Full says whether writes wait for space.
func (s *SpaceFS) Full() bool { return s.waiting.Load() > 0 }

// OutOfSpace says that an error is that of a full disk.
func OutOfSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// untilSpace repeats op while it fails for want of space.
func (s *SpaceFS) untilSpace(op func() error) error {
	err := op()
	if !OutOfSpace(err) || !s.waits.Load() {
		return err
	}
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	for OutOfSpace(err) {
		select {
		case <-s.released:
			return err
		case <-time.After(s.RetryEvery):
		}
		err = op()
	}
	return err
}

// ifSpare does op for a compaction. Where there is no room it waits once, so that the next try does not come at once.
func (s *SpaceFS) ifSpare(op func() error) error {
	usage, err := s.GetDiskUsage(s.dir)
	if err != nil || usage.AvailBytes >= s.spared.Load() {
		if err = op(); !OutOfSpace(err) {
			return err
		}
	}
	select {
	case <-s.released:
	case <-time.After(s.RetryEvery):
	}
	return ErrNoRoomToCompact
}

// Spare sets how many bytes compactions leave free.
func (s *SpaceFS) Spare(bytes uint64) { s.spared.Store(bytes) }

// Unwrap implements [vfs.FS].
func (s *SpaceFS) Unwrap() vfs.FS { return s.FS }

func (s *SpaceFS) file(category vfs.DiskWriteCategory, open func() (vfs.File, error)) (vfs.File, error) {
	f := &spaceFile{try: s.untilSpace}
	if category == compactionCategory {
		f.try = s.ifSpare
	}
	err := f.try(func() (err error) {
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
	return s.file(category, func() (vfs.File, error) { return s.FS.Create(name, category) })
}

// OpenReadWrite implements [vfs.FS].
func (s *SpaceFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return s.file(category, func() (vfs.File, error) { return s.FS.OpenReadWrite(name, category, opts...) })
}

// ReuseForWrite implements [vfs.FS].
func (s *SpaceFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return s.file(category, func() (vfs.File, error) { return s.FS.ReuseForWrite(oldname, newname, category) })
}

// Link implements [vfs.FS].
func (s *SpaceFS) Link(oldname, newname string) error {
	return s.untilSpace(func() error { return s.FS.Link(oldname, newname) })
}

// Rename implements [vfs.FS].
func (s *SpaceFS) Rename(oldname, newname string) error {
	return s.untilSpace(func() error { return s.FS.Rename(oldname, newname) })
}

// spaceFile is an open file of a SpaceFS.
type spaceFile struct {
	vfs.File
	try func(op func() error) error
}

// Write implements [vfs.File].
func (f *spaceFile) Write(p []byte) (n int, err error) {
	err = f.try(func() error {
		m, err := f.File.Write(p[n:])
		n += m
		return err
	})
	return n, err
}

// WriteAt implements [vfs.File].
func (f *spaceFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.try(func() error {
		m, err := f.File.WriteAt(p[n:], off+int64(n))
		n += m
		return err
	})
	return n, err
}

// Preallocate implements [vfs.File].
func (f *spaceFile) Preallocate(offset, length int64) error {
	return f.try(func() error { return f.File.Preallocate(offset, length) })
}
