package journal

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// spaceFS is a file system whose writes wait while the disk is full, instead of failing: Pebble ends the process when a
// write of its log or manifest fails, and a full disk is no reason for that (I7). A write that hit the end of the disk is
// repeated until it succeeds, from the byte where it stopped.
//
// A failed fsync is not repeated: the kernel may have dropped the pages it could not write, and a second fsync would lie.
type spaceFS struct {
	vfs.FS
	retryEvery time.Duration
	logger     *slog.Logger
	waits      atomic.Bool   // false while the store is opened: whoever starts the exporter wants the error
	released   chan struct{} // closed: wait no longer, let the error through
	release    func()

	mu      sync.Mutex
	waiting int
	reason  string // why writes wait; empty when none does
}

func newSpaceFS(inner vfs.FS, retryEvery time.Duration, logger *slog.Logger) *spaceFS {
	s := &spaceFS{FS: inner, retryEvery: retryEvery, logger: logger, released: make(chan struct{})}
	s.release = sync.OnceFunc(func() { close(s.released) })
	return s
}

// wait makes writes wait for space from now on.
func (s *spaceFS) wait() { s.waits.Store(true) }

// full says why writes wait for space, or is empty.
func (s *spaceFS) full() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason
}

func outOfSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// untilSpace repeats op while it fails for want of space.
func (s *spaceFS) untilSpace(op func() error) error {
	err := op()
	if !outOfSpace(err) || !s.waits.Load() {
		return err
	}
	s.enter(err)
	defer s.leave()
	for outOfSpace(err) {
		select {
		case <-s.released:
			return err
		case <-time.After(s.retryEvery):
		}
		err = op()
	}
	return err
}

func (s *spaceFS) enter(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting++
	if s.waiting > 1 {
		return
	}
	s.reason = "the journal's disk is full: free space or enlarge the volume (" + err.Error() + ")"
	s.logger.Error("journal waits: disk full; free space or enlarge the volume, nothing is lost meanwhile", "err", err)
}

func (s *spaceFS) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting--
	if s.waiting > 0 {
		return
	}
	s.reason = ""
	s.logger.Info("journal no longer waits for disk space")
}

// Unwrap implements [vfs.FS].
func (s *spaceFS) Unwrap() vfs.FS { return s.FS }

func (s *spaceFS) file(open func() (vfs.File, error)) (f vfs.File, err error) {
	err = s.untilSpace(func() error {
		f, err = open()
		return err
	})
	if err != nil {
		return nil, err
	}
	return &spaceFile{File: f, fs: s}, nil
}

// Create implements [vfs.FS].
func (s *spaceFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return s.file(func() (vfs.File, error) { return s.FS.Create(name, category) })
}

// OpenReadWrite implements [vfs.FS].
func (s *spaceFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return s.file(func() (vfs.File, error) { return s.FS.OpenReadWrite(name, category, opts...) })
}

// ReuseForWrite implements [vfs.FS].
func (s *spaceFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return s.file(func() (vfs.File, error) { return s.FS.ReuseForWrite(oldname, newname, category) })
}

// Link implements [vfs.FS].
func (s *spaceFS) Link(oldname, newname string) error {
	return s.untilSpace(func() error { return s.FS.Link(oldname, newname) })
}

// Rename implements [vfs.FS].
func (s *spaceFS) Rename(oldname, newname string) error {
	return s.untilSpace(func() error { return s.FS.Rename(oldname, newname) })
}

// spaceFile is an open file of a spaceFS.
type spaceFile struct {
	vfs.File
	fs *spaceFS
}

// Write implements [vfs.File].
func (f *spaceFile) Write(p []byte) (n int, err error) {
	err = f.fs.untilSpace(func() error {
		m, err := f.File.Write(p[n:])
		n += m
		return err
	})
	return n, err
}

// WriteAt implements [vfs.File].
func (f *spaceFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.fs.untilSpace(func() error {
		m, err := f.File.WriteAt(p[n:], off+int64(n))
		n += m
		return err
	})
	return n, err
}

// Preallocate implements [vfs.File].
func (f *spaceFile) Preallocate(offset, length int64) error {
	return f.fs.untilSpace(func() error { return f.File.Preallocate(offset, length) })
}
