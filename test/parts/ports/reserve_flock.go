//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package ports

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/kubecdc/kubecdc/test/parts/build"
)

// reserved holds the open files of this process's ports; the kernel drops their locks when the process ends in any way.
var reserved struct {
	sync.Mutex
	files []*os.File
}

// reserve makes a port this process's own among all processes that use this package; false means another has it.
func reserve(port int) (bool, error) {
	dir, err := build.CacheDir() // shared by processes that have temporary directories of their own
	if err != nil {
		return false, err
	}
	dir = filepath.Join(dir, "ports")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, err
	}
	f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(port)), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return false, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return false, nil
		}
		return false, err
	}
	reserved.Lock()
	defer reserved.Unlock()
	reserved.files = append(reserved.files, f)
	return true, nil
}
