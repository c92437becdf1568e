//go:build unix && !linux

package process

import (
	"os"
	"syscall"
)

// attributes give the child a process group of its own; there is no signal at the parent's death to ask for.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func liveUsage(*os.Process) Usage { return Usage{} }
