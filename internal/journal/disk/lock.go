package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrLocked is returned when another process has locked the journal's directory. The caller ends: two exporters on one
// journal would break the order of every sink. The text names the directory.
var ErrLocked = errors.New("journal is in use by another process")

// Lock takes the lock that keeps a second process out.
func Lock(fsys vfs.FS, dir string) (*pebble.Lock, error) {
	if err := makeDirDurable(fsys, dir); err != nil {
		return nil, err
	}
	lock, err := pebble.LockDirectory(dir, fsys)
	var pathErr *fs.PathError
	var errno syscall.Errno
	switch {
	case err == nil:
		return lock, nil
	case errors.As(err, &pathErr),
		errors.As(err, &errno) && errno != syscall.EAGAIN && errno != syscall.EACCES:
		return nil, fmt.Errorf("journal: cannot lock directory %s: %w", dir, err)
	}
	return nil, fmt.Errorf("%w: directory %s (%w): stop the other exporter or give this one its own journal.dir", ErrLocked, dir, err)
}

// makeDirDurable makes dir and what is missing above it, so that a power loss does not take it away again.
func makeDirDurable(fsys vfs.FS, dir string) error {
	var missing []string
	for p := dir; p != fsys.PathDir(p); p = fsys.PathDir(p) {
		if _, err := fsys.Stat(p); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		missing = append(missing, p)
	}
	if err := fsys.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("journal: cannot make directory %s: %w", dir, err)
	}
	for _, p := range missing {
		if err := SyncDir(fsys, fsys.PathDir(p)); err != nil {
			return err
		}
	}
	return nil
}

// SyncDir makes durable which files a directory has.
func SyncDir(fsys vfs.FS, dir string) error {
	d, err := fsys.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("journal: cannot open %s: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("journal: cannot sync %s: %w", dir, err)
	}
	return nil
}
