//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package build

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes an exclusive lock on an open file; false means that another process has it. The lock ends with the
// file, and so with the process.
func tryLock(f *os.File) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
