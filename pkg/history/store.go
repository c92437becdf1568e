package history

import (
	"cmp"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Store is where a history is: a folder or a bucket. Names of files have slashes. Its methods may be called concurrently.
type Store interface {
	// String names it, without secrets.
	String() string
	// Check returns why nothing can be written to it; nil if it has nothing yet.
	Check() error

	// lock locks it against other processes of this machine until the result is closed.
	lock() (io.Closer, error)
	// list returns the names of all files that begin so: with one folder, or with a part of the name of one.
	list(begin string) ([]string, error)
	// read and open return fs.ErrNotExist if there is no such file; what open returns may do so later.
	read(name string) ([]byte, error)
	open(name string, size int64) (blob, error)
	// write writes a file. Under its name it is whole, and durable.
	write(name string, content func(io.Writer) error) error
	// create is write for a file that must not exist. Otherwise it returns fs.ErrExist.
	create(name string, content []byte) error
	remove(name string) error
	// grace is how long files that were replaced stay, for readers that do not hold them open.
	grace() time.Duration
}

// blob is a file that is open for reading.
type blob interface {
	io.ReaderAt
	io.Closer
	Name() string
}

// StoreAt returns the store that a text names: s3://BUCKET/PREFIX?endpoint=…&region=…&ca=…, or a folder. It contacts
// nothing. Without keys a bucket is used with those that the environment has, as for other clients of S3.
func StoreAt(where string, keys Keys) (Store, error) {
	if strings.HasPrefix(where, "s3:") {
		return newBucket(where, keys)
	}
	return Folder(where), nil
}

// folder is a folder of the file system. Files are for their owner only, since objects may hold secrets.
type folder struct {
	dir  string
	disk disk
}

// Folder returns the store in a folder.
func Folder(dir string) Store { return &folder{dir, osDisk{}} }

func (f *folder) String() string          { return f.dir }
func (f *folder) Check() error            { return checkWritable(f.dir) }
func (f *folder) grace() time.Duration    { return 0 }
func (f *folder) path(name string) string { return filepath.Join(f.dir, filepath.FromSlash(name)) }

func (f *folder) lock() (io.Closer, error) {
	if err := f.makeDir(manifestDir); err != nil {
		return nil, err
	}
	if err := f.disk.syncDir(filepath.Dir(f.dir)); err != nil {
		return nil, err
	}
	return lockDir(f.dir)
}

func (f *folder) list(begin string) ([]string, error) {
	return fs.Glob(os.DirFS(f.dir), strings.TrimSuffix(begin, "/")+"*/*")
}

func (f *folder) read(name string) ([]byte, error) { return os.ReadFile(f.path(name)) }

func (f *folder) open(name string, _ int64) (blob, error) { return os.Open(f.path(name)) }

// makeDir makes a folder in the folder, and its name durable.
func (f *folder) makeDir(name string) error {
	return cmp.Or(f.disk.makeDir(f.path(name)), f.disk.syncDir(f.dir))
}

func (f *folder) write(name string, content func(io.Writer) error) error {
	if _, err := os.Stat(f.path(path.Dir(name))); errors.Is(err, fs.ErrNotExist) {
		if err := f.makeDir(path.Dir(name)); err != nil {
			return err
		}
	}
	if err := f.writeUnfinished(f.path(name)+unfinishedExt, content); err != nil {
		return err
	}
	return errors.Join(f.disk.rename(f.path(name)+unfinishedExt, f.path(name)), f.disk.syncDir(filepath.Dir(f.path(name))))
}

func (f *folder) create(name string, content []byte) error {
	unfinished := f.path(name) + "." + rand.Text()[:8] + unfinishedExt // a writer that was frozen may do so too
	if err := f.writeUnfinished(unfinished, func(w io.Writer) error { _, err := w.Write(content); return err }); err != nil {
		return err
	}
	return errors.Join(f.disk.link(unfinished, f.path(name)), f.disk.remove(unfinished), f.disk.syncDir(filepath.Dir(f.path(name))))
}

// writeUnfinished writes a file and makes its content durable, not its name. It leaves nothing behind after an error, if it
// can.
func (f *folder) writeUnfinished(path string, content func(io.Writer) error) error {
	file, err := f.disk.create(path)
	if err != nil {
		return err
	}
	if err = content(file); err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, f.disk.remove(path))
	}
	return nil
}

func (f *folder) remove(name string) error {
	err := f.disk.remove(f.path(name))
	if rest, e := os.ReadDir(filepath.Dir(f.path(name))); e == nil && len(rest) == 0 {
		err = errors.Join(err, f.disk.remove(filepath.Dir(f.path(name))))
	}
	return err
}

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
