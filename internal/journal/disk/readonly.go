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
