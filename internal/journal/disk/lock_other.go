//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package disk

import (
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// LockShared takes the exporter's own, exclusive lock: this system is not known to have shared ones.
func LockShared(dir string) (io.Closer, error) { return Lock(vfs.Default, dir) }
