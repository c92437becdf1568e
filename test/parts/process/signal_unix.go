//go:build unix

package process

import (
	"errors"
	"os"
	"syscall"
)

// terminate asks a process to end, with its group: a program such as "go run" does not pass the signal on.
func terminate(p *os.Process) error { return signalGroup(p, syscall.SIGTERM) }

// kill ends a process with its group.
func kill(p *os.Process) error { return signalGroup(p, syscall.SIGKILL) }

func signalGroup(p *os.Process, signal syscall.Signal) error {
	err := syscall.Kill(-p.Pid, signal)
	if errors.Is(err, syscall.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}
