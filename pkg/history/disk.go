package history

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// disk is what a history is written through.
type disk interface {
	// create creates a file, which must not exist.
	create(path string) (diskFile, error)
	// link gives a file a second name. It is fs.ErrExist if there is one of that name.
	link(path, name string) error
	rename(path, name string) error
	remove(path string) error
	makeDir(path string) error
	// syncDir makes durable which names a folder has.
	syncDir(path string) error
}

type diskFile interface {
	io.Writer
	Sync() error
	Close() error
}

// osDisk is the disk of the operating system. Files are for their owner only, since objects may hold secrets.
type osDisk struct{}

func (osDisk) create(path string) (diskFile, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

func (osDisk) link(path, name string) error   { return os.Link(path, name) }
func (osDisk) rename(path, name string) error { return os.Rename(path, name) }
func (osDisk) remove(path string) error       { return os.Remove(path) }
func (osDisk) makeDir(path string) error      { return os.MkdirAll(path, 0o700) }

func (osDisk) syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// checkWritable returns why nothing can be written to a folder; nil if there is none.
func checkWritable(dir string) error {
	if err := syscall.Access(dir, 2|1); !errors.Is(err, os.ErrNotExist) { // W_OK, X_OK
		return err
	}
	return nil
}

// lockDir locks a folder against other processes of this machine until the result is closed. A file system without locks is
// no error: the manifests are the fence.
func lockDir(path string) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errors.Join(ErrLocked, dir.Close())
	}
	return dir, nil
}

// ErrLocked means that another process of this machine writes to the folder.
var ErrLocked = errors.New("another process writes to this history")
