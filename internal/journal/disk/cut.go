package disk

import (
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

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
