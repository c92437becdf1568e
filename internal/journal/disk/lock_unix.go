//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// LockShared takes a read lock on the file of which an exporter holds the write lock. That needs no write access and leaves
// the file as it is. Where the file is missing, as in a partial copy, no exporter has the directory, and nothing is locked.
func LockShared(dir string) (io.Closer, error) {
	f, err := os.Open(filepath.Join(dir, "LOCK"))
	if errors.Is(err, fs.ErrNotExist) {
		return NopLock{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("journal: cannot lock directory %s: %w", dir, err)
	}
	err = syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_RDLCK, Whence: io.SeekStart})
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EACCES):
		err = fmt.Errorf("%w: directory %s", ErrLocked, dir)
	default:
		err = fmt.Errorf("journal: cannot lock directory %s: %w", dir, err)
	}
	return nil, errors.Join(err, f.Close())
}
