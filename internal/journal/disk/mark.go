package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// AckFileName is the file in the store with the number of the newest acknowledged write. The store itself cannot detect that
// its newest writes are missing: a damaged end of its log looks like one that was never completed.
const AckFileName = "ACKNOWLEDGED"

// settledFileName is the file beside it with what was settled then, which a damaged log may not know.
const settledFileName = "SETTLED"

// AckFile is both files: the number of the write as be64, and a CRC-32C of it; a CRC-32C and what was settled. They are
// written in place, so that a full disk does not matter. One goroutine notes, another one may sync.
type AckFile struct {
	file, settled vfs.File

	mu            sync.Mutex // of the following
	noted, synced uint64
	failed        error // why the newest note is not in the files
}

// OpenAckFile opens the file in a store, and creates it where it is missing. An incomplete number, whose write was
// interrupted, counts as 0.
func OpenAckFile(fsys vfs.FS, dir string) (*AckFile, error) {
	f, err := fsys.OpenReadWrite(fsys.PathJoin(dir, AckFileName), vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	settled, err := fsys.OpenReadWrite(fsys.PathJoin(dir, settledFileName), vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	m := &AckFile{file: f, settled: settled}
	var b [12]byte
	if n, _ := f.ReadAt(b[:], 0); n == len(b) && crc32.Checksum(b[:8], castagnoli) == binary.BigEndian.Uint32(b[8:]) {
		m.noted = binary.BigEndian.Uint64(b[:8])
	}
	return m, errors.Join(SyncDir(fsys, dir))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CheckWrites returns an error when the newest write of the store is older than one that was acknowledged.
func (m *AckFile) CheckWrites(writes uint64) error {
	if writes >= m.noted {
		return nil
	}
	return fmt.Errorf("write %d is its newest, and %d was acknowledged: the end of its log is damaged, or it is an older copy",
		writes, m.noted)
}

// NoteWrite notes that everything up to a write is durable, and what is settled by then. It does not wait for the disk: a
// note outlives the process, whatever ends it, and a power loss once it is synced. A note that fails is an error of Sync.
func (m *AckFile) NoteWrite(writes uint64, settled []byte) {
	b := binary.BigEndian.AppendUint32(nil, crc32.Checksum(settled, castagnoli))
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(settled))), settled...)
	_, err := m.settled.WriteAt(b, 0)
	if err == nil {
		b = binary.BigEndian.AppendUint64(b[:0], writes)
		_, err = m.file.WriteAt(binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), 0)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noted, m.failed = writes, err
}

// Sync makes what was noted durable.
func (m *AckFile) Sync() error {
	m.mu.Lock()
	noted, synced, err := m.noted, m.synced, m.failed
	m.mu.Unlock()
	if noted == synced || err != nil {
		return err
	}
	if err := errors.Join(m.settled.Sync(), m.file.Sync()); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.synced = noted
	return nil
}

// ReadSettled returns what was settled when the files in a store were written last; nil if it cannot be read.
func ReadSettled(fsys vfs.FS, dir string) []byte {
	f, err := fsys.Open(fsys.PathJoin(dir, settledFileName))
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil || len(b) < 8 {
		return nil
	}
	length, rest := binary.BigEndian.Uint32(b[4:]), b[8:]
	if uint64(length) > uint64(len(rest)) || crc32.Checksum(rest[:length], castagnoli) != binary.BigEndian.Uint32(b) {
		return nil
	}
	return rest[:length]
}

// Close closes the files.
func (m *AckFile) Close() error { return errors.Join(m.file.Close(), m.settled.Close()) }

// Cut shows some files up to a length only.
type Cut struct {
	vfs.FS
	Lengths map[string]int64 // by the last part of the name
}

// Open implements [vfs.FS].
func (c Cut) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := c.FS.Open(name, opts...)
	if length, is := c.Lengths[c.PathBase(name)]; is && err == nil {
		return cutFile{f, io.LimitReader(f, length)}, nil
	}
	return f, err
}

// Unwrap implements [vfs.FS].
func (c Cut) Unwrap() vfs.FS { return c.FS }

// cutFile ends early for a reader that begins at its start.
type cutFile struct {
	vfs.File
	limited io.Reader
}

func (f cutFile) Read(p []byte) (int, error) { return f.limited.Read(p) }

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
