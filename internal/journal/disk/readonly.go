package disk

import (
	"io"
	"os"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// ReadOnly refuses whatever would change a file or a directory, so that reading a journal leaves no trace by
// construction and not by trust in the store. Its locks lock nothing: the lock of the journal's directory covers the
// store in it.
type ReadOnly struct{ vfs.FS }

func refuse(op, name string) error {
	return &os.PathError{Op: op, Path: name, Err: syscall.EROFS}
}

// NoLock is a lock that somebody else holds.
type NoLock struct{}

// Close does nothing.
func (NoLock) Close() error { return nil }

// Create implements [vfs.FS].
func (ReadOnly) Create(name string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, refuse("create", name)
}

// Link implements [vfs.FS].
func (ReadOnly) Link(_, newname string) error { return refuse("link", newname) }

// OpenReadWrite implements [vfs.FS].
func (ReadOnly) OpenReadWrite(name string, _ vfs.DiskWriteCategory, _ ...vfs.OpenOption) (vfs.File, error) {
	return nil, refuse("open for writing", name)
}

// Remove implements [vfs.FS].
func (ReadOnly) Remove(name string) error { return refuse("remove", name) }

// RemoveAll implements [vfs.FS].
func (ReadOnly) RemoveAll(name string) error { return refuse("remove", name) }

// Rename implements [vfs.FS].
func (ReadOnly) Rename(_, newname string) error { return refuse("rename", newname) }

// ReuseForWrite implements [vfs.FS].
func (ReadOnly) ReuseForWrite(_, newname string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, refuse("reuse", newname)
}

// MkdirAll implements [vfs.FS].
func (ReadOnly) MkdirAll(dir string, _ os.FileMode) error { return refuse("mkdir", dir) }

// Lock implements [vfs.FS].
func (ReadOnly) Lock(string) (io.Closer, error) { return NoLock{}, nil }

// Unwrap implements [vfs.FS].
func (f ReadOnly) Unwrap() vfs.FS { return f.FS }
