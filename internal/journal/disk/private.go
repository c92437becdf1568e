package disk

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Only the user of the exporter has access to the journal.
const (
	fileMode = 0o600
	dirMode  = 0o700
)

// Private is the real disk, with files that only their user can read. Pebble makes its files readable for all.
type Private struct{ vfs.FS }

func makePrivate(f vfs.File, err error, name string) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(name, fileMode); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Create implements [vfs.FS].
func (p Private) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := p.FS.Create(name, category)
	return makePrivate(f, err, name)
}

// OpenReadWrite implements [vfs.FS].
func (p Private) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := p.FS.OpenReadWrite(name, category, opts...)
	return makePrivate(f, err, name)
}

// MkdirAll implements [vfs.FS].
func (p Private) MkdirAll(dir string, _ os.FileMode) error { return p.FS.MkdirAll(dir, dirMode) }

// Lock implements [vfs.FS].
func (p Private) Lock(name string) (io.Closer, error) {
	lock, err := p.FS.Lock(name)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(name, fileMode); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// Unwrap implements [vfs.FS].
func (p Private) Unwrap() vfs.FS { return p.FS }

// RestrictPermissions removes the permissions of group and others from the files in dir, which a restored copy may have.
// Files of another user, such as the root of a volume, stay as they are.
func RestrictPermissions(dir string, logger *slog.Logger) {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrPermission) {
			return nil
		}
		if err != nil {
			return err
		}
		mode := fs.FileMode(fileMode)
		if d.IsDir() {
			mode = dirMode
		}
		if info, err := d.Info(); err != nil || !d.IsDir() && !info.Mode().IsRegular() || info.Mode().Perm()&0o077 == 0 {
			return err
		}
		if err := os.Chmod(path, mode); !errors.Is(err, fs.ErrPermission) {
			return err
		}
		return nil
	})
	if err != nil {
		logger.Warn("journal: cannot take the rights of others to its files", "dir", dir, "err", err)
	}
}

// ReadOnly refuses whatever would change a file or a directory, so that reading a journal leaves no trace by
// construction and not by trust in the store. Its locks lock nothing: the lock of the journal's directory covers the
// store in it.
type ReadOnly struct{ vfs.FS }

func readOnlyError(op, name string) error {
	return &os.PathError{Op: op, Path: name, Err: syscall.EROFS}
}

// NopLock releases nothing: the caller of the function that returns it holds the lock, or none is needed.
type NopLock struct{}

// Close does nothing.
func (NopLock) Close() error { return nil }

// Create implements [vfs.FS].
func (ReadOnly) Create(name string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, readOnlyError("create", name)
}

// Link implements [vfs.FS].
func (ReadOnly) Link(_, newname string) error { return readOnlyError("link", newname) }

// OpenReadWrite implements [vfs.FS].
func (ReadOnly) OpenReadWrite(name string, _ vfs.DiskWriteCategory, _ ...vfs.OpenOption) (vfs.File, error) {
	return nil, readOnlyError("open for writing", name)
}

// Remove implements [vfs.FS].
func (ReadOnly) Remove(name string) error { return readOnlyError("remove", name) }

// RemoveAll implements [vfs.FS].
func (ReadOnly) RemoveAll(name string) error { return readOnlyError("remove", name) }

// Rename implements [vfs.FS].
func (ReadOnly) Rename(_, newname string) error { return readOnlyError("rename", newname) }

// ReuseForWrite implements [vfs.FS].
func (ReadOnly) ReuseForWrite(_, newname string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, readOnlyError("reuse", newname)
}

// MkdirAll implements [vfs.FS].
func (ReadOnly) MkdirAll(dir string, _ os.FileMode) error { return readOnlyError("mkdir", dir) }

// Lock implements [vfs.FS].
func (ReadOnly) Lock(string) (io.Closer, error) { return NopLock{}, nil }

// Unwrap implements [vfs.FS].
func (f ReadOnly) Unwrap() vfs.FS { return f.FS }
