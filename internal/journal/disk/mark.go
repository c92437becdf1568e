package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// MarkName is the file in the store that says up to which write everything was acknowledged. The store itself cannot see
// that its newest writes are missing: a damaged end of its log looks like one that was never completed.
const MarkName = "ACKNOWLEDGED"

// Mark is that file: the number of the write as be64, and a CRC-32C of it. It is written in place, so that a full disk does
// not matter. Not safe for concurrent use.
type Mark struct {
	file   vfs.File
	stored uint64
}

// OpenMark opens the file in a store, and makes it where it is missing. What is not whole says nothing: it was being
// written.
func OpenMark(fsys vfs.FS, dir string) (*Mark, error) {
	f, err := fsys.OpenReadWrite(fsys.PathJoin(dir, MarkName), vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	m := &Mark{file: f}
	var b [12]byte
	if n, _ := f.ReadAt(b[:], 0); n == len(b) && crc32.Checksum(b[:8], castagnoli) == binary.BigEndian.Uint32(b[8:]) {
		m.stored = binary.BigEndian.Uint64(b[:8])
	} else if err := m.write(0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return m, errors.Join(SyncDir(fsys, dir))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Check refuses a store whose newest write is older than one that was acknowledged.
func (m *Mark) Check(writes uint64) error {
	if writes >= m.stored {
		return nil
	}
	return fmt.Errorf("write %d is its newest, and %d was acknowledged: the end of its log is damaged, or it is an older copy",
		writes, m.stored)
}

// Store notes that everything up to a write is acknowledged, durably.
func (m *Mark) Store(writes uint64) error {
	if writes == m.stored {
		return nil
	}
	return m.write(writes)
}

func (m *Mark) write(writes uint64) error {
	b := binary.BigEndian.AppendUint64(nil, writes)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	if _, err := m.file.WriteAt(b, 0); err != nil {
		return err
	}
	if err := m.file.Sync(); err != nil {
		return err
	}
	m.stored = writes
	return nil
}

// Close closes the file.
func (m *Mark) Close() error { return m.file.Close() }
