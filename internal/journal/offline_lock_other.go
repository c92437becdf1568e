//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package journal

import (
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// lockShared takes the exporter's own, exclusive lock: this system is not known to have shared ones.
func lockShared(dir string) (io.Closer, error) { return lockDirectory(vfs.Default, dir) }
